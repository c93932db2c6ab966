"""`make demo`: syncs a shop's database into a lakehouse three times, builds and checks it.

    python demo/run.py                            runs the demo
    python demo/run.py --picture docs/demo.svg    also draws a picture (`make picture`)

The demo runs in one process. It writes only to one folder (`.strandline/demo`, or STRANDLINE_DEMO),
which it empties first. It checks every claim before it prints it, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from screen import NotAsClaimed, Screen

from loader.errors import LoaderError

ROOT = Path(__file__).resolve().parents[1]
MARK = "made-by-make-demo"


def main() -> int:
    """Runs the demo; returns the exit code."""
    began = time.monotonic()
    os.chdir(ROOT)
    screen = Screen()
    try:
        path = Path(os.environ.get("STRANDLINE_DEMO") or ".strandline/demo")
        folder = _create_folder(path.absolute())
        os.environ["STRANDLINE_DEMO"] = str(folder)
        os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
        os.environ["DBT_SEND_ANONYMOUS_USAGE_STATS"] = "false"
        _introduce(screen)
        from story import Story  # imports Spark, which is slow, after the introduction

        story = Story(screen, ROOT, folder)
        try:
            story.run()
        finally:
            story.close()
    except (NotAsClaimed, LoaderError) as error:
        screen.failed(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    if sys.argv[1:2] == ["--picture"]:
        screen.picture(Path(sys.argv[2]))
    _show_next_steps(screen, folder, time.monotonic() - began)
    return 0


def _create_folder(folder: Path) -> Path:
    """Creates an empty folder; deletes the folder of an earlier demo.

    Raises:
        NotAsClaimed: if the folder contains files of anything but a demo.
    """
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise NotAsClaimed(f"{folder} is not a demo's folder: set STRANDLINE_DEMO to another")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def _introduce(screen: Screen) -> None:
    screen.title("Strandline: incremental append, from a database to a proven latest table")
    screen.say(
        """A shop stores customers, orders and order lines in a database. The loader reads only rows
        that changed since its last run, by a cursor (the column updated_at). It appends these rows
        to raw tables, and never changes existing rows. dbt builds latest tables from the raw
        tables, with one row for each key, and tests them."""
    )


def _show_next_steps(screen: Screen, folder: Path, seconds: float) -> None:
    shown = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    screen.step(f"Done, in {seconds:.0f} seconds")
    screen.say(
        f"""Database, tables and logs are in {shown}, the spec is loader.yml, the dbt
        project is demo/dbt. To continue:"""
    )
    screen.command("source .venv/bin/activate")
    screen.command(f'export STRANDLINE_WAREHOUSE="{folder / "warehouse"}"')
    screen.command("loader status")
    screen.command("loader run && dbt build --project-dir demo/dbt --profiles-dir profiles")
    screen.say(
        """A cursor does not show deleted rows, nor changes of older rows without a new updated_at:
        `loader reconcile` finds them."""
    )


if __name__ == "__main__":
    sys.exit(main())

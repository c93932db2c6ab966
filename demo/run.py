"""`make demo`: a shop's database, synced into a lakehouse three times, built and checked.

    python demo/run.py                            runs it
    python demo/run.py --picture docs/demo.svg    also draws its picture (`make picture`)

Everything happens in one process, in one folder (`.strandline/demo`, or STRANDLINE_DEMO) that it
empties each time. It checks every claim before it prints it, and exits with 1 if one is wrong.
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
        folder = _fresh(Path(os.environ.get("STRANDLINE_DEMO") or ".strandline/demo").absolute())
        os.environ["STRANDLINE_DEMO"] = str(folder)
        os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
        os.environ["DBT_SEND_ANONYMOUS_USAGE_STATS"] = "false"
        _introduce(screen)
        from story import Story  # Spark takes a while, and the introduction need not wait

        story = Story(screen, ROOT, folder)
        try:
            story.tell()
        finally:
            story.close()
    except (NotAsClaimed, LoaderError) as error:
        screen.failed(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    if sys.argv[1:2] == ["--picture"]:
        screen.picture(Path(sys.argv[2]))
    _look_around(screen, folder, time.monotonic() - began)
    return 0


def _fresh(folder: Path) -> Path:
    """Replaces the last demo's folder by an empty one.

    Raises:
        NotAsClaimed: if the folder holds something that no demo made.
    """
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise NotAsClaimed(f"{folder} is not the demo's: set STRANDLINE_DEMO to a new folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def _introduce(screen: Screen) -> None:
    screen.title("Strandline: incremental append, from a database to a proven snapshot")
    screen.say(
        """A shop keeps customers, orders and order lines in a database. The loader reads only what
        changed since its last run, which it sees by a cursor (the column updated_at). It appends
        these rows to raw tables, and never changes what is there. dbt builds snapshots from them,
        with one row for each key, and tests them."""
    )


def _look_around(screen: Screen, folder: Path, seconds: float) -> None:
    shown = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    screen.step(f"Done, in {seconds:.0f} seconds")
    screen.say(
        f"""Database, tables and logs are in {shown}, the spec is loader.yml, the models are in
        models/demo. To go on by yourself:"""
    )
    screen.command("source .venv/bin/activate")
    screen.command(f'export STRANDLINE_WAREHOUSE="{folder / "warehouse"}"')
    screen.command("loader status")
    screen.command("loader run && dbt build --profiles-dir profiles")
    screen.say(
        """What no cursor shows: deleted rows, and rows below the cursor that change without a newer
        updated_at."""
    )


if __name__ == "__main__":
    sys.exit(main())

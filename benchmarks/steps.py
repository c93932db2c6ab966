"""Times each step of a cold `loader run` that finds nothing new.

    python benchmarks/steps.py                        10 runs, medians
    python benchmarks/steps.py --beside before=DIR    another checkout, in turn

One table of 4,000 rows in PostgreSQL on the same machine. A step ends where the next one begins.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, os.environ.get("STEPS_OF", str(ROOT)))

STEPS = (
    ("loader.cli.settings", "Settings.spec", "before", "Python, the command line"),
    ("loader.cli.settings", "_begin_java", "before", "the spec"),
    ("loader.cli.settings", "_begin_java", "after", "the profile, connectors; Java begins"),
    ("loader.cli.settings", "_start_spark", "before", "PySpark is imported, meanwhile Java starts"),
    ("loader.spark.jvm", "start", "after", "waiting for Java"),
    ("loader.cli.settings", "_start_spark", "after", "Spark's session"),
    ("loader.sync.runner", "lock_all", "before", "the table is described"),
    ("loader.sync.runner", "lock_all", "after", "locks"),
    ("loader.sync.protocol", "recover", "before", "state and ledger; the source's snapshot"),
    ("loader.sync.plan_window", "choose_window", "before", "the newest commit, columns"),
    ("loader.sync.plan_window", "is_unchanged", "after", "bounds and digest"),
    ("loader.sync.progress_writer", "ProgressWriter.write", "after", "the ledger's row"),
)
"""Module, function, whether the step ends before or after the call, and the step's name."""
LAST = "ending"


def _child() -> None:
    """Runs this process's command line, and records when each step ended."""
    ended: dict[str, float] = {}
    for module, name, when, what in STEPS:
        owner: Any = importlib.import_module(module) if module in sys.modules else None
        _later(module, name, when, what, ended) if owner is None else _watch(
            owner, name, when, what, ended
        )
    from loader.cli import main

    try:
        main()
    finally:
        Path(os.environ["STEPS_TO"]).write_text(json.dumps(ended))


def _later(module: str, name: str, when: str, what: str, ended: dict[str, float]) -> None:
    """Watches a function once its module is imported. An import now would itself take time."""

    class Finder:
        def find_spec(self, wanted: str, path: Any = None, target: Any = None) -> Any:
            if wanted != module or self not in sys.meta_path:
                return None
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            spec = importlib.util.find_spec(wanted)
            assert spec is not None
            assert spec.loader is not None
            run = spec.loader.exec_module

            def exec_module(made: Any) -> None:
                run(made)
                _watch(made, name, when, what, ended)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


def _watch(module: Any, name: str, when: str, what: str, ended: dict[str, float]) -> None:
    owner, _, last = name.rpartition(".")
    place = getattr(module, owner) if owner else module
    watched = getattr(place, last)

    @functools.wraps(watched)
    def called(*given: Any, **named: Any) -> Any:
        if when == "before":
            ended.setdefault(what, time.time())
        try:
            return watched(*given, **named)
        finally:
            if when == "after":
                ended[what] = time.time()

    setattr(place, last, called)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--rounds", default=10, show_default=True)
@click.option("--beside", multiple=True, metavar="LABEL=DIR", help="Another checkout, too.")
def main(rounds: int, beside: tuple[str, ...]) -> None:
    from benchmarks.ours import Ours
    from benchmarks.shop import Shop
    from tests.services import Postgres

    place, server = Path(tempfile.mkdtemp(prefix="strandline-steps-")), Postgres(hashed=True)
    roots = {"now": ROOT, **{one.split("=")[0]: Path(one.split("=")[1]) for one in beside}}
    took: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in roots}
    try:
        with server.database() as database:
            shop = Shop(database, 4000).create()
            projects = {
                name: Ours(place / name, shop, root).create() for name, root in roots.items()
            }
            for number in range(rounds + 2):  # a first load, and a run to warm up the file cache
                for name, project in projects.items():
                    steps = _timed(project.folder, dict(project.environment), roots[name])
                    for what, seconds in steps.items() if number > 1 else ():
                        took[name][what].append(seconds)
    finally:
        server.remove()
        shutil.rmtree(place, ignore_errors=True)
    whats = [what for *_, what in STEPS] + [LAST]
    print(f"{'':46}" + "".join(f"{name:>10}" for name in roots))
    for what in whats:
        cells = (statistics.median(took[name][what] or [0.0]) for name in roots)
        print(f"{what:46}" + "".join(f"{cell:10.2f}" for cell in cells))
    sums = (statistics.median(map(sum, zip(*took[n].values(), strict=True))) for n in roots)
    print(f"{'all':46}" + "".join(f"{one:10.2f}" for one in sums))


def _timed(folder: Path, environment: dict[str, str], root: Path) -> dict[str, float]:
    from benchmarks.stopwatch import ran

    to = folder / "steps.json"
    given = {**environment, "STEPS_TO": str(to), "STEPS_OF": str(root)}
    given.pop("SPARK_SUBMIT_OPTS", None)
    command = [sys.executable, str(Path(__file__).resolve()), "--quiet", "run"]
    began = time.time()
    ran(command, folder, given)
    over = time.time()
    steps, before = {}, began
    ended = json.loads(to.read_text())
    for *_, what in STEPS:
        steps[what] = max(0.0, ended.get(what, before) - before)
        before = ended.get(what, before)
    steps[LAST] = over - before
    return steps


if __name__ == "__main__":
    if "STEPS_TO" in os.environ:
        _child()
    else:
        main()

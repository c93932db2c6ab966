"""``make nemesis``: runs schedules until the time is up or a schedule finds a violation."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.nemesis.faults import FAULTS, planted  # noqa: E402
from benchmarks.nemesis.hunt import Hunt, Tally  # noqa: E402
from benchmarks.nemesis.mariadb import MariaDbArena  # noqa: E402
from benchmarks.nemesis.postgresql import PostgresArena  # noqa: E402
from benchmarks.nemesis.schedule import Schedule, drawn  # noqa: E402
from benchmarks.nemesis.shrinking import shrunk  # noqa: E402

ARENAS = {"postgresql": PostgresArena, "mariadb": MariaDbArena}


def _session(folder: Path) -> SparkSession:
    from loader.spark.profile import load_profile
    from loader.spark.session import session

    os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
    profile = load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    spark = session(profile)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _seeds(seed: int, minutes: float) -> Iterator[int]:
    end = time.monotonic() + minutes * 60
    for each in count(seed):
        yield each
        if time.monotonic() >= end:
            return


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--seed", default=1, show_default=True, help="The first; the next ones follow.")
@click.option("--minutes", default=10.0, show_default=True, help="No schedule begins after that.")
@click.option("--length", default=30, show_default=True, help="Ops of a schedule, about.")
@click.option("--on", type=click.Choice(list(ARENAS)), default="postgresql", show_default=True)
@click.option("--replay", type=click.Path(exists=True, path_type=Path), help="A schedule's file.")
@click.option("--shrink", default=40, show_default=True, help="Tries to make a failure smaller.")
@click.option("--fault", type=click.Choice(list(FAULTS)), help="Plants a fault, to be found.")
@click.option("--go-on", is_flag=True, help="After a failure, too; it is not made smaller then.")
def main(
    seed: int,
    minutes: float,
    length: int,
    on: str,
    replay: Path | None,
    shrink: int,
    fault: str | None,
    go_on: bool,
) -> None:
    os.environ["DBT_SEND_ANONYMOUS_USAGE_STATS"] = "false"
    os.environ.setdefault(
        "SPARK_SUBMIT_OPTS",
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC",
    )
    folder = Path(tempfile.mkdtemp(prefix="strandline-nemesis-"))
    arena = ARENAS[on](folder)
    failed, schedules, began = [], 0, time.monotonic()
    try:
        hunt = Hunt(arena, _session(folder), folder)
        with planted(fault):
            if replay is not None:
                wanted = iter([Schedule.from_json(replay.read_text())])
            else:
                wanted = (drawn(s, arena.vocabulary, length) for s in _seeds(seed, minutes))
            for each in wanted:
                started = time.monotonic()
                found = hunt.violation(each)
                schedules += 1
                took = time.monotonic() - started
                click.echo(f"seed {each.seed}: {'FAILED' if found else 'held'}, {took:.0f} s")
                if found is None:
                    continue
                failed.append(each.seed)
                click.echo(found)
                if go_on:
                    continue
                smaller = shrunk(each, lambda s: hunt.violation(s) is not None, shrink)
                click.echo(f"made smaller, from {len(each.ops)} to {len(smaller.ops)} ops:")
                for op in smaller.ops:
                    click.echo(f"  {op}")
                file = Path(f"nemesis-{each.seed}.json")
                file.write_text(smaller.to_json())
                click.echo(f"replay it: make nemesis NEMESIS='--on {on} --replay {file}'")
                break
        hunt.close()
        _report(hunt.tally, schedules, failed, time.monotonic() - began)
    finally:
        arena.remove()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if failed else 0)


def _report(tally: Tally, schedules: int, failed: list[int], seconds: float) -> None:
    click.echo(
        f"{schedules} schedules in {seconds / 60:.1f} minutes: {tally.syncs} syncs, "
        f"{sum(tally.kills.values())} kills, {tally.refusals} refusals, "
        f"{sum(tally.done.values())} ops; failed: {failed or 'none'}"
    )
    click.echo(f"ops: {json.dumps(dict(tally.done.most_common()))}")
    click.echo(f"kills: {json.dumps(dict(tally.kills.most_common()))}")


if __name__ == "__main__":
    main()

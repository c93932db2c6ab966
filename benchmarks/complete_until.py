"""Compares `complete_until` with the writes that raw lacks, at many moments.

    python benchmarks/complete_until.py                        1,000 moments of tables with cursors
    python benchmarks/complete_until.py --cdc --moments 300    of tables that are read from the log

Sessions insert, update and, for the log, delete rows, in transactions of milliseconds up to 20
seconds. A trigger records the time of each write, by the server's clock, in the same transaction.
Meanwhile runs follow each other in one process, with random pauses. Each sync of a table is a
moment. When the writers have ended, each moment is compared with the trigger's records: the batches
up to the sync must contain all versions of rows that were written before its `complete_until`, or
newer versions of the same rows. The time of the earliest write that they lack is the truth.

The exit code is 1 if a time is later than the truth, or if a sync fails.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psycopg

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from loader.spec.spec import load_spec  # noqa: E402
from loader.sync.pipeline import Pipeline  # noqa: E402
from loader.sync.run_context import Watch  # noqa: E402
from loader.sync.runner import run_tables  # noqa: E402
from tests.services import Database, Postgres  # noqa: E402
from tests.sync.project import Project  # noqa: E402

NEVER = 2**62
"""The batch of a version that is not in raw."""
_DELETED = 2**62
"""The version of a deleted row."""
CURSORS: Mapping[str, Mapping[str, str]] = {
    "clocks": {"cursor_field": "at"},
    "numbers": {"cursor_field": "id"},
    "unnamed": {"cursor_field": "xmin"},
}
LOG: Mapping[str, Mapping[str, str]] = {
    "clocks": {"sync_mode": "cdc"},
    "numbers": {"sync_mode": "cdc"},
}
_SETUP = (
    "create sequence versions",
    """
    create table audit (
        name text, id bigint, version bigint, written timestamptz, is_delete boolean
    )
    """,
    """
    create function record_write() returns trigger language plpgsql as $$ begin
        if tg_op = 'DELETE' then
            insert into audit
            values (tg_table_name, old.id, nextval('versions'), clock_timestamp(), true);
            return old;
        end if;
        new.version := nextval('versions');
        insert into audit
        values (tg_table_name, new.id, new.version, clock_timestamp(), false);
        return new;
    end $$
    """,
)
_TABLE = (
    "create table {name} (id bigserial primary key, at timestamptz not null, version bigint)",
    "create index on {name} (at)",
    """
    create trigger record_write before insert or update or delete on {name}
    for each row execute function record_write()
    """,
    "insert into {name} (at) select now() from generate_series(1, 50)",
)
_CLOCKS = (
    "now()",
    "clock_timestamp()",
    "clock_timestamp() - interval '10 minutes'",
    "date_trunc('hour', clock_timestamp())",
    "now() - interval '300 days'",
)
_ANY = "(select id from {name} where id >= random() * (select max(id) from {name}) limit 1)"


@dataclass(frozen=True)
class Moment:
    """One sync of a table.

    Attributes:
        batch: the table's highest batch after the sync.
        until: the recorded `complete_until`, in seconds since 1970; None if unknown.
        ended: the time at which the run ended.
    """

    table: str
    batch: int
    until: float | None
    ended: float


@dataclass(frozen=True)
class Judgement:
    """The comparison of moments with the audit table.

    Attributes:
        ahead: descriptions of the moments whose `complete_until` is later than the truth.
        behind_truth: the seconds from `complete_until` to the earliest write that raw lacked.
        behind_clock: the seconds from `complete_until` to the end of the run.
        unknown: the number of moments without a `complete_until`.
    """

    ahead: Sequence[str]
    behind_truth: Sequence[float]
    behind_clock: Sequence[float]
    unknown: int


def create_tables(database: Database, names: Sequence[str]) -> None:
    """Creates the audited tables with a few rows."""
    tables = (statement.format(name=name) for name in names for statement in _TABLE)
    database.execute(*_SETUP, *tables)


@contextmanager
def write(
    database: Database, names: Sequence[str], deletes: bool, seed: int, count: int = 6
) -> Iterator[None]:
    """Runs sessions that write to the tables until the block ends."""
    stopping = threading.Event()
    failures: list[Exception] = []

    def live(writer: int) -> None:
        dice = random.Random(f"{seed}/{writer}")
        try:
            with closing(database.connect()) as connection:
                connection.execute("set lock_timeout = '200ms'")
                while not stopping.wait(dice.uniform(0, 0.3)):
                    _transact(connection, names, deletes, dice, stopping)
        except Exception as failure:  # a thread's own traceback is lost
            failures.append(failure)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    if failures:
        raise RuntimeError(f"a writer failed: {failures[0]}") from failures[0]


def _transact(
    connection: psycopg.Connection[Any],
    names: Sequence[str],
    deletes: bool,
    dice: random.Random,
    stopping: threading.Event,
) -> None:
    length = dice.choices((0.02, 0.5, 3, 20), weights=(60, 30, 12, 2))[0]
    count = dice.randint(1, 5)
    try:
        connection.execute("begin")
        for _ in range(count):
            stopping.wait(dice.uniform(0, length / count))
            statements = ["insert into {name} (at) values ({at})"] * 4
            statements += [f"update {{name}} set at = {{at}} where id = {_ANY}"] * 2
            statements += [f"update {{name}} set at = at where id = {_ANY}"] * 2
            statements += [f"delete from {{name}} where id = {_ANY}"] if deletes else []
            statement = dice.choice(statements).format(
                name=dice.choice(names), at=dice.choice(_CLOCKS)
            )
            is_nested, is_undone = dice.random() < 0.2, dice.random() < 0.5
            connection.execute("savepoint s" if is_nested else "select 1")
            connection.execute(statement)
            if is_nested:
                connection.execute(
                    "rollback to savepoint s" if is_undone else "release savepoint s"
                )
        connection.execute("rollback" if dice.random() < 0.1 else "commit")
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        connection.execute("rollback")


def sync_often(
    project: Project, moments: int, seed: int, minutes: float = math.inf
) -> Iterator[Moment]:
    """Runs again and again after the first load, and yields each sync of a table.

    Args:
        minutes: the time after which no run begins, even if there are fewer moments.

    Raises:
        LoaderError: if a sync fails.
    """
    dice = random.Random(seed)
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    batches: dict[str, int] = {}
    found, end = 0, time.monotonic() + 60 * minutes
    while found < moments and time.monotonic() < end:
        outcomes = list(run_tables(pipeline, Watch()))
        ended = time.time()
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
            assert outcome.record is not None
            record, name = outcome.record, outcome.record.table_name
            batches[name] = max(batches.get(name, 1), record.batch or 0)
            until = record.complete_until
            yield Moment(name, batches[name], until.timestamp() if until else None, ended)
            found += 1
        time.sleep(dice.uniform(0, 0.3))


def judge(
    database: Database, project: Project, moments: Sequence[Moment], exact: bool
) -> Judgement:
    """Compares moments with the audit table.

    Args:
        exact: whether raw must contain each version, as from the log. Otherwise a newer version of
            the same row will do.
    """
    ahead: list[str] = []
    behind_truth: list[float] = []
    for name in sorted({moment.table for moment in moments}):
        writes = _find_batches(database, project, name, exact)
        times = [written for written, _ in writes]
        latest = list(itertools.accumulate((batch for _, batch in writes), max))
        for moment in moments:
            if moment.table != name or moment.until is None:
                continue
            before = bisect.bisect_left(times, moment.until)
            if before and latest[before - 1] > moment.batch:
                ahead.append(f"{moment} lacks a write of {name} from before its time")
            # `latest` ascends, so this is the earliest write whose batch is higher.
            first_missing = bisect.bisect_right(latest, moment.batch)
            if first_missing < len(times):
                behind_truth.append(times[first_missing] - moment.until)
    known = [moment for moment in moments if moment.until is not None]
    behind_clock = [moment.ended - (moment.until or 0) for moment in known]
    return Judgement(ahead, behind_truth, behind_clock, len(moments) - len(known))


def _find_batches(
    database: Database, project: Project, name: str, exact: bool
) -> list[tuple[float, int]]:
    """Returns each committed write's time, and the first batch that contains it, by time."""
    raw: dict[int, list[tuple[int, int]]] = {}
    columns = f"id, version, {'_cq_deleted' if exact else 'false'}, _cq_batch"
    for key, version, is_deleted, batch in project.rows(f"select {columns} from raw.{name}"):
        raw.setdefault(key, []).append((_DELETED if is_deleted else version, batch))
    writes = database.query(
        "select extract(epoch from written)::float8, id, version, is_delete from audit "
        f"where name = '{name}'"
    )
    found = []
    for written, key, version, is_delete in writes:
        wanted = _DELETED if is_delete else version
        holds = [b for v, b in raw.get(key, ()) if v == wanted or (v > wanted and not exact)]
        found.append((written, min(holds, default=NEVER)))
    return sorted(found)


def describe(seconds: Sequence[float]) -> str:
    """Returns the median, the 95th percentile and the maximum."""
    if not seconds:
        return "no moments"
    ordered = sorted(seconds)
    high = ordered[int(len(ordered) * 0.95)]
    return f"median {statistics.median(ordered):.3f} s, 95 % {high:.3f} s, max {ordered[-1]:.3f} s"


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--moments", default=1000, show_default=True, help="How many syncs of a table.")
@click.option("--cdc", is_flag=True, help="Reads the tables from the log, not by cursors.")
@click.option("--minutes", default=math.inf, help="No run begins after that; by default no limit.")
@click.option("--seed", default=1, show_default=True, help="What the writers do.")
def main(moments: int, cdc: bool, minutes: float, seed: int) -> None:
    from loader.spark.profile import load_profile
    from loader.spark.session import session

    folder = Path(tempfile.mkdtemp(prefix="strandline-until-"))
    os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
    server = Postgres()
    tables = LOG if cdc else CURSORS
    try:
        profile = load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
        spark = session(profile)
        with server.database() as database:
            project = Project(folder, spark, "raw")
            project.jdbc(database, [*tables], table_options=tables)
            create_tables(database, [*tables])
            project.run()  # the first load
            with write(database, [*tables], cdc, seed):
                seen = list(sync_often(project, moments, seed, minutes))
            project.run()
            found = judge(database, project, seen, exact=cdc)
            [(writes,)] = database.query("select count(*) from audit")
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(f"{len(seen):,} moments of {len(tables)} tables, {writes:,} writes, seed {seed}")
    click.echo(f"later than the truth: {len(found.ahead)}; unknown: {found.unknown}")
    click.echo(f"behind the truth: {describe(found.behind_truth)}")
    click.echo(f"behind the end of the run: {describe(found.behind_clock)}")
    for line in found.ahead[:20]:
        click.echo(line)
    sys.exit(1 if found.ahead else 0)


if __name__ == "__main__":
    main()

"""``loader state rebuild``: rebuilds state and ledger from the raw tables' own commits.

The data commits are the truth; state and ledger are indexes of them. What only the indexes held
is lost: attempts that appended nothing, and cursors moved by hand. A damaged index is moved to a
quarantine folder first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loader.errors import DamagedError, StateError, TableError
from loader.lake.commits import Commit, all_commits
from loader.lake.lake import Lake
from loader.lake.ledger import RECOVERED, SyncRecord, now
from loader.lake.locks import lock_table
from loader.lake.raw_table import list_raw_tables
from loader.lake.system_tables import PREFIX
from loader.rows.window import BY_HAND
from loader.spark.error_translation import translate_error
from loader.state import StateBackend, StateRow, TableState
from loader.state.value import format_time
from loader.sync.ownership import is_loaded_by
from loader.sync.stores import Stores
from loader.sync.table_plan import FULL_REFRESH, INCREMENTAL


@dataclass(frozen=True)
class Rebuilt:
    """Result of rebuilding one table's state and ledger.

    Attributes:
        table: ``<source>.<table>``.
        batches: how many batches it has.
        states: state rows added.
        syncs: ledger rows added.
    """

    table: str
    batches: int
    states: int
    syncs: int


def raw_tables(stores: Stores, names: Collection[str]) -> tuple[list[str], dict[str, Exception]]:
    """Returns a source's raw tables, by their own commits, and the errors of unreadable tables.

    Args:
        names: the source's names, now and before.
    """
    found = []
    tables, unreadable = list_raw_tables(stores.lake)
    for table in tables:
        try:
            if is_loaded_by(stores.lake, table, tuple(names)):
                found.append(table)
        except Exception as problem:
            unreadable[table] = problem
    return found, unreadable


def source_commits(
    lake: Lake, table: str, names: Collection[str], known: Collection[int] = ()
) -> list[Commit]:
    """Returns the batches of one source in a raw table, oldest first.

    If compaction has removed a whole batch of a shared table, its source is unknown: the batch
    counts as from the same source as the next batch with a known one.

    Args:
        known: batches of the source that the ledger has; if their commits have expired, they may
            be left out.
    """
    found: list[Commit] = []
    unknown: list[Commit] = []
    owner = None
    for commit in all_commits(lake, table, known):
        unknown.append(commit)
        if commit.source is not None:
            owner = commit.source
            found += unknown if owner in names else []
            unknown = []
    return found + unknown if owner in names else found


def rebuild_table(
    names: Sequence[str],
    table: str,
    commits: Sequence[Commit],
    stores: Stores,
    run_id: str,
    tell: Callable[[str], None],
    known: Collection[int] = (),
) -> Rebuilt:
    """Adds the state and the ledger rows that the commits have and that are missing.

    The caller holds the lock. A second call adds nothing.

    Args:
        names: the source's names, now and before.
        tell: called with a warning if the newest commit has expired.
        known: batches that were in the ledger a moment ago; the ledger is read again for others.

    Raises:
        StateError: if the backend is down, or its value at this key cannot be read.
    """
    source = names[0]
    states = _states(f"{source}.{table}", commits, stores.state, tell)
    batches = {commit.batch for commit in commits} | set(known)
    if not {commit.batch for commit in commits} <= set(known):
        known = stores.ledger.batches(names, table).get(table, set())
    refreshed = _find_refresh(commits)
    records = [
        _record(source, table, commit, run_id, commit.batch == refreshed)
        for commit in commits
        if commit.batch not in known
    ]
    stores.ledger.append_all(records)
    return Rebuilt(f"{source}.{table}", len(batches), states, len(records))


def _states(
    key: str, commits: Sequence[Commit], backend: StateBackend, tell: Callable[[str], None]
) -> int:
    head = commits[-1]
    if head.state is None:
        return _without_cursor(key, head, backend, tell)
    states = [(TableState.from_json(c.state, key), c) for c in commits if c.state is not None]
    held = backend.latest(key)
    if held:
        newest = states[-1][0]
        if all(_later(row, newest) for row in held):
            return 0
        return int(backend.write(key, newest) is not None)
    rows = [
        StateRow(key, state.to_json(), version, format_time(commit.at) if commit.at else None)
        for version, (state, commit) in enumerate(states, start=1)
    ]
    backend.append(rows)
    return len(rows)


def _later(row: StateRow, committed: TableState) -> bool:
    """Returns whether a state differs from its batch's commit only in what its connector remembers.

    A sync that finds nothing new may store that without a commit: how far it has read a log, say.
    """
    try:
        stored = TableState.from_json(row.value, row.key)
    except StateError:  # the commit's state takes its place
        return False
    if stored.mark is None or BY_HAND in stored.mark:
        return stored == committed
    return replace(stored, mark=committed.mark) == committed


def _without_cursor(
    key: str, head: Commit, backend: StateBackend, tell: Callable[[str], None]
) -> int:
    """Writes a safe state if the newest commit has expired: without a cursor, to read all again."""
    rows = backend.latest(key)
    if rows and {TableState.from_json(row.value, key).batch for row in rows} == {head.batch}:
        return 0  # only this state has the cursor
    generation = int((head.sync or {}).get("generation") or 1)
    backend.write(key, TableState(batch=head.batch, generation=generation))
    tell(
        f"the commit of batch {head.batch} has expired, and its cursor with it: the next sync "
        "reads the table from its beginning, and drops the rows that raw already has"
    )
    return 1


def _find_refresh(commits: Sequence[Commit]) -> int | None:
    """Returns the newest full refresh's batch, which began the base generation; None if unknown.

    Only a batch whose own commit has expired needs it: other commits say how they read.

    A repair begins a generation too, but overrules only its own rows. Only the newest commit's
    state tells which it was, and only for the newest refresh. If that commit has expired as well,
    nothing is guessed: a wrong guess would make `delete_stale` hide rows that are not stale.
    """
    head = commits[-1]
    if head.state is None:
        return None
    state = TableState.from_json(head.state, "")
    base = state.base or state.generation
    generations = [(one.batch, int((one.sync or {}).get("generation") or 0)) for one in commits]
    for (_, before), (batch, generation) in pairwise(generations):
        # If compaction has removed a whole batch, its generation is unknown.
        if 0 < before < base == generation:
            return batch
    return None


def _record(source: str, table: str, commit: Commit, run_id: str, is_complete: bool) -> SyncRecord:
    sync = dict(commit.sync or {})
    guessed = {
        "run_id": run_id,
        "source_name": source,
        "table_name": table,
        "batch": commit.batch,
        "mode": FULL_REFRESH if is_complete else INCREMENTAL,
    }
    return replace(
        SyncRecord.from_dict({**guessed, **sync}),
        status=RECOVERED,
        rows_appended=commit.rows,
        finished_at=commit.at,
        snapshot_id=commit.snapshot_id,
    )


FOLDER = "_cq_damaged"
"""Quarantined tables are in this folder of the schema's."""


def quarantine_table(lake: Lake, table: str) -> str | None:
    """Puts a table aside if any of its rows cannot be read; returns what was done, else None.

    Raises:
        TableError: it is damaged and cannot be put aside, or it cannot be read for other reasons.
    """
    if not table.startswith(PREFIX):
        return None
    with lock_table(lake, table):
        try:
            if lake.exists(table):
                lake.fresh(table)  # of a warehouse that was moved, nothing is damaged
                lake.frame(table).write.format("noop").mode("overwrite").save()
            return None
        except (Py4JError, PySparkException) as problem:
            found = translate_error(problem, f"table {lake.schema}.{table}")
            if not isinstance(found, DamagedError):
                raise found from problem
        where = _move_folder(lake, table) if _in_folders(lake) else _unregister(lake, table)
        return f"{found.what}. It starts over, empty; what was left of it {where}"


def _in_folders(lake: Lake) -> bool:
    kind = lake.spark.conf.get(f"spark.sql.catalog.{lake.catalog}.type", None)
    return (kind or "").lower() == "hadoop"


def _move_folder(lake: Lake, table: str) -> str:
    """Moves the table's folder; its metadata gets another name, as the catalog goes by that."""
    jvm: Any = lake.spark._jvm
    path = jvm.org.apache.hadoop.fs.Path
    warehouse = lake.spark.conf.get(f"spark.sql.catalog.{lake.catalog}.warehouse", None) or ""
    home = path(f"{warehouse.rstrip('/')}/{lake.schema}")
    files = home.getFileSystem(lake.spark._jsparkSession.sessionState().newHadoopConf())
    own = path(home, table)
    aside = path(path(home, FOLDER), f"{table}_{now():%Y%m%dT%H%M%S%f}")
    files.mkdirs(aside.getParent())
    moves = [(path(own, "metadata"), path(own, "metadata_damaged")), (own, aside)]
    for before, after in moves:
        if not files.rename(before, after):
            raise TableError(
                f"it is damaged, and {before} could not be moved to {after}",
                where=f"table {lake.schema}.{table}",
                remedy="Move it by hand while no loader runs, and run again",
            )
    return f"is in {aside.toUri().getPath()}"


def _unregister(lake: Lake, table: str) -> str:
    """Drops the table from its catalog without reading it, which `drop table` would do."""
    jvm: Any = lake.spark._jvm
    context: Any = lake.spark.sparkContext
    names = context._gateway.new_array(jvm.java.lang.String, 2)
    names[0], names[1] = lake.schema, table
    manager = lake.spark._jsparkSession.sessionState().catalogManager()
    catalog = manager.catalog(lake.catalog).icebergCatalog()
    catalog.dropTable(jvm.org.apache.iceberg.catalog.TableIdentifier.of(names), False)
    return "stays where it was: the catalog no longer lists it"

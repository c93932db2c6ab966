"""Rebuilds state and ledger from the commits of raw tables (``loader state rebuild``).

The commits are the source of truth; state and ledger are indexes of them. Attempts that appended
nothing and cursors that a user set exist only in these indexes, so they cannot be restored. Damaged
indexes are first moved to a quarantine folder.
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
from loader.lake.receipt import find_receipt
from loader.lake.system_tables import PREFIX
from loader.rows.window import BY_HAND
from loader.spark.error_translation import translate_error
from loader.state import StateRow, TableState
from loader.state.value import format_time
from loader.sync.ownership import is_loaded_by
from loader.sync.stores import Stores
from loader.sync.table_plan import FULL_REFRESH, INCREMENTAL


@dataclass(frozen=True)
class RebuildResult:
    """The result of rebuilding one table's state and ledger.

    Attributes:
        table: ``<source>.<table>``.
        batches: the number of batches in the raw table.
        states: the number of added state rows.
        syncs: the number of added ledger rows.
    """

    table: str
    batches: int
    states: int
    syncs: int


def find_source_tables(
    stores: Stores, names: Collection[str]
) -> tuple[list[str], dict[str, Exception]]:
    """Returns the raw tables of a source, and an error for each unreadable table.

    Args:
        names: the current and former names of the source.
    """
    loaded = []
    tables, unreadable = list_raw_tables(stores.lake)
    for table in tables:
        try:
            if is_loaded_by(stores.lake, table, tuple(names)):
                loaded.append(table)
        except Exception as problem:
            unreadable[table] = problem
    return loaded, unreadable


def list_source_commits(
    lake: Lake, table: str, names: Collection[str], known: Collection[int] = ()
) -> list[Commit]:
    """Returns the batches of one source in a raw table, oldest first.

    If compaction has removed all rows of a batch from a shared table, the batch's source is
    unknown. The batch is then assumed to come from the same source as the next batch.

    Args:
        known: the source's batches that are in the ledger. If their commits have expired, the
            result may lack them.
    """
    commits: list[Commit] = []
    unknown: list[Commit] = []
    owner = None
    for commit in all_commits(lake, table, known):
        unknown.append(commit)
        if commit.source is not None:
            owner = commit.source
            commits += unknown if owner in names else []
            unknown = []
    return commits + unknown if owner in names else commits


def rebuild_table(
    names: Sequence[str],
    table: str,
    commits: Sequence[Commit],
    stores: Stores,
    run_id: str,
    warn: Callable[[str], None],
    known: Collection[int] = (),
) -> RebuildResult:
    """Adds the rows that state and ledger lack from the commits. A second call adds nothing.

    The caller must have locked the table.

    Args:
        names: the source's current name, followed by its former names.
        known: batches that were recently found in the ledger. If there are commits of other
            batches, the ledger is read again.

    Raises:
        StateError: if the backend is unreachable, or if its value for this table cannot be parsed.
    """
    source = names[0]
    states = _add_states(f"{source}.{table}", commits, stores, warn)
    batches = {commit.batch for commit in commits} | set(known)
    if not {commit.batch for commit in commits} <= set(known):
        known = stores.ledger.batches(names, table).get(table, set())
    refresh = _find_refresh(commits)
    properties = stores.lake.properties(table)
    records = [
        replace(
            _make_record(source, table, commit, run_id, commit.batch == refresh),
            receipt=find_receipt(properties, commit.batch),
        )
        for commit in commits
        if commit.batch not in known
    ]
    stores.ledger.append_all(records)
    return RebuildResult(f"{source}.{table}", len(batches), states, len(records))


def _add_states(
    key: str, commits: Sequence[Commit], stores: Stores, warn: Callable[[str], None]
) -> int:
    backend = stores.state
    head = commits[-1]
    if head.state is None:
        return _add_state_without_cursor(key, head, stores, warn)
    states = [
        (stores.add_table_id(key, TableState.from_json(commit.state, key)), commit)
        for commit in commits
        if commit.state is not None
    ]
    stored = backend.latest(key)
    if stored:
        newest = states[-1][0]
        if all(_is_current(row, newest) for row in stored):
            return 0
        return int(backend.write(key, newest) is not None)
    rows = [
        StateRow(key, state.to_json(), version, format_time(commit.at) if commit.at else None)
        for version, (state, commit) in enumerate(states, start=1)
    ]
    backend.append(rows)
    return len(rows)


def _is_current(row: StateRow, committed: TableState) -> bool:
    """Returns whether a stored state matches the committed state, except for its checkpoint.

    A sync without new rows makes no commit, but may store a new checkpoint, such as a log position.
    """
    try:
        stored = TableState.from_json(row.value, row.key)
    except StateError:  # the committed state replaces unreadable states
        return False
    if stored.table_id not in (None, committed.table_id):  # it belongs to a table in another lake
        return False
    if stored.mark is None or BY_HAND in stored.mark:
        return stored == committed
    return replace(stored, mark=committed.mark) == committed


def _add_state_without_cursor(
    key: str, head: Commit, stores: Stores, warn: Callable[[str], None]
) -> int:
    """Adds a state without a cursor if necessary. Returns the number of added rows.

    The cursor is unknown if the newest commit has expired. A state without a cursor makes the next
    sync reread the whole table.
    """
    rows = stores.state.latest(key)
    if rows and {TableState.from_json(row.value, key).batch for row in rows} == {head.batch}:
        return 0  # the stored state belongs to this batch, and contains the cursor
    generation = int((head.sync or {}).get("generation") or 1)
    stores.store(key, TableState(batch=head.batch, generation=generation))
    warn(
        f"the commit of batch {head.batch} has expired, and its cursor with it: the next sync "
        "reads the table from the beginning, and drops the rows that the raw table already contains"
    )
    return 1


def _find_refresh(commits: Sequence[Commit]) -> int | None:
    """Returns the batch of the newest full refresh, or None if it is unknown.

    Only needed for batches whose commits have expired, because a commit contains its batch's mode.
    The newest commit's state contains the generation of the newest full refresh. The result is this
    generation's first batch. The highest generation would be wrong: a repair may have started it,
    and `delete_stale` would then hide valid rows.
    """
    head = commits[-1]
    if head.state is None:
        return None
    state = TableState.from_json(head.state, "")
    base = state.base or state.generation
    generations = [(each.batch, int((each.sync or {}).get("generation") or 0)) for each in commits]
    for (_, before), (batch, generation) in pairwise(generations):
        # If compaction has removed all rows of a batch, its generation is unknown (0).
        if 0 < before < base == generation:
            return batch
    return None


def _make_record(
    source: str, table: str, commit: Commit, run_id: str, is_refresh: bool
) -> SyncRecord:
    sync = dict(commit.sync or {})
    defaults = {
        "run_id": run_id,
        "source_name": source,
        "table_name": table,
        "batch": commit.batch,
        "mode": FULL_REFRESH if is_refresh else INCREMENTAL,
    }
    record = SyncRecord.from_dict({**defaults, **sync})
    record = record.describe_commit(RECOVERED, commit.rows, commit.snapshot_id)
    return replace(record, finished_at=commit.at)


FOLDER = "_cq_damaged"
"""The folder for quarantined tables, within the schema's folder."""


def quarantine_table(lake: Lake, table: str) -> str | None:
    """Quarantines a table if its rows are unreadable. Returns a message, or None if it is intact.

    Raises:
        TableError: if the table is damaged and cannot be moved, or is unreadable for another
            reason.
    """
    if not table.startswith(PREFIX):
        return None
    with lock_table(lake, table):
        try:
            if lake.exists(table):
                lake.fresh(table)  # raises a TableError if the warehouse was moved
                lake.frame(table).write.format("noop").mode("overwrite").save()
            return None
        except (Py4JError, PySparkException) as problem:
            error = translate_error(problem, f"table {lake.schema}.{table}")
            if not isinstance(error, DamagedError):
                raise error from problem
        result = _move_folder(lake, table) if lake.is_in_folders else _unregister(lake, table)
        return f"{error.what}. An empty table replaces it; its remaining files {result}"


def _move_folder(lake: Lake, table: str) -> str:
    """Moves the table's folder. Renames `metadata`, so that no catalog lists it as a table."""
    path = lake.jvm.org.apache.hadoop.fs.Path
    warehouse = lake.spark.conf.get(f"spark.sql.catalog.{lake.catalog}.warehouse", None) or ""
    home = path(f"{warehouse.rstrip('/')}/{lake.schema}")
    files = home.getFileSystem(lake.spark._jsparkSession.sessionState().newHadoopConf())
    folder = path(home, table)
    quarantine = path(path(home, FOLDER), f"{table}_{now():%Y%m%dT%H%M%S%f}")
    files.mkdirs(quarantine.getParent())
    moves = [
        (path(folder, "metadata"), path(folder, "metadata_damaged")),
        (folder, quarantine),
    ]
    for before, after in moves:
        if not files.rename(before, after):
            raise TableError(
                f"it is damaged, and {before} could not be moved to {after}",
                where=f"table {lake.schema}.{table}",
                remedy="Move it by hand while no loader runs, and run again",
            )
    return f"are in {quarantine.toUri().getPath()}"


def _unregister(lake: Lake, table: str) -> str:
    """Removes the table from its catalog. Unlike `drop table`, does not read the table."""
    context: Any = lake.spark.sparkContext
    names = context._gateway.new_array(lake.jvm.java.lang.String, 2)
    names[0], names[1] = lake.schema, table
    manager = lake.spark._jsparkSession.sessionState().catalogManager()
    catalog = manager.catalog(lake.catalog).icebergCatalog()
    catalog.dropTable(lake.jvm.org.apache.iceberg.catalog.TableIdentifier.of(names), False)
    return "are still in their folder, but the catalog no longer lists the table"

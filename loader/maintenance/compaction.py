"""``loader compact``: removes superseded versions, small files and old Iceberg snapshots.

For each table: remove, rewrite, expire. Each step is one atomic commit and correct by itself, so a
run that dies leaves the table as it was or smaller, never different. Compaction locks a raw table
like a sync, and state and ledger like an append: a loader may run beside it.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

from filelock import FileLock
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loader.errors import LockedError, TableError, sentence
from loader.lake.commits import keep_newest, newest_commit
from loader.lake.lake import FEW_MANIFESTS, Lake
from loader.lake.lease import Heartbeat
from loader.lake.ledger import now
from loader.lake.locks import create_lease, lock_table
from loader.lake.staging import discard_staged
from loader.maintenance import snapshot_expiry
from loader.maintenance.dependents import Dependent, Unreadable
from loader.maintenance.retention import Keep, SupersededVersions, find_superseded
from loader.maintenance.snapshot_expiry import describe_strays, sweep
from loader.maintenance.table_stats import TableStats, footprint
from loader.maintenance.version_removal import count, remove
from loader.rows.literal import text_literal
from loader.rows.version_order import BATCH, SEQUENCE, quote_name
from loader.spark.spark_version import can_rewrite_position_deletes

READ_BY_LOADERS = dt.timedelta(hours=1)
"""Iceberg snapshots of state and ledger stay at least this long: a loader may be reading one."""


_FEW = 5
"""With fewer data files, Iceberg rewrites only those with deleted rows, and large ones; fewer
manifests are not worth a commit."""

_ROW_GROUP = "write.parquet.row-group-size-bytes"
_ROW_GROUP_BYTES = 4 * 1024 * 1024  # smaller: many splits, and a long footer to read each time

_TARGET = 512 * 1024 * 1024
"""Iceberg's target size of a file in bytes, if the table's properties set none."""


@dataclass(frozen=True)
class Raw:
    """A raw table as `loader compact` sees it.

    Attributes:
        table: its name in the lake.
        name: ``source.table``.
        key: its primary key; empty if it has none.
        cursor: its cursor column.
        known: whether its source has described it; if not, its key is unknown.
        why: why it is not known.
    """

    table: str
    name: str
    key: tuple[str, ...] = ()
    cursor: str | None = None
    known: bool = False
    why: str = "it is not in the spec"


@dataclass(frozen=True)
class Upkeep:
    """The options of a compaction.

    Attributes:
        keep: which versions to keep; None removes none.
        expire_days: Iceberg snapshots younger than this stay.
        now: the time from which the days to keep are counted.
        dry_run: only report.
    """

    keep: Keep | None
    expire_days: int
    now: dt.datetime
    dry_run: bool = False

    def before_ms(self, at_least: dt.timedelta = dt.timedelta()) -> int:
        """Returns the time, in milliseconds since 1970, before which snapshots expire.

        Counts from the time of the call: with no days to keep, the files that compaction has just
        replaced go too.
        """
        age = max(dt.timedelta(days=self.expire_days), at_least)
        return int((now() - age).timestamp() * 1000)


@dataclass(frozen=True)
class CompactionResult:
    """Result of compacting one table; projected for a dry run.

    Attributes:
        removed: rows.
        expired: Iceberg snapshots.
        note: why rows stayed, and what was found of killed runs.
    """

    table: str
    before: TableStats
    after: TableStats
    removed: int
    expired: int
    note: str = ""


def compact_raw(
    lake: Lake, raw: Raw, upkeep: Upkeep, dependents: Callable[[], Sequence[Dependent]]
) -> CompactionResult:
    """Removes what a raw table no longer needs; holds its lock, so that no sync runs meanwhile.

    Args:
        dependents: lists the tables that are built from raw tables now.

    Raises:
        LockedError: if a run holds it; :func:`retry_locked_tables` waits for it.
    """
    if upkeep.dry_run:
        gone = _gone(lake, raw, upkeep, dependents)
        size = footprint(lake, raw.table)
        expired = len(snapshot_expiry.list_expirable(lake, raw.table, upkeep.before_ms()))
        note = _note(gone.note, describe_strays(size.strays, 0))
        return CompactionResult(raw.name, size, size, count(lake, gone), expired, note)
    lease = create_lease(lake, raw.table, f"table {raw.name}", uuid.uuid4().hex[:12])
    lease.acquire()
    try:
        with Heartbeat([lease]):
            was, before = _version(lake, raw.table), footprint(lake, raw.table)
            discard_staged(lake, raw.table)
            _complete(lake, raw.table, FEW_MANIFESTS)
            gone, rows = _count_superseded(lake, raw, upkeep, dependents)
            lease.confirm()
            removed = remove(lake, raw.table, gone, rows)
            rewrite_raw(lake, raw.table)
            keep_newest(lake, raw.table)
            expired = snapshot_expiry.expire(lake, raw.table, upkeep.before_ms())
            after, swept = _swept(lake, raw.table, was, before)
    finally:
        lease.release()
    return CompactionResult(raw.name, before, after, removed, expired, _note(gone.note, swept))


def compact_shared(lake: Lake, table: str, upkeep: Upkeep, order: str = "") -> CompactionResult:
    """Rewrites the small files of the state or the ledger, and expires its old snapshots.

    Args:
        order: the columns that runs select by. Sorted by them, in small row groups, a sync reads
            only its own table's rows, even after a year of runs of hundreds of tables.

    Raises:
        Timeout: if another process has been writing it for a minute.
    """
    before_ms = upkeep.before_ms(READ_BY_LOADERS)
    held: FileLock | nullcontext[None] = (
        nullcontext() if upkeep.dry_run else lock_table(lake, table)
    )
    with held:
        was, before = _version(lake, table), footprint(lake, table)
        if upkeep.dry_run:
            expired = len(snapshot_expiry.list_expirable(lake, table, before_ms))
            note = describe_strays(before.strays, 0)
            return CompactionResult(f"{lake.schema}.{table}", before, before, 0, expired, note)
        small = {_ROW_GROUP: str(_ROW_GROUP_BYTES)} if order else {}
        _complete(lake, table, {**FEW_MANIFESTS, **small})
        rewrite(lake, table, order)
        expired = snapshot_expiry.expire(lake, table, before_ms)
        after, swept = _swept(lake, table, was, before)
    return CompactionResult(f"{lake.schema}.{table}", before, after, 0, expired, swept)


def _complete(lake: Lake, table: str, wanted: Mapping[str, str]) -> None:
    """Sets properties that a table from an older version lacks; those that it has stay."""
    there = lake.properties(table)
    missing = {name: value for name, value in wanted.items() if name not in there}
    if missing:
        lake.set_properties(table, missing)


def _version(lake: Lake, table: str) -> str:
    """Returns the name of a table's current metadata; the next commit changes it."""
    return str(lake.handle(table).operations().current().metadataFileLocation())


def _swept(lake: Lake, table: str, was: str, before: TableStats) -> tuple[TableStats, str]:
    """Deletes files that killed runs left; returns the table's footprint after it, and a note.

    Args:
        was, before: its metadata and footprint when compaction began; often nothing has changed.
    """
    found = before if _version(lake, table) == was else footprint(lake, table)
    try:
        deleted = sweep(lake, table, found)
    except (Py4JError, PySparkException) as problem:
        # Everything the user asked for is done; the next compaction finds the files again.
        return found, f"files of killed runs could not be deleted: {sentence(problem)}"
    after = footprint(lake, table) if deleted else found
    return after, describe_strays(after.strays, deleted)


def _note(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def rewrite_raw(lake: Lake, table: str) -> None:
    """Rewrites all batches but the newest into few large files, without the removed rows.

    Sorts by batch and cursor, so that builds still read only batches that they have not merged,
    and syncs only the rows at their boundary. The newest batch, where both begin, keeps its files.
    """
    newest = newest_commit(lake, table)
    if newest.batch < 2:
        return
    known = {name.lower() for name in lake.frame(table).columns}
    cursor = json.loads(newest.state or "{}").get("cursor_field")
    cursors = [quote_name(cursor)] if cursor and cursor.lower() in known else []
    order = ", ".join(f"{one} asc nulls first" for one in (BATCH, *cursors, SEQUENCE))
    rewrite(lake, table, order, f"{BATCH} < {newest.batch}")


def rewrite(lake: Lake, table: str, order: str = "", where: str = "") -> None:
    """Merges small files, in one commit; writes nothing if there are few.

    Args:
        order: columns to sort by.
        where: rewrites only files that may hold such rows.
    """
    given = {"strategy": "sort", "sort_order": order} if order else {}
    given |= {"where": where} if where else {}
    files, deletes, size = _of_current(lake, table)
    target = int(lake.handle(table).properties().get("write.target-file-size-bytes") or _TARGET)
    if files >= _FEW or deletes or size >= target // 2:
        _call(lake, "rewrite_data_files", table, given, {"delete-file-threshold": "1"})
    if deletes and can_rewrite_position_deletes(lake.frame(table).schema):
        # Delete files that marked the removed rows may refer to data files that are gone.
        _call(lake, "rewrite_position_delete_files", table, options={"rewrite-all": "true"})
    handle = lake.handle(table)
    current = handle.currentSnapshot()
    if current is not None and len(current.allManifests(handle.io())) >= _FEW:
        _call(lake, "rewrite_manifests", table)


def _of_current(lake: Lake, table: str) -> tuple[int, int, int]:
    """Returns data files, delete files and bytes of the current snapshot, without a Spark job."""
    current = lake.handle(table).currentSnapshot()
    summary = current.summary() if current is not None else {}
    keys = ("total-data-files", "total-delete-files", "total-files-size")
    files, deletes, size = (int(summary.get(key) or 0) for key in keys)
    return files, deletes, size


def _count_superseded(
    lake: Lake, raw: Raw, upkeep: Upkeep, dependents: Callable[[], Sequence[Dependent]]
) -> tuple[SupersededVersions, int]:
    """Returns the rows to remove, and how many there are.

    Counting takes time, and models may be built during it: so who needs versions is read again
    after it.
    """
    gone = _gone(lake, raw, upkeep, dependents)
    while gone.sql is not None:
        rows = count(lake, gone)
        still = _gone(lake, raw, upkeep, dependents) if rows else gone
        if still == gone:
            return gone, rows
        gone = still
    return gone, 0


def _gone(
    lake: Lake, raw: Raw, upkeep: Upkeep, dependents: Callable[[], Sequence[Dependent]]
) -> SupersededVersions:
    if upkeep.keep is None:
        return SupersededVersions()
    if not raw.known:
        return SupersededVersions(note=f"{raw.why}, so its key is not known")
    try:
        kept_from_it = [one for one in dependents() if one.reads(f"{lake.schema}.{raw.table}")]
    except Unreadable as problem:
        return SupersededVersions(note=f"{problem.where} cannot be read: it may need any version")
    columns = {name.lower() for name in lake.frame(raw.table).columns}
    missing = [
        n for n in (*raw.key, *([raw.cursor] if raw.cursor else [])) if n.lower() not in columns
    ]
    if missing:
        raise TableError(
            f"it has no column {missing[0]!r}, which the spec names",
            where=f"table {raw.name}",
            remedy="Sync it once more, then compact it",
        )
    return find_superseded(
        lake, raw.table, raw.key, raw.cursor, upkeep.keep, kept_from_it, upkeep.now
    )


def _call(
    lake: Lake,
    procedure: str,
    table: str,
    given: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> None:
    arguments = {"table": lake.name(table), **(given or {})}
    listed = [f"{name} => {text_literal(value)}" for name, value in arguments.items()]
    if options:
        pairs = ", ".join(f"{text_literal(k)}, {text_literal(v)}" for k, v in options.items())
        listed.append(f"options => map({pairs})")
    lake.spark.sql(
        f"call {quote_name(lake.catalog)}.system.{procedure}({', '.join(listed)})"
    ).collect()


PATIENCE = 60.0
"""Seconds to wait for all locked tables together; starts again when one gets free."""

PAUSE = 0.2
"""Seconds between two attempts: much shorter than the gap between two runs of a loader."""

T = TypeVar("T")
R = TypeVar("R")


def retry_locked_tables(
    tables: Iterable[T], work: Callable[[T], R]
) -> Iterator[tuple[T, R | Exception]]:
    """Yields each table with its result, or with the exception that `work` raised.

    A :class:`LockedError` is retried until :data:`PATIENCE` seconds are over.
    """
    waiting = list(tables)
    until: float | None = None
    while waiting:
        held: list[T] = []
        last = until is not None and time.monotonic() >= until
        for table in waiting:
            try:
                result: R | Exception = work(table)
            except LockedError as locked:
                if not last:
                    held.append(table)
                    continue
                result = locked
            except Exception as problem:
                result = problem
            yield table, result
        if held:
            if until is None or len(held) < len(waiting):
                until = time.monotonic() + PATIENCE
            time.sleep(PAUSE)
        waiting = held

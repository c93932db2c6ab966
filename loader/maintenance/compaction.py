"""``loader compact``: removes superseded versions, small files and old Iceberg snapshots.

The steps for each table are: remove, rewrite, expire. Each step is one atomic commit, so a killed
compaction never changes the contents of a table. Compaction locks a raw table like a sync, and
state and ledger like an append: a loader may run at the same time.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from filelock import FileLock
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loader.errors import TableError, sentence
from loader.lake.commits import keep_newest, newest_commit
from loader.lake.lake import FEW_MANIFESTS, Lake
from loader.lake.ledger import now
from loader.lake.locks import Heartbeat, create_lease, lock_table
from loader.lake.staging import discard_staged
from loader.maintenance import snapshot_expiry
from loader.maintenance.dependents import Dependent, UnreadableTableError
from loader.maintenance.snapshot_expiry import delete_orphan_files, describe_orphans
from loader.maintenance.superseded_versions import (
    Keep,
    SupersededVersions,
    count_rows,
    find_superseded,
    remove_superseded,
)
from loader.maintenance.table_stats import TableStats, measure_table
from loader.rows.literal import text_literal
from loader.rows.version_order import BATCH, SEQUENCE, quote_name
from loader.spark.spark_version import can_rewrite_position_deletes

MIN_SNAPSHOT_AGE = dt.timedelta(hours=1)
"""Younger Iceberg snapshots of state and ledger never expire: a loader may be reading one."""

_MIN_FILES = 5
"""Fewer small data files are not rewritten, nor fewer manifests: they are not worth a commit."""

_ROW_GROUP = "write.parquet.row-group-size-bytes"
_ROW_GROUP_BYTES = 4 * 1024 * 1024  # smaller row groups make many splits and a long footer

_TARGET_BYTES = 512 * 1024 * 1024
"""Iceberg's default target size of a data file."""


@dataclass(frozen=True)
class Raw:
    """A raw table to compact.

    Attributes:
        table: the table's name in the lake.
        name: ``source.table``.
        key: the primary key; empty if there is none.
        cursor: the cursor column; None if there is none.
        known: whether key and cursor are known, because the source has described the table.
        why: why they are not known.
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
        keep: which versions to keep; None removes no versions.
        expire_days: the minimum age, in days, of Iceberg snapshots to expire.
        now: the time that :attr:`Keep.days` are subtracted from.
        dry_run: only reports what a compaction would do.
    """

    keep: Keep | None
    expire_days: int
    now: dt.datetime
    dry_run: bool = False

    def before_ms(self, min_age: dt.timedelta = dt.timedelta()) -> int:
        """Returns the time before which snapshots expire, in milliseconds since 1970.

        It depends on the time of the call: with `expire_days` 0, the files that this compaction has
        just replaced are deleted too.
        """
        age = max(dt.timedelta(days=self.expire_days), min_age)
        return int((now() - age).timestamp() * 1000)


@dataclass(frozen=True)
class CompactionResult:
    """The result of compacting one table; an estimate in a dry run.

    Attributes:
        removed: the number of removed rows.
        expired: the number of expired Iceberg snapshots.
        note: why no more rows were removed, and which files of killed runs were found.
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
    """Compacts a raw table; locks it, so that no sync runs at the same time.

    Args:
        dependents: lists the tables that are currently built from raw tables.

    Raises:
        LockedError: if a run holds the table; :func:`loader.lake.locks.retry_locked_tables`
            retries it.
    """
    if upkeep.dry_run:
        superseded = _find_superseded(lake, raw, upkeep, dependents)
        stats = measure_table(lake, raw.table)
        expired = len(snapshot_expiry.list_expirable(lake, raw.table, upkeep.before_ms()))
        note = _join_notes(superseded.note, describe_orphans(stats.orphans, 0))
        rows = count_rows(lake, superseded)
        return CompactionResult(raw.name, stats, stats, rows, expired, note)
    lease = create_lease(lake, raw.table, f"table {raw.name}", uuid.uuid4().hex[:12])
    lease.acquire()
    try:
        with Heartbeat([lease]):
            version, before = _read_version(lake, raw.table), measure_table(lake, raw.table)
            discard_staged(lake, raw.table)
            _set_missing_properties(lake, raw.table, FEW_MANIFESTS)
            superseded, rows = _find_and_count(lake, raw, upkeep, dependents)
            lease.confirm()
            removed = remove_superseded(lake, raw.table, superseded, rows)
            rewrite_raw(lake, raw.table)
            keep_newest(lake, raw.table)
            expired = snapshot_expiry.expire_snapshots(lake, raw.table, upkeep.before_ms())
            after, orphans_note = _delete_orphans(lake, raw.table, version, before)
    finally:
        lease.release()
    note = _join_notes(superseded.note, orphans_note)
    return CompactionResult(raw.name, before, after, removed, expired, note)


def compact_system_table(
    lake: Lake, table: str, upkeep: Upkeep, order: str = ""
) -> CompactionResult:
    """Compacts state or ledger: merges small files and expires old snapshots.

    Args:
        order: the columns that runs select by. With rows sorted by these columns, in small row
            groups, a sync reads few rows of other tables.

    Raises:
        Timeout: if another process has been writing the table for a minute.
    """
    before_ms = upkeep.before_ms(MIN_SNAPSHOT_AGE)
    lock: FileLock | nullcontext[None] = (
        nullcontext() if upkeep.dry_run else lock_table(lake, table)
    )
    with lock:
        version, before = _read_version(lake, table), measure_table(lake, table)
        if upkeep.dry_run:
            expired = len(snapshot_expiry.list_expirable(lake, table, before_ms))
            note = describe_orphans(before.orphans, 0)
            return CompactionResult(f"{lake.schema}.{table}", before, before, 0, expired, note)
        row_groups = {_ROW_GROUP: str(_ROW_GROUP_BYTES)} if order else {}
        _set_missing_properties(lake, table, {**FEW_MANIFESTS, **row_groups})
        rewrite(lake, table, order)
        expired = snapshot_expiry.expire_snapshots(lake, table, before_ms)
        after, note = _delete_orphans(lake, table, version, before)
    return CompactionResult(f"{lake.schema}.{table}", before, after, 0, expired, note)


def _set_missing_properties(lake: Lake, table: str, wanted: Mapping[str, str]) -> None:
    """Sets properties that a table from an older version lacks; does not change existing ones."""
    existing = lake.properties(table)
    missing = {name: value for name, value in wanted.items() if name not in existing}
    if missing:
        lake.set_properties(table, missing)


def _read_version(lake: Lake, table: str) -> str:
    """Returns the location of a table's current metadata file; each commit changes it."""
    return str(lake.handle(table).operations().current().metadataFileLocation())


def _delete_orphans(
    lake: Lake, table: str, version: str, before: TableStats
) -> tuple[TableStats, str]:
    """Deletes files of killed runs; returns the table's size afterwards, and a note.

    Args:
        version: the table's version when compaction began. If it has not changed, the table is not
            measured again.
        before: the table's size when compaction began.
    """
    stats = before if _read_version(lake, table) == version else measure_table(lake, table)
    try:
        deleted = delete_orphan_files(lake, table, stats)
    except (Py4JError, PySparkException) as problem:
        # Only a warning: the compaction itself is complete, and the next one tries again.
        return stats, f"files of killed runs could not be deleted: {sentence(problem)}"
    after = measure_table(lake, table) if deleted else stats
    return after, describe_orphans(after.orphans, deleted)


def _join_notes(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def rewrite_raw(lake: Lake, table: str) -> None:
    """Rewrites all batches but the newest into few large files, without the removed rows.

    The rows are sorted by batch and cursor, so that dbt builds read few rows besides new batches,
    and syncs few rows besides those at the window's lower bound.
    """
    newest = newest_commit(lake, table)
    if newest.batch < 2:
        return
    columns = {name.lower() for name in lake.frame(table).columns}
    cursor = json.loads(newest.state or "{}").get("cursor_field")
    cursors = [quote_name(cursor)] if cursor and cursor.lower() in columns else []
    order = ", ".join(f"{name} asc nulls first" for name in (BATCH, *cursors, SEQUENCE))
    rewrite(lake, table, order, f"{BATCH} < {newest.batch}")


def rewrite(lake: Lake, table: str, order: str = "", where: str = "") -> None:
    """Merges small files in one commit; writes nothing if there are few.

    Args:
        order: the columns to sort by.
        where: a condition; rewrites only files that may contain matching rows.
    """
    arguments = {"strategy": "sort", "sort_order": order} if order else {}
    arguments |= {"where": where} if where else {}
    files, deletes, size = _read_file_totals(lake, table)
    properties = lake.handle(table).properties()
    target = int(properties.get("write.target-file-size-bytes") or _TARGET_BYTES)
    if files >= _MIN_FILES or deletes or size >= target // 2:
        _call(lake, "rewrite_data_files", table, arguments, {"delete-file-threshold": "1"})
    if deletes and can_rewrite_position_deletes(lake.frame(table).schema):
        # The delete files of removed rows may refer to data files that no longer exist.
        _call(lake, "rewrite_position_delete_files", table, options={"rewrite-all": "true"})
    handle = lake.handle(table)
    current = handle.currentSnapshot()
    if current is not None and len(current.allManifests(handle.io())) >= _MIN_FILES:
        _call(lake, "rewrite_manifests", table)


def _read_file_totals(lake: Lake, table: str) -> tuple[int, int, int]:
    """Returns data files, delete files and bytes of the current snapshot, without a Spark job."""
    current = lake.handle(table).currentSnapshot()
    summary = current.summary() if current is not None else {}
    keys = ("total-data-files", "total-delete-files", "total-files-size")
    files, deletes, size = (int(summary.get(key) or 0) for key in keys)
    return files, deletes, size


def _find_and_count(
    lake: Lake, raw: Raw, upkeep: Upkeep, dependents: Callable[[], Sequence[Dependent]]
) -> tuple[SupersededVersions, int]:
    """Returns the rows to remove, and how many there are.

    Counting takes time, and a model may be built at the same time. So the dependents are read again
    afterwards, until they have not changed.
    """
    superseded = _find_superseded(lake, raw, upkeep, dependents)
    while superseded.sql is not None:
        rows = count_rows(lake, superseded)
        latest = _find_superseded(lake, raw, upkeep, dependents) if rows else superseded
        if latest == superseded:
            return superseded, rows
        superseded = latest
    return superseded, 0


def _find_superseded(
    lake: Lake, raw: Raw, upkeep: Upkeep, dependents: Callable[[], Sequence[Dependent]]
) -> SupersededVersions:
    if upkeep.keep is None:
        return SupersededVersions()
    if not raw.known:
        return SupersededVersions(note=f"{raw.why}, so its key is not known")
    try:
        readers = [each for each in dependents() if each.reads(f"{lake.schema}.{raw.table}")]
    except UnreadableTableError as problem:
        return SupersededVersions(note=f"{problem.where} cannot be read: it may need any version")
    columns = {name.lower() for name in lake.frame(raw.table).columns}
    required = (*raw.key, *([raw.cursor] if raw.cursor else []))
    missing = [name for name in required if name.lower() not in columns]
    if missing:
        raise TableError(
            f"it has no column {missing[0]!r}, which is in the spec",
            where=f"table {raw.name}",
            remedy="Sync it once more, then compact it",
        )
    return find_superseded(lake, raw.table, raw.key, raw.cursor, upkeep.keep, readers, upkeep.now)


def _call(
    lake: Lake,
    procedure: str,
    table: str,
    arguments: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> None:
    """Calls one of Iceberg's procedures for a table."""
    arguments = {"table": lake.name(table), **(arguments or {})}
    parts = [f"{name} => {text_literal(value)}" for name, value in arguments.items()]
    if options:
        pairs = ", ".join(f"{text_literal(k)}, {text_literal(v)}" for k, v in options.items())
        parts.append(f"options => map({pairs})")
    lake.spark.sql(
        f"call {quote_name(lake.catalog)}.system.{procedure}({', '.join(parts)})"
    ).collect()

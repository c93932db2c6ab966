"""Removes old versions and Iceberg snapshots, and merges small files (``loader compact``).

The steps for each table are: remove, rewrite, expire. Each step consists of atomic commits, so a
killed compaction leaves every table in a consistent state. Compaction uses the same locks as a sync
and an append, so a loader may run concurrently.
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
from loader.maintenance.snapshot_expiry import ORPHAN_AGE, describe_orphans
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
"""Younger snapshots of state and ledger are kept, because a loader may be reading them."""

_MIN_FILES = 5
"""The minimum number of small data files or manifests that justifies a rewrite."""

_ROW_GROUP = "write.parquet.row-group-size-bytes"
_ROW_GROUP_BYTES = 4 * 1024 * 1024  # smaller row groups cause many splits and a long footer

_TARGET_BYTES = 512 * 1024 * 1024
"""Iceberg's default target size of a data file."""


@dataclass(frozen=True)
class Raw:
    """A raw table to compact.

    Attributes:
        name: ``source.table``.
        key: the primary key; empty if there is none.
        known: whether key and cursor are known from the source's description of the table.
        why: the reason why key and cursor are unknown.
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
        keep: the versions to keep; None keeps all versions.
        expire_days: the minimum age of the Iceberg snapshots to expire, in days.
        now: the current time, from which days are counted back.
        dry_run: whether to report the effects of a compaction without changing tables.
    """

    keep: Keep | None
    expire_days: int
    now: dt.datetime
    dry_run: bool = False

    def before_ms(self, min_age: dt.timedelta = dt.timedelta()) -> int:
        """Returns the time before which snapshots expire, in milliseconds since 1970.

        Uses the actual time instead of `now`. So if `expire_days` is 0, even files that this
        compaction has just replaced are deleted.
        """
        age = max(dt.timedelta(days=self.expire_days), min_age)
        return int((now() - age).timestamp() * 1000)


@dataclass(frozen=True)
class CompactionResult:
    """The result of compacting one table, or an estimate in a dry run.

    Attributes:
        note: the reason why no more rows were removed, and the number of files that killed runs
            left behind.
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
    """Compacts a raw table. Locks the table, so that no sync runs concurrently.

    Raises:
        LockedError: if a run has locked the table; :func:`loader.lake.locks.retry_locked_tables`
            retries.
    """
    if upkeep.dry_run:
        superseded = _find_superseded(lake, raw, upkeep, dependents)
        stats = measure_table(lake, raw.table)
        expired = snapshot_expiry.count_expirable(lake, raw.table, upkeep.before_ms())
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
    """Merges small files and expires old snapshots of the state or ledger table.

    Args:
        order: the columns by which a sync selects rows. The rows are sorted by these columns and
            written in small row groups, so that a sync can skip most rows of other source tables.

    Raises:
        Timeout: if another process has been writing to the table for a minute.
    """
    before_ms = upkeep.before_ms(MIN_SNAPSHOT_AGE)
    lock: FileLock | nullcontext[None] = (
        nullcontext() if upkeep.dry_run else lock_table(lake, table)
    )
    with lock:
        version, before = _read_version(lake, table), measure_table(lake, table)
        if upkeep.dry_run:
            expired = snapshot_expiry.count_expirable(lake, table, before_ms)
            note = describe_orphans(before.orphans, 0)
            return CompactionResult(f"{lake.schema}.{table}", before, before, 0, expired, note)
        row_groups = {_ROW_GROUP: str(_ROW_GROUP_BYTES)} if order else {}
        _set_missing_properties(lake, table, {**FEW_MANIFESTS, **row_groups})
        rewrite(lake, table, order)
        expired = snapshot_expiry.expire_snapshots(lake, table, before_ms)
        after, note = _delete_orphans(lake, table, version, before)
    return CompactionResult(f"{lake.schema}.{table}", before, after, 0, expired, note)


def _set_missing_properties(lake: Lake, table: str, wanted: Mapping[str, str]) -> None:
    """Sets a table's missing properties. A table that an older loader created may lack some."""
    existing = lake.properties(table)
    missing = {name: value for name, value in wanted.items() if name not in existing}
    if missing:
        lake.set_properties(table, missing)


def _read_version(lake: Lake, table: str) -> str:
    """Returns the location of a table's current metadata file, which every commit changes."""
    return str(lake.handle(table).operations().current().metadataFileLocation())


def _delete_orphans(
    lake: Lake, table: str, version: str, before: TableStats
) -> tuple[TableStats, str]:
    """Deletes the files that killed runs left. Returns the table's new size and a note.

    Args:
        version: the table's version at the start of compaction. If the version has not changed
            since then, the table is not measured again.
    """
    stats = before if _read_version(lake, table) == version else measure_table(lake, table)
    try:
        age = ORPHAN_AGE.total_seconds()
        deleted = lake.delete_orphan_files(table, age) if stats.orphans else 0
    except (Py4JError, PySparkException) as problem:
        # Only a warning, because the compaction itself is complete, and the next one tries again.
        return stats, f"files of killed runs could not be deleted: {sentence(problem)}"
    after = measure_table(lake, table) if deleted else stats
    return after, describe_orphans(after.orphans, deleted)


def _join_notes(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def rewrite_raw(lake: Lake, table: str) -> None:
    """Rewrites all batches except the newest into a few large files.

    The new files omit the superseded versions that this compaction has removed. Their rows are
    sorted by batch and cursor, so a dbt build reads few rows from old batches, and a sync reads few
    rows below its window.
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
    """Merges small files, unless there are only a few.

    Args:
        where: a condition. Only files that may contain matching rows are rewritten.
    """
    arguments = {"strategy": "sort", "sort_order": order} if order else {}
    arguments |= {"where": where} if where else {}
    files, deletes, size = _read_file_totals(lake, table)
    properties = lake.handle(table).properties()
    target = int(properties.get("write.target-file-size-bytes") or _TARGET_BYTES)
    if files >= _MIN_FILES or deletes or size >= target // 2:
        _call(lake, "rewrite_data_files", table, arguments, {"delete-file-threshold": "1"})
    if deletes and can_rewrite_position_deletes(lake.frame(table).schema):
        # Removes entries for data files that no longer exist.
        _call(lake, "rewrite_position_delete_files", table, options={"rewrite-all": "true"})
    handle = lake.handle(table)
    current = handle.currentSnapshot()
    if current is not None and len(current.allManifests(handle.io())) >= _MIN_FILES:
        _call(lake, "rewrite_manifests", table)


def _read_file_totals(lake: Lake, table: str) -> tuple[int, int, int]:
    """Returns how many data files, delete files and bytes the current snapshot has."""
    current = lake.handle(table).currentSnapshot()
    summary = current.summary() if current is not None else {}
    keys = ("total-data-files", "total-delete-files", "total-files-size")
    files, deletes, size = (int(summary.get(key) or 0) for key in keys)
    return files, deletes, size


def _find_and_count(
    lake: Lake, raw: Raw, upkeep: Upkeep, dependents: Callable[[], Sequence[Dependent]]
) -> tuple[SupersededVersions, int]:
    """Returns the rows to remove and their number.

    A model may be built during the count, so the list of models is read again afterwards. If it has
    changed, the rows are counted again.
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
        return SupersededVersions(
            note=f"{problem.where} cannot be read, so it may need any version"
        )
    columns = {name.lower() for name in lake.frame(raw.table).columns}
    required = (*raw.key, *([raw.cursor] if raw.cursor else []))
    missing = [name for name in required if name.lower() not in columns]
    if missing:
        raise TableError(
            f"it has no column {missing[0]!r}, which is in the spec",
            where=f"table {raw.name}",
            remedy="Sync the table, then compact it",
        )
    return find_superseded(lake, raw.table, raw.key, raw.cursor, upkeep.keep, readers, upkeep.now)


def _call(
    lake: Lake,
    procedure: str,
    table: str,
    arguments: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> None:
    arguments = {"table": lake.name(table), **(arguments or {})}
    parts = [f"{name} => {text_literal(value)}" for name, value in arguments.items()]
    if options:
        pairs = ", ".join(f"{text_literal(k)}, {text_literal(v)}" for k, v in options.items())
        parts.append(f"options => map({pairs})")
    lake.spark.sql(
        f"call {quote_name(lake.catalog)}.system.{procedure}({', '.join(parts)})"
    ).collect()

"""The append-only ledger ``_cq_syncs`` with one row per attempt to sync a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from loader import __version__
from loader.lake.system_tables import (
    add_missing_columns,
    append_rows,
    describe_remedy,
    ensure_table,
    get_cache,
    reports_damage,
)
from loader.rows.literal import text_literal

if TYPE_CHECKING:
    from loader.lake.iceberg_rows import Records
    from loader.lake.lake import Lake

TABLE = "_cq_syncs"
REMEDY = describe_remedy("All syncs into this schema", TABLE)
_reports_damage = reports_damage(TABLE, REMEDY)
SYNCED = "synced"
NOTHING_NEW = "nothing new"
FAILED = "failed"
LOCKED = "locked"
RECOVERED = "recovered"
RECONCILE = "reconcile"
"""The `mode` of a repair's batch."""


@dataclass(frozen=True)
class SyncRecord:
    """A row of the ledger. The ledger's columns are these fields, in this order.

    Attributes:
        batch: the committed batch; None if nothing was committed.
        cursor_low: the window's inclusive lower bound, which lookback and late rows may have
            lowered; None if all rows were read.
        cursor_high: the cursor stored after this attempt.
        read_from, read_to: the inclusive bounds of the range that was read completely. Late rows
            are outside this range. None means unbounded.
        rows_read: the number of rows that the source returned. Each was either appended or found to
            be redelivered.
        error: the error message, on one line and without secrets.
        log_bytes: the size of the log that the source retained for the loader at the start of the
            attempt. None unless `sync_mode` is `cdc`.
        rows_below_cursor: the number of appended rows whose cursor is below the cursor that was
            stored before this attempt. A query that selects rows `>=` or `>` the stored cursor
            would miss these rows. None if the attempt did not start from a stored cursor, or did
            not compare the rows.
        rows_at_cursor: the number of appended rows whose cursor equals the stored cursor. A query
            that selects rows `>` the stored cursor would miss these rows.
        rows_cursor_unmoved: how many of the rows in these two counts are updates that did not
            change the cursor. For each of these rows, the newest version already in the raw table
            has the same key and cursor but different values.
        complete_until: a time on the source's clock. The raw table contains all rows that were
            committed up to this time. None if unknown.
        receipt: the signed receipt of the batch (:mod:`loader.lake.receipt`).
    """

    run_id: str
    source_name: str
    table_name: str
    batch: int | None = None
    generation: int | None = None
    mode: str = "incremental"
    status: str = SYNCED
    cursor_field: str | None = None
    cursor_type: str | None = None
    cursor_low: str | None = None
    cursor_high: str | None = None
    rows_read: int | None = None
    rows_appended: int | None = None
    rows_redelivered: int | None = None
    rows_null_cursor: int | None = None
    lookback: str | None = None
    started_at: dt.datetime | None = None
    finished_at: dt.datetime | None = None
    snapshot_id: int | None = None
    schema_changes: str | None = None
    error: str | None = None
    loader_version: str = __version__
    read_from: str | None = None
    read_to: str | None = None
    log_bytes: int | None = None
    rows_below_cursor: int | None = None
    rows_at_cursor: int | None = None
    rows_cursor_unmoved: int | None = None
    complete_until: dt.datetime | None = None
    receipt: str | None = field(default=None, repr=False)

    @property
    def table(self) -> tuple[str, str]:
        """The source and the raw table. Several sources may load the same raw table."""
        return self.source_name, self.table_name

    def finish(self, **changes: Any) -> SyncRecord:
        """Returns a copy with these changes, and with the current time as the end time."""
        return replace(self, finished_at=now(), **changes)

    def describe_commit(self, status: str, rows: int | None, snapshot_id: int | None) -> SyncRecord:
        """Returns a copy that describes a published batch.

        Args:
            rows: the number of rows in the batch's commit; None if it is unknown. Each row that was
                read is either among them or redelivered.
        """
        rows_read = self.rows_read
        if rows is not None and self.rows_redelivered is not None:
            rows_read = rows + self.rows_redelivered
        return replace(
            self, status=status, rows_appended=rows, rows_read=rows_read, snapshot_id=snapshot_id
        )

    def plus(self, later: SyncRecord) -> SyncRecord:
        """Returns the sum of this row and a later row of the same run, for display."""

        def add(name: str) -> int:
            return (getattr(self, name) or 0) + (getattr(later, name) or 0)

        def add_known(name: str) -> int | None:
            return None if getattr(later, name) is None else add(name)

        newer = later if later.batch is not None or self.batch is None else self
        return replace(
            newer,
            rows_read=add("rows_read"),
            rows_appended=add("rows_appended"),
            rows_redelivered=add("rows_redelivered"),
            rows_below_cursor=add_known("rows_below_cursor"),
            rows_at_cursor=add_known("rows_at_cursor"),
            rows_cursor_unmoved=add_known("rows_cursor_unmoved"),
            complete_until=later.complete_until,
            started_at=self.started_at,
            finished_at=later.finished_at,
        )

    def to_dict(self) -> dict[str, Any]:
        """Maps names to values. Times are ISO strings in UTC."""
        return {
            key: value.isoformat() if isinstance(value, dt.datetime) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SyncRecord:
        """Creates a record from a commit's values. Ignores keys that only later versions write."""
        names = {each.name for each in fields(cls)}
        known_values = {key: value for key, value in values.items() if key in names}
        for key in ("started_at", "finished_at", "complete_until"):
            if isinstance(known_values.get(key), str):
                known_values[key] = dt.datetime.fromisoformat(known_values[key])
        return cls(**known_values)


# If there are more rows or files than this, a Spark job is faster than Iceberg's API.
_FEW_ROWS = 50_000
_FEW_FILES = 100
_ALL = ("", "")
"""A marker: the cache contains this key only if it contains the batches of all tables."""

_TYPES = {"str": "string", "int": "bigint", "dt.datetime": "timestamp"}
COLUMNS = {one.name: _TYPES[str(one.type).partition(" ")[0]] for one in fields(SyncRecord)}
"""The ledger's columns with their types, in order."""


class Ledger:
    """Reads and writes the ledger of one lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    @_reports_damage
    def prepare(self) -> None:
        """Creates the ledger's table if it is missing, and adds its missing columns."""
        schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        add_missing_columns(self.lake, TABLE, ensure_table(self.lake, TABLE, schema), COLUMNS)

    def append(self, record: SyncRecord) -> None:
        self.append_all([record])

    @_reports_damage
    def append_all(self, records: Sequence[SyncRecord]) -> None:
        """Durably appends rows in one commit."""

        def note(cache: dict[Any, Any]) -> None:
            for new_record in records:
                key = new_record.source_name, new_record.table_name
                if new_record.batch is not None and (key in cache or _ALL in cache):
                    cache[key] = max(cache.get(key, 0), new_record.batch)

        if records:
            append_rows(self.lake, TABLE, [asdict(record) for record in records], note)

    @_reports_damage
    def batches(self, sources: Sequence[str], table: str | None = None) -> dict[str, set[int]]:
        """Returns the batch numbers that the ledger contains for each table.

        Args:
            sources: the sources to read; empty means all sources.
            table: the table to read; None means all tables.
        """
        condition = f"and table_name = {text_literal(table)}" if table is not None else ""
        rows = self.lake.spark.sql(
            f"""
            select table_name, collect_set(batch) as batches
            from {self.lake.name(TABLE)}
            where batch is not null {condition} {_among(sources)}
            group by table_name
            """
        ).collect()
        return {row["table_name"]: set(row["batches"]) for row in rows}

    @_reports_damage
    def last_batch(self, table: str, sources: Sequence[str] = (), since: int = 0) -> int:
        """Returns a table's highest batch number in the ledger, or 0 if there is none.

        Args:
            sources: the sources to read; empty means all sources.
            since: the lowest batch number to consider. A higher number skips more files.
        """
        records = self.lake.records(TABLE)
        cache = get_cache(records.handle)

        def last(equal: Mapping[str, str]) -> int:
            rows = records.select(["batch"], equal, {"batch": since})
            return max((row["batch"] for row in rows), default=0)

        if not sources:
            return last({"table_name": table})
        for source in sources:
            key = source, table
            if key in cache or _ALL in cache:
                continue
            batch = last({"table_name": table, "source_name": source})
            if batch:  # 0 if all batches are below `since`
                cache[key] = batch
        return max(int(cache.get((source, table), 0)) for source in sources)

    @_reports_damage
    def last_batches(self) -> Mapping[tuple[str, str], int]:
        """Returns the highest batch number in the ledger for each source and table.

        Uses the cache unless another process has written to the ledger since the last call.
        """
        records = self.lake.records(TABLE)
        cache = get_cache(records.handle)
        if _ALL in cache:
            return cache
        few = records.rows() <= _FEW_ROWS and records.files() <= _FEW_FILES
        cache |= self._by_iceberg(records) if few else self._by_spark()
        cache[_ALL] = 0
        return cache

    @_reports_damage
    def read_receipts(self, table: str | None = None, sources: Sequence[str] = ()) -> list[str]:
        """Returns the receipts in the order of their batches.

        Args:
            table: the table to read; None means all tables.
            sources: the sources to read; empty means all sources.
        """
        condition = f"and table_name = {text_literal(table)}" if table is not None else ""
        if not self.lake.exists(TABLE) or "receipt" not in self.lake.frame(TABLE).columns:
            return []
        rows = self.lake.spark.sql(
            f"""
            select distinct table_name, batch, receipt
            from {self.lake.name(TABLE)}
            where receipt is not null {condition} {_among(sources)}
            order by table_name, batch
            """
        ).collect()
        return [row["receipt"] for row in rows]

    def _by_iceberg(self, records: Records) -> dict[tuple[str, str], int]:
        """Computes :meth:`last_batches` without a Spark job, which may take seconds to start."""
        batches: dict[tuple[str, str], int] = {}
        for row in records.select(["source_name", "table_name", "batch"], {}, {"batch": 0}):
            key = row["source_name"], row["table_name"]
            batches[key] = max(batches.get(key, 0), row["batch"])
        return batches

    def _by_spark(self) -> dict[tuple[str, str], int]:
        rows = self.lake.spark.sql(
            f"""
            select source_name, table_name, max(batch) as batch
            from {self.lake.name(TABLE)}
            where batch is not null
            group by source_name, table_name
            """
        ).collect()
        return {(row["source_name"], row["table_name"]): row["batch"] for row in rows}

    @_reports_damage
    def newest(self) -> list[dict[str, Any]]:
        """Returns one row per table, for `status`.

        It contains totals, and values of the last attempt and of the last successful attempt.
        """
        if not self.lake.exists(TABLE):
            return []
        # If an older version created the ledger, it lacks these columns until the next run.
        existing = self.lake.frame(TABLE).columns
        log_bytes, below, at, unmoved, complete = (
            name if name in existing else f"cast(null as {COLUMNS[name]})"
            for name in (
                "log_bytes",
                "rows_below_cursor",
                "rows_at_cursor",
                "rows_cursor_unmoved",
                "complete_until",
            )
        )
        rows = self.lake.spark.sql(
            f"""
            select
                source_name,
                table_name,
                max_by(batch, batch) as batch,
                sum(rows_appended) as rows,
                sum({below}) as rows_below_cursor,
                sum({at}) as rows_at_cursor,
                sum({unmoved}) as rows_cursor_unmoved,
                unix_micros(
                    max_by({complete}, started_at) filter (where {complete} is not null)
                ) as complete_micros,
                max_by(cursor_high, finished_at)
                    filter (where status in ('synced', 'nothing new', 'recovered')) as cursor,
                unix_micros(
                    max(finished_at) filter (where status in ('synced', 'nothing new', 'recovered'))
                ) as synced_micros,
                max_by(status, finished_at) as status,
                max_by(struct({log_bytes} as log_bytes), finished_at).log_bytes as log_bytes,
                max_by(struct(error), finished_at).error as error
            from {self.lake.name(TABLE)}
            group by source_name, table_name
            order by source_name, table_name
            """
        ).collect()
        return [row.asDict() for row in rows]


def _among(sources: Sequence[str]) -> str:
    listed = ", ".join(map(text_literal, sources))
    return f"and source_name in ({listed})" if sources else ""


def now() -> dt.datetime:
    """Returns this machine's current time in UTC."""
    return dt.datetime.now(dt.timezone.utc)

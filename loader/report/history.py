"""Reads the syncs and comparisons of the last few days, as sums for each period.

A table may have a sync every minute, so the readers return sums instead of single syncs. Both
readers, pyiceberg and Spark, return the same sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader.lake.ledger import TABLE as LEDGER
from loader.lake.ledger import Ledger
from loader.lake.system_tables import RECONCILED
from loader.sync.status_readers import FolderLedger
from loader.sync.table_comparisons import LakeComparisons

if TYPE_CHECKING:
    import pyarrow as pa

    from loader.lake.folder_tables import FolderTables
    from loader.lake.lake import Lake
    from loader.sync.status_readers import StatusReaders
    from loader.sync.table_comparisons import TableComparison

HOUR = 3600 * 1_000_000
DAY = 24 * HOUR
"""Lengths of time in microseconds."""

_OLDEST_CLOCK = 366 * DAY
"""After a failover, `complete_until` is 1970-01-02, which means that the time is unknown."""

_COUNTS = (
    "rows_appended",
    "rows_redelivered",
    "rows_below_cursor",
    "rows_at_cursor",
    "rows_cursor_unmoved",
)
_TEXTS = ("source_name", "table_name", "status", "error", "schema_changes")
_TIMES = ("started_at", "finished_at", "complete_until")
_SYNC_COLUMNS = {
    **dict.fromkeys(_TEXTS, "string"),
    **dict.fromkeys(_COUNTS, "long"),
    **dict.fromkeys(_TIMES, "timestamptz"),
}
_MISSED = ("missed_updates", "missed_rows", "missed_deletes")
_COMPARISON_COLUMNS = {
    "source_name": "string",
    "table_name": "string",
    "verified_at": "timestamptz",
    **dict.fromkeys((*_MISSED, "batch"), "long"),
    "repaired": "boolean",
}


@dataclass(frozen=True)
class SyncSum:
    """The syncs of a table in one period with the same status, error and schema changes.

    Times are in microseconds since 1970.

    Attributes:
        period: the number of the period: the time divided by the period's length.
        first: the start of the first sync.
        last: the end of the last sync.
        lag: the longest time from a sync's `complete_until` to its end; None if unknown.
    """

    source_name: str
    table_name: str
    period: int
    status: str
    error: str | None
    schema_changes: str | None
    syncs: int
    first: int
    last: int
    micros: int = 0
    longest: int = 0
    lag: int | None = None
    rows_appended: int = 0
    rows_redelivered: int = 0
    rows_below_cursor: int = 0
    rows_at_cursor: int = 0
    rows_cursor_unmoved: int = 0


@dataclass(frozen=True)
class ComparisonSum:
    """The comparisons of a table with its source in one period.

    Attributes:
        buckets: the number of compared buckets of keys.
        last: the time of the last comparison, in microseconds since 1970.
        repaired: the number of differences that were repaired.
    """

    source_name: str
    table_name: str
    period: int
    buckets: int
    last: int
    missed_updates: int
    missed_rows: int
    missed_deletes: int
    repaired: int

    @property
    def missed(self) -> int:
        return self.missed_updates + self.missed_rows + self.missed_deletes


@dataclass(frozen=True)
class SourceHistory:
    """The history of a source's tables.

    Attributes:
        name: the source's current name.
        names: the source's current and former names.
        newest: the rows of :meth:`loader.lake.ledger.Ledger.newest` for this source.
        compared: the last comparison of each table, keyed by source and table.
    """

    name: str
    names: tuple[str, ...]
    newest: Sequence[Mapping[str, Any]]
    compared: Mapping[tuple[str, str], TableComparison] = field(default_factory=dict)
    syncs: Sequence[SyncSum] = ()
    comparisons: Sequence[ComparisonSum] = ()


def read_history(progress: Sequence[StatusReaders], since: int, length: int) -> list[SourceHistory]:
    """Reads the history of all sources.

    Args:
        since: the start of the first period, in microseconds since 1970.
        length: the length of a period in microseconds.
    """
    newest: dict[str, list[dict[str, Any]]] = {}
    compared: dict[str, Mapping[tuple[str, str], TableComparison]] = {}
    syncs: dict[str, list[SyncSum]] = {}
    comparisons: dict[str, list[ComparisonSum]] = {}
    histories = []
    for readers in progress:
        schema, names = readers.schema, readers.names
        if schema not in newest:  # several sources may share a schema
            newest[schema] = readers.ledger.newest()
            compared[schema] = readers.comparisons.by_table()
            if isinstance(readers.ledger, FolderLedger):
                tables = readers.ledger.tables
                syncs[schema] = _sum_folder_syncs(tables, since, length)
                comparisons[schema] = _sum_folder_comparisons(tables, since, length)
            else:
                assert isinstance(readers.ledger, Ledger)
                assert isinstance(readers.comparisons, LakeComparisons)
                lake = readers.comparisons.lake
                syncs[schema] = _sum_lake_syncs(lake, since, length)
                comparisons[schema] = _sum_lake_comparisons(lake, since, length)
        histories.append(
            SourceHistory(
                readers.source.name,
                names,
                [row for row in newest[schema] if row["source_name"] in names],
                compared[schema],
                [each for each in syncs[schema] if each.source_name in names],
                [each for each in comparisons[schema] if each.source_name in names],
            )
        )
    return histories


def _sum_folder_syncs(tables: FolderTables, since: int, length: int) -> list[SyncSum]:
    rows = tables.read(LEDGER, _SYNC_COLUMNS)
    if rows is None:
        return []
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in _TIMES:
        rows = _replace_column(rows, name, rows[name].cast(pa.int64()))
    rows = _replace_column(rows, "started_at", pc.coalesce(rows["started_at"], rows["finished_at"]))
    rows = rows.filter(pc.greater_equal(rows["finished_at"], since))
    known = pc.greater(rows["complete_until"], _OLDEST_CLOCK)
    lag = pc.subtract(rows["finished_at"], rows["complete_until"])
    micros = pc.subtract(rows["finished_at"], rows["started_at"])
    rows = rows.append_column("lag", pc.if_else(known, lag, None))
    rows = rows.append_column("micros", micros)
    rows = rows.append_column("period", pc.divide(rows["finished_at"], length))
    keys = ["source_name", "table_name", "period", "status", "error", "schema_changes"]
    sums = rows.group_by(keys, use_threads=False).aggregate(
        [
            ([], "count_all"),
            ("started_at", "min"),
            ("finished_at", "max"),
            ("micros", "sum"),
            ("micros", "max"),
            ("lag", "max"),
            *((name, "sum") for name in _COUNTS),
        ]
    )
    sums = sums.select(
        [
            *keys,
            *("count_all", "started_at_min", "finished_at_max", "micros_sum", "micros_max"),
            "lag_max",
            *(f"{name}_sum" for name in _COUNTS),
        ]
    )
    return _sort_syncs(SyncSum(*_fill_counts(row.values())) for row in sums.to_pylist())


def _sum_lake_syncs(lake: Lake, since: int, length: int) -> list[SyncSum]:
    if not lake.exists(LEDGER):
        return []
    # A ledger that an older version created lacks newer columns until the next run.
    existing = lake.frame(LEDGER).columns
    counts = ", ".join(
        f"sum({name})" if name in existing else "cast(null as bigint)" for name in _COUNTS
    )
    complete = "complete_until" if "complete_until" in existing else "cast(null as timestamp)"
    rows = lake.spark.sql(
        f"""
        select
            source_name,
            table_name,
            period,
            status,
            error,
            schema_changes,
            count(*),
            min(started),
            max(finished),
            sum(finished - started),
            max(finished - started),
            max(case when complete > {_OLDEST_CLOCK} then finished - complete end),
            {counts}
        from (
            select
                *,
                unix_micros(coalesce(started_at, finished_at)) as started,
                unix_micros(finished_at) as finished,
                unix_micros({complete}) as complete,
                unix_micros(finished_at) div {length} as period
            from {lake.name(LEDGER)}
            where finished_at >= timestamp_micros({since})
        )
        group by source_name, table_name, period, status, error, schema_changes
        """
    ).collect()
    return _sort_syncs(SyncSum(*_fill_counts(tuple(row))) for row in rows)


def _sum_folder_comparisons(tables: FolderTables, since: int, length: int) -> list[ComparisonSum]:
    rows = tables.read(RECONCILED, _COMPARISON_COLUMNS)
    if rows is None:
        return []
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = _replace_column(rows, "verified_at", rows["verified_at"].cast(pa.int64()))
    rows = rows.filter(pc.greater_equal(rows["verified_at"], since))
    missed = pc.add(rows["missed_updates"], pc.add(rows["missed_rows"], rows["missed_deletes"]))
    partly = pc.subtract(missed, pc.if_else(rows["repaired"], 0, rows["missed_deletes"]))
    rows = rows.append_column("fixed", pc.if_else(pc.is_null(rows["batch"]), 0, partly))
    rows = rows.append_column("period", pc.divide(rows["verified_at"], length))
    keys = ["source_name", "table_name", "period"]
    sums = rows.group_by(keys, use_threads=False).aggregate(
        [
            ([], "count_all"),
            ("verified_at", "max"),
            *((name, "sum") for name in (*_MISSED, "fixed")),
        ]
    )
    names = ("count_all", "verified_at_max", *(f"{name}_sum" for name in (*_MISSED, "fixed")))
    return _sort_comparisons(
        ComparisonSum(*row.values()) for row in sums.select([*keys, *names]).to_pylist()
    )


def _sum_lake_comparisons(lake: Lake, since: int, length: int) -> list[ComparisonSum]:
    if not lake.exists(RECONCILED):
        return []
    missed = " + ".join(_MISSED)
    rows = lake.spark.sql(
        f"""
        select
            source_name,
            table_name,
            period,
            count(*),
            unix_micros(max(verified_at)),
            {", ".join(f"sum({name})" for name in _MISSED)},
            sum(
                case
                    when batch is null then 0
                    when repaired then {missed}
                    else missed_updates + missed_rows
                end
            )
        from (
            select *, unix_micros(verified_at) div {length} as period
            from {lake.name(RECONCILED)}
            where verified_at >= timestamp_micros({since})
        )
        group by source_name, table_name, period
        """
    ).collect()
    return _sort_comparisons(ComparisonSum(*row) for row in rows)


def _replace_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def _fill_counts(values: Any) -> list[Any]:
    listed = list(values)
    start = len(listed) - len(_COUNTS)
    counts = [count or 0 for count in listed[start:]]
    return [*listed[:9], listed[9] or 0, listed[10] or 0, listed[11], *counts]


def _sort_syncs(sums: Any) -> list[SyncSum]:
    return sorted(sums, key=lambda each: (each.source_name, each.table_name, each.last))


def _sort_comparisons(sums: Any) -> list[ComparisonSum]:
    return sorted(sums, key=lambda each: (each.source_name, each.table_name, each.period))

"""Reads state, ledger and comparisons for commands that start no run, without Spark if possible.

`loader init` creates a lake in a local folder. In a lake of this kind, pyiceberg reads these tables
in less than a second. Reading other lakes takes a Spark session. Both kinds of readers return the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader.lake.folder_tables import FolderTables, SparkNeededError, find_warehouse
from loader.lake.ledger import COLUMNS, NOTHING_NEW, RECOVERED, SYNCED, TABLE
from loader.lake.system_tables import STATES
from loader.spec.plugins import LakeDestination
from loader.state import StateBackend, StateRow
from loader.state.opening import open_state
from loader.state.value import format_time
from loader.sync.table_comparisons import FolderComparisons, LakeComparisons

if TYPE_CHECKING:
    import pyarrow as pa

    from loader.lake.lake import Lake
    from loader.lake.ledger import Ledger
    from loader.spark.profile import Profile
    from loader.spec.plugins import DestinationSpec, SourceSpec
    from loader.spec.spec import Spec
    from loader.sync.pipeline import Pipeline

_STATE = {"key": "string", "value": "string", "version": "long", "updated_at": "timestamptz"}
_ICEBERG = {"bigint": "long", "timestamp": "timestamptz", "string": "string"}
_NEWEST = ("finished_at", "status", "log_bytes", "error")
_LEDGER = {
    name: _ICEBERG[COLUMNS[name]]
    for name in (
        "source_name",
        "table_name",
        "batch",
        "cursor_high",
        "rows_appended",
        "rows_below_cursor",
        "rows_at_cursor",
        "rows_cursor_unmoved",
        "started_at",
        "complete_until",
        *_NEWEST,
    )
}


@dataclass(frozen=True)
class StatusReaders:
    """The readers of a source's state, ledger and comparisons.

    Attributes:
        schema: the schema of the ledger.
    """

    source: SourceSpec
    schema: str
    state: StateBackend | FolderState
    ledger: Ledger | FolderLedger
    comparisons: LakeComparisons | FolderComparisons

    @property
    def names(self) -> tuple[str, ...]:
        """The source's current and former names. The state may be stored under a former name."""
        return self.source.name, *self.source.formerly


def list_readers_by_spark(pipeline: Pipeline) -> list[StatusReaders]:
    """Returns readers that use Spark, for all sources of a pipeline."""
    readers = []
    for source, _ in pipeline.sources:
        stores = pipeline.open_stores(source)
        lake = stores.lake
        readers.append(
            StatusReaders(source, lake.schema, stores.state, stores.ledger, LakeComparisons(lake))
        )
    return readers


def list_readers_in_folder(spec: Spec, profile: Profile) -> list[StatusReaders]:
    """Returns readers that do not use Spark, for all sources of a spec.

    The readers' methods may raise SparkNeededError, too.

    Raises:
        SparkNeededError: if other programs may have pushed tables, which only Spark can list.
        SpecError: if a state backend's package is missing or its options are wrong.
    """
    warehouse = find_warehouse(profile.conf)
    lakes = [each.lake for each in spec.destinations if isinstance(each, LakeDestination)]
    pushed = (FolderTables(warehouse, lake.schema_).exists(STATES) for lake in lakes)
    if not spec.sources or (warehouse is not None and any(pushed)):
        raise SparkNeededError("other programs may have pushed tables")
    return [_build_readers(spec, source, warehouse) for source in spec.sources]


def list_state_readers(readers: Iterable[StatusReaders]) -> list[StateBackend | FolderState]:
    """Returns one reader for each state backend that the sources use."""
    backends = {each.source.state_location: each.state for each in reversed([*readers])}
    return list(backends.values())[::-1]


def _build_readers(spec: Spec, source: SourceSpec, warehouse: Any) -> StatusReaders:
    schema = spec.schema_of(source)
    tables = spec.destination(source.destinations[0]).lake

    def refuse(destination: DestinationSpec) -> Lake:
        raise SparkNeededError("its state is in a table")

    state: StateBackend | FolderState
    try:
        state = open_state(spec, source, refuse)
    except SparkNeededError:
        lake = spec.destination(source.state_destination).lake
        if (lake.profile, lake.target) != (tables.profile, tables.target):
            raise
        state_schema = spec.state_schema_of(source) or schema
        state = FolderState(FolderTables(warehouse, state_schema), source.state_table)
    folder = FolderTables(warehouse, schema)
    return StatusReaders(source, schema, state, FolderLedger(folder), FolderComparisons(folder))


class FolderState:
    """Reads the state table of a lake in a local folder."""

    def __init__(self, tables: FolderTables, table: str) -> None:
        self.tables = tables
        self.table = table

    def rows(self, key: str | None = None) -> list[StateRow]:
        """Returns all rows or the rows of a key, ordered by key and descending version."""
        stored = self.tables.read(self.table, _STATE)
        rows = stored.to_pylist() if stored is not None else []
        rows = [row for row in rows if key in (None, row["key"])]
        # The sorts are stable, so the rows are ordered by key, then by descending version, then by
        # descending time.
        rows.sort(key=lambda row: (row["updated_at"] is not None, row["updated_at"]), reverse=True)
        rows.sort(key=lambda row: row["version"] or 0, reverse=True)
        rows.sort(key=lambda row: row["key"] or "")
        return [
            StateRow(
                row["key"],
                row["value"],
                row["version"] or 0,
                format_time(row["updated_at"]) if row["updated_at"] is not None else None,
            )
            for row in rows
        ]


class FolderLedger:
    """Reads the ledger of a lake in a local folder."""

    def __init__(self, tables: FolderTables) -> None:
        self.tables = tables

    def newest(self) -> list[dict[str, Any]]:
        """Returns the same rows as :meth:`loader.lake.ledger.Ledger.newest`."""
        attempts = self.tables.read(TABLE, _LEDGER)
        if attempts is None:
            return []
        import pyarrow as pa
        import pyarrow.compute as pc

        attempts = attempts.sort_by([("finished_at", "ascending", "at_start")])
        success = pc.is_in(attempts["status"], pa.array([SYNCED, NOTHING_NEW, RECOVERED]))
        totals = [
            ("batch", "max"),
            ("rows_appended", "sum"),
            ("rows_below_cursor", "sum"),
            ("rows_at_cursor", "sum"),
            ("rows_cursor_unmoved", "sum"),
        ]
        last = _select_last_rows(attempts, _NEWEST, totals)
        synced = _select_last_rows(attempts.filter(success), ("cursor_high", "finished_at"))
        known = attempts.filter(pc.is_valid(attempts["complete_until"]))
        known = known.sort_by([("started_at", "ascending", "at_start")])
        complete = _select_last_rows(known, ("complete_until",))
        never_synced: dict[str, Any] = {"cursor_high": None, "finished_at": None}
        return [
            {
                "source_name": table[0],
                "table_name": table[1],
                "batch": row["batch_max"],
                "rows": row["rows_appended_sum"],
                "rows_below_cursor": row["rows_below_cursor_sum"],
                "rows_at_cursor": row["rows_at_cursor_sum"],
                "rows_cursor_unmoved": row["rows_cursor_unmoved_sum"],
                "complete_micros": complete.get(table, {}).get("complete_until"),
                "cursor": synced.get(table, never_synced)["cursor_high"],
                "synced_micros": synced.get(table, never_synced)["finished_at"],
                "status": row["status"],
                "log_bytes": row["log_bytes"],
                "error": row["error"],
            }
            for table, row in sorted(last.items(), key=lambda item: [n or "" for n in item[0]])
        ]


def _select_last_rows(
    rows: pa.Table, columns: Sequence[str], totals: Sequence[tuple[str, str]] = ()
) -> dict[tuple[str | None, str | None], dict[str, Any]]:
    """Returns the values in each table's last ledger row, with times in microseconds.

    Args:
        rows: ledger rows in chronological order.
        totals: pairs of a column and a pyarrow aggregate function over all rows of a table.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in {"finished_at", "complete_until"} & {*columns}:
        micros = rows[name].cast(pa.int64())
        rows = rows.set_column(rows.column_names.index(name), name, micros)
    with_null = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)
    grouped = rows.group_by(["source_name", "table_name"], use_threads=False).aggregate(
        [*totals, *((name, "last", with_null) for name in columns)]
    )
    return {
        (row["source_name"], row["table_name"]): {
            name.removesuffix("_last"): value for name, value in row.items()
        }
        for row in grouped.to_pylist()
    }

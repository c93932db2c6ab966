"""Runs first loads, and prevents other runs from moving the slot in the meantime.

Until a table's first load is published, the state contains no log position for the table, so other
runs would ignore the table when they move the slot. An advisory lock prevents this: first loads
hold it in shared mode, and a run that moves the slot holds it in exclusive mode.

A large table is loaded in chunks. Each chunk is a range of the key and is appended as one batch.
After an interruption, the next run continues after the last published chunk, but from a new
snapshot. So a change is already in the raw table if it is visible in the snapshot of the chunk that
contains its key (`position.is_visible_to_chunk`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from pyspark.sql import DataFrame, SparkSession

from loader.cdc.position import Key, VisibleTransactions
from loader.cdc.slot import SourceSlot
from loader.cdc.table_definition import LoggedColumn
from loader.errors import TableError
from loader.rows.window import Bounds, Window
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import (
    Connection,
    Dialect,
    JdbcSnapshot,
    choose_partition_count,
    disable_timeouts,
    open_exported_snapshot,
)
from loader.spark.error_translation import DatabaseError

_MAX_SNAPSHOTS = 4
"""The maximum number of single-table snapshots. Each snapshot needs a connection."""


class FirstLoads:
    """The tables' initial loads in one run.

    Attributes:
        share_snapshot: whether all tables are read from one snapshot; true if the slot is new.
    """

    def __init__(self, slot: SourceSlot, tables: Sequence[SourceTable], stack: ExitStack) -> None:
        self.share_snapshot = False
        self._slot = slot
        self._tables = tables
        self._stack = stack
        self._snapshots: dict[str, JdbcSnapshot] = {}
        self._visible: dict[str, VisibleTransactions] = {}
        self._chunks: dict[str, Chunk] = {}
        self._slot_lock = ExitStack()
        self._position: int | None = None
        text = slot.database.dialect.text
        self._lock_key = (
            f"pg_catalog.hashtext('strandline'), pg_catalog.hashtext({text(slot.name)})"
        )

    def plan_load(self, table: SourceTable) -> tuple[int, Bounds, VisibleTransactions]:
        """Plans the load of a table.

        Keeps the slot from advancing until :meth:`release_slot` is called.

        Returns:
            The table's start position in the log, its bounds, and the transactions that are visible
            in its snapshot.
        """
        position = self._lock_slot()
        self._chunks.pop(table.ref.name, None)
        return (
            position,
            self._open_snapshot(table).bounds(table, Window()),
            self._read_visible_transactions(table),
        )

    def is_divisible(self, table: SourceTable, key: Sequence[LoggedColumn]) -> bool:
        """Returns whether a table can be loaded in chunks.

        PostgreSQL and Spark must sort the key in the same order, and the database must declare the
        key. A key that only the spec declares may have no index, and may have duplicates.
        """
        declared = {name.lower() for name in table.primary_key}
        if declared != {column.name.lower() for column in key}:
            return False
        native, dialect = table.ref.native, self._slot.database.dialect
        relation = (native.catalog, native.schema, native.table)
        read_as_texts = {native.columns[index] for index in native.as_texts}
        with self._open_snapshot(table).connect(table) as connection:
            return read_as_texts.isdisjoint(column.name for column in key) and all(
                column.kind in _KEY_FORMATS
                and not column.is_array
                and (
                    column.kind not in _TEXT_TYPES
                    or dialect.is_ordered_by_bytes(connection, relation, column.name)
                )
                for column in key
            )

    def plan_next_chunk(
        self, table: SourceTable, key: Sequence[LoggedColumn], previous_key: Key | None
    ) -> tuple[Chunk, VisibleTransactions]:
        """Returns a table's next chunk, and the transactions that are visible in its snapshot.

        Args:
            previous_key: the last key of the previous chunk, or None for the first chunk.
        """
        self._lock_slot()
        database = self._slot.database
        size = database.options.batch_rows
        cores = database.spark.sparkContext.defaultParallelism
        configured = database.read_options(table.ref).num_partitions
        with self._open_snapshot(table, previous_key is not None).connect(table) as connection:
            chunk = find_next_chunk(
                connection,
                database.dialect,
                database.rows(table.ref.native),
                key,
                previous_key,
                size,
                choose_partition_count(size, cores, configured),
            )
        self._chunks[table.ref.name] = chunk
        return chunk, self._read_visible_transactions(table)

    def refuse_lossy_values(self, table: SourceTable) -> None:
        """Raises a TableError if the table has values that the lake cannot store.

        Needed if another run started the load, because that run checked only the rows in its own
        snapshot.
        """
        self._open_snapshot(table).refuse_lossy_values(table)

    def read(self, spark: SparkSession, table: SourceTable, bounds: Bounds) -> DataFrame:
        """Reads all rows in a table, or those in its current chunk."""
        snapshot, chunk = self._open_snapshot(table), self._chunks.get(table.ref.name)
        if chunk is None:
            return snapshot.read(spark, table, Window(), bounds)
        parts = (snapshot.read_part(spark, table, condition) for condition in chunk.conditions)
        return reduce(DataFrame.unionAll, parts)

    def is_steady(self, table: SourceTable) -> bool:
        """Returns whether a table's rows are counted and read in the same snapshot."""
        snapshot = self._snapshots.get(table.ref.name)
        return snapshot is not None and snapshot.is_steady(table)

    def _read_visible_transactions(self, table: SourceTable) -> VisibleTransactions:
        if table.ref.name not in self._visible:
            with self._open_snapshot(table).connect(table) as connection:
                [(text,)] = connection.rows("select pg_catalog.pg_current_snapshot()::text")
            with self._slot.database.connect() as connection:
                until = self._slot.read_end(connection)
            self._visible[table.ref.name] = VisibleTransactions.parse(text or "", until)
        return self._visible[table.ref.name]

    def _open_snapshot(self, table: SourceTable, is_resumed: bool = False) -> JdbcSnapshot:
        """Returns the snapshot for a first load. The slot and the publication must exist.

        An open snapshot blocks an ALTER TABLE of its tables. So a snapshot usually covers only one
        table. If too many snapshots are open, a new snapshot covers all remaining tables.

        Args:
            is_resumed: whether an earlier run started the load. If so, the publication already
                contains the table.
        """
        snapshot = self._snapshots.get(table.ref.name)
        if snapshot is not None:
            return snapshot
        database = self._slot.database
        remaining = [other for other in self._tables if other.ref.name not in self._snapshots]
        can_open_another = len(set(map(id, self._snapshots.values()))) < _MAX_SNAPSHOTS
        loaded = [table] if can_open_another and not self.share_snapshot else remaining
        if not is_resumed or loaded != [table]:
            with database.connect() as connection:
                self._slot.await_open_transactions(connection)
        exported = self._stack.enter_context(open_exported_snapshot(database, loaded))
        snapshot = JdbcSnapshot(database, exported)
        self._stack.callback(snapshot.close)
        self._snapshots |= {other.ref.name: snapshot for other in loaded}
        return snapshot

    def _lock_slot(self) -> int:
        """Prevents other runs from moving the slot, and returns the slot's position.

        A separate connection holds the lock, so the server releases it if this process crashes.

        Raises:
            TableError: if the slot does not exist or is lost.
        """
        if self._position is not None:
            return self._position
        connection = self._slot_lock.enter_context(self._slot.database.connect())
        for statement in (*disable_timeouts(connection), "set idle_session_timeout = 0"):
            connection.execute(statement)
        connection.execute(f"set lock_timeout = '{self._slot.database.lock_timeout}s'")
        connection.execute(f"select pg_catalog.pg_advisory_lock_shared({self._lock_key})")
        # The lock is released explicitly, because the server notices closed connections only after
        # a delay.
        self._slot_lock.callback(self._unlock, connection)
        with self._slot.database.connect() as other:
            slot = self._slot.read_slot(other)
        if slot is None or slot.lost:
            raise TableError(
                "the replication slot was dropped or invalidated",
                where=f"source {self._slot.database.name}, sync_mode: cdc",
                remedy="Run again",
            )
        self._position = slot.confirmed
        return self._position

    def release_slot(self) -> None:
        """Lets other runs move the slot again."""
        self._position = None
        self._slot_lock.close()

    def _unlock(self, connection: Connection) -> None:
        with suppress(DatabaseError):  # a broken connection no longer holds the lock
            connection.execute(f"select pg_catalog.pg_advisory_unlock_shared({self._lock_key})")

    @contextmanager
    def exclude_loads(self, connection: Connection) -> Iterator[bool]:
        """Yields whether no first load is running. If True, none can start inside the block."""
        [(granted,)] = connection.rows(
            f"select pg_catalog.pg_try_advisory_lock({self._lock_key})::text"
        )
        try:
            yield granted == "true"
        finally:
            if granted == "true":
                connection.execute(f"select pg_catalog.pg_advisory_unlock({self._lock_key})")


_DATE = r"\d{4}-\d\d-\d\d"
_TIME = _DATE + r" \d\d:\d\d:\d\d(\.\d+)?"
_TEXT_TYPES = ("text", "varchar")
_KEY_FORMATS = {
    **dict.fromkeys(("int2", "int4", "int8"), r"-?\d+"),
    **dict.fromkeys(_TEXT_TYPES, r"(?s:.*)"),
    "uuid": r"[0-9a-f-]{36}",
    "date": _DATE,
    "timestamp": _TIME,
    "timestamptz": _TIME + r"\+00",
}
"""Maps each type that PostgreSQL and Spark sort in the same order to a pattern of valid values."""


@dataclass(frozen=True)
class Chunk:
    """A part of a table: a range of its key.

    Attributes:
        rows: the number of rows, or None if it is unknown.
        conditions: SQL conditions that divide the chunk among parallel readers.
        last_key: the chunk's last key, or None if this is the last chunk.
    """

    rows: int | None
    conditions: Sequence[str]
    last_key: Key | None


def find_next_chunk(
    connection: Connection,
    dialect: Dialect,
    relation: str,
    key: Sequence[LoggedColumn],
    previous_key: Key | None,
    size: int,
    readers: int,
) -> Chunk:
    """Returns the next chunk.

    Args:
        connection: a connection that uses the table's snapshot.
        relation: the table, or a subquery that selects its rows, for the FROM clause.
        previous_key: the last key of the previous chunk, or None for the first chunk.
        size: the maximum number of rows.
    """
    names = ", ".join(dialect.quote(column.name) for column in key)
    texts = ", ".join(f"{dialect.quote(column.name)}::text" for column in key)

    def compare_key(operator: str, values: Key) -> str:
        literals = ", ".join(
            f"{dialect.text(value)}::{column.declared}"
            for value, column in zip(values, key, strict=True)
        )
        return f"({names}) {operator} ({literals})"

    where = "" if previous_key is None else f"where {compare_key('>', previous_key)}"
    step = max(1, -(-size // readers))
    rows = connection.rows(
        f"""
        select _cq_n, _cq_total, {texts}
        from (
            select
                {names},
                pg_catalog.row_number() over (order by {names}) as _cq_n,
                pg_catalog.count(*) over () as _cq_total
            from (
                select {names} from {relation} {where} order by {names} limit {size + 1}
            ) as next
        ) as numbered
        where _cq_n % {step} = 0 or _cq_n = {size} or _cq_n = _cq_total
        order by _cq_n
        """
    )
    keys = {int(n or 0): tuple(value or "" for value in values) for n, _, *values in rows}
    total = int(rows[0][1] or 0) if rows else 0
    last_key = keys[size] if total > size and _is_equal_in_spark(keys[size], key) else None
    inner_limits = [values for n, values in keys.items() if n < min(total, size)]
    limits = [*([previous_key] if previous_key is not None else []), *inner_limits]
    conditions = [
        *([compare_key("<=", limits[0])] if previous_key is None and limits else []),
        *(
            f"{compare_key('>', low)} and {compare_key('<=', high)}"
            for low, high in pairwise(limits)
        ),
    ]
    last_conditions = [compare_key(">", limits[-1])] if limits else []
    last_conditions += [compare_key("<=", last_key)] if last_key is not None else []
    conditions.append(" and ".join(last_conditions) or "true")
    is_counted = total <= size or last_key is not None
    return Chunk(min(total, size) if is_counted else None, conditions, last_key)


def _is_equal_in_spark(values: Key, key: Sequence[LoggedColumn]) -> bool:
    """Returns whether Spark can parse a key. It misreads infinite times and dates BC."""
    return all(
        re.fullmatch(_KEY_FORMATS[column.kind], value)
        for value, column in zip(values, key, strict=True)
    )

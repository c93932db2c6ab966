"""Runs first loads, and keeps other runs from advancing the slot meanwhile.

A first load's table has no mark before it is published, so no other run could know that the slot
must stay for it. An advisory lock protects it: first loads share it, and the run that moves the
slot holds it exclusively.

A large table is loaded in chunks: ranges of its key, each a batch of its own. If the load is broken
off, the next run goes on after the last chunk that is in raw, in a snapshot of its own. So a change
may have been visible to one chunk's snapshot and not to another's: that is decided by the chunk
that its key lies in (`position.is_visible_to_chunk`).
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

_FEW = 4
"""So many first loads have a snapshot each: each holds a connection."""


class FirstLoads:
    """A run's first loads.

    Args:
        tables: all of the run's tables that follow the log.
        stack: closed at the end of the run.

    Attributes:
        together: whether all tables are loaded, because the slot is new: one snapshot is enough.
    """

    def __init__(self, slot: SourceSlot, tables: Sequence[SourceTable], stack: ExitStack) -> None:
        self.together = False
        self._slot = slot
        self._tables = tables
        self._stack = stack
        self._snapshots: dict[str, JdbcSnapshot] = {}
        self._seen: dict[str, VisibleTransactions] = {}
        self._chunks: dict[str, Chunk] = {}
        self._shared = ExitStack()
        self._position: int | None = None
        text = slot.database.dialect.text
        self._key = f"pg_catalog.hashtext('strandline'), pg_catalog.hashtext({text(slot.name)})"

    def bound_table(self, table: SourceTable) -> tuple[int, Bounds, VisibleTransactions]:
        """Returns a table's start position in the log, its bounds, and the transactions it sees.

        From then on the slot stays where it is, until :meth:`release_slot`.
        """
        position = self._hold_slot()
        self._chunks.pop(table.ref.name, None)
        return (
            position,
            self._open_snapshot(table).bounds(table, Window()),
            self._read_visible_transactions(table),
        )

    def is_divisible(self, table: SourceTable, key: Sequence[LoggedColumn]) -> bool:
        """Returns whether a table can be loaded in chunks."""
        with self._open_snapshot(table).connect(table) as connection:
            return is_divisible(connection, self._slot.database.dialect, table, key)

    def bound_next_chunk(
        self, table: SourceTable, key: Sequence[LoggedColumn], after: Key | None
    ) -> tuple[Chunk, VisibleTransactions]:
        """Returns the table's next chunk, and the transactions that its snapshot sees.

        Args:
            after: the last key of the chunk before it; None for the first one.
        """
        self._hold_slot()
        database = self._slot.database
        size = database.options.batch_rows
        cores = database.spark.sparkContext.defaultParallelism
        wanted = database.read_options(table.ref).num_partitions
        with self._open_snapshot(table, after is not None).connect(table) as connection:
            found = find_next_chunk(
                connection,
                database.dialect,
                database.relation(table.ref.native),
                key,
                after,
                size,
                choose_partition_count(size, cores, wanted),
            )
        self._chunks[table.ref.name] = found
        return found, self._read_visible_transactions(table)

    def refuse_lossy_values(self, table: SourceTable) -> None:
        """Refuses values that the lake cannot hold: a load goes on that was judged in another run.

        Raises:
            TableError: there are some.
        """
        self._open_snapshot(table).refuse_lossy_values(table)

    def read(self, spark: SparkSession, table: SourceTable, bounds: Bounds) -> DataFrame:
        """Reads all rows of a table, or those of its chunk."""
        snapshot, found = self._open_snapshot(table), self._chunks.get(table.ref.name)
        if found is None:
            return snapshot.read(spark, table, Window(), bounds)
        parts = (snapshot.read_part(spark, table, condition) for condition in found.conditions)
        return reduce(DataFrame.unionAll, parts)

    def is_steady(self, table: SourceTable) -> bool:
        """Returns whether a table's rows are counted and read in one snapshot."""
        found = self._snapshots.get(table.ref.name)
        return found is not None and found.is_steady(table)

    def _read_visible_transactions(self, table: SourceTable) -> VisibleTransactions:
        """Returns the transactions that the table's snapshot sees."""
        if table.ref.name not in self._seen:
            with self._open_snapshot(table).connect(table) as connection:
                [(text,)] = connection.rows("select pg_catalog.pg_current_snapshot()::text")
            with self._slot.database.connect() as connection:
                until = self._slot.read_end(connection)
            self._seen[table.ref.name] = VisibleTransactions.parse(text or "", until)
        return self._seen[table.ref.name]

    def _open_snapshot(self, table: SourceTable, goes_on: bool = False) -> JdbcSnapshot:
        """Returns the snapshot that a first load reads: later than the slot and the publication.

        Tables are locked against ALTER for as long as it is held: not those that are not loaded,
        unless many are.

        Args:
            goes_on: the table has been followed since an earlier run.
        """
        found = self._snapshots.get(table.ref.name)
        if found is not None:
            return found
        database = self._slot.database
        rest = [one for one in self._tables if one.ref.name not in self._snapshots]
        few = len(set(map(id, self._snapshots.values()))) < _FEW
        loaded = [table] if few and not self.together else rest
        if not goes_on or loaded != [table]:
            with database.connect() as connection:
                self._slot.await_open_transactions(connection)
        moment = self._stack.enter_context(open_exported_snapshot(database, loaded))
        found = JdbcSnapshot(database, moment)
        self._stack.callback(found.close)
        self._snapshots |= {one.ref.name: found for one in loaded}
        return found

    def _hold_slot(self) -> int:
        """Returns the slot's position and keeps it there; waits for a run that is moving it.

        The lock has a connection of its own, so it is released with the process, even on a crash.

        Raises:
            TableError: if the slot is gone.
        """
        if self._position is not None:
            return self._position
        connection = self._shared.enter_context(self._slot.database.connect())
        for statement in (*disable_timeouts(connection), "set idle_session_timeout = 0"):
            connection.execute(statement)
        connection.execute(f"set lock_timeout = '{self._slot.database.lock_timeout}s'")
        connection.execute(f"select pg_catalog.pg_advisory_lock_shared({self._key})")
        # The server takes a moment to notice that a connection is closed.
        self._shared.callback(self._unlock, connection)
        with self._slot.database.connect() as other:
            found = self._slot.read_slot(other)
        if found is None or found.lost:
            raise TableError(
                "the replication slot is gone",
                where=f"source {self._slot.database.name}, sync_mode: cdc",
                remedy="Run again",
            )
        self._position = found.confirmed
        return self._position

    def release_slot(self) -> None:
        """Ends this run's first loads."""
        self._position = None
        self._shared.close()

    def _unlock(self, connection: Connection) -> None:
        with suppress(DatabaseError):  # a connection that has broken holds no lock
            connection.execute(f"select pg_catalog.pg_advisory_unlock_shared({self._key})")

    @contextmanager
    def exclude_loads(self, connection: Connection) -> Iterator[bool]:
        """Yields whether no first load goes on; none begins meanwhile."""
        [(granted,)] = connection.rows(f"select pg_catalog.pg_try_advisory_lock({self._key})::text")
        try:
            yield granted == "true"
        finally:
            if granted == "true":
                connection.execute(f"select pg_catalog.pg_advisory_unlock({self._key})")


_DATE = r"\d{4}-\d\d-\d\d"
_TIME = _DATE + r" \d\d:\d\d:\d\d(\.\d+)?"
_TEXTS = ("text", "varchar")
_ORDERED = {
    **dict.fromkeys(("int2", "int4", "int8"), r"-?\d+"),
    **dict.fromkeys(_TEXTS, r"(?s:.*)"),
    "uuid": r"[0-9a-f-]{36}",
    "date": _DATE,
    "timestamp": _TIME,
    "timestamptz": _TIME + r"\+00",
}
"""Types that PostgreSQL and Spark order alike, and the values that both read."""


@dataclass(frozen=True)
class Chunk:
    """A range of a table's key.

    Attributes:
        rows: how many rows it has; None if it is unknown.
        conditions: SQL for each reader's share of it.
        upto: its last key; None if nothing follows it.
    """

    rows: int | None
    conditions: Sequence[str]
    upto: Key | None


def is_divisible(
    connection: Connection, dialect: Dialect, table: SourceTable, key: Sequence[LoggedColumn]
) -> bool:
    """Returns whether a table can be loaded in chunks: Spark orders its key as the database does.

    A key that only the spec declares may not be unique, and has no index.
    """
    declared = {name.lower() for name in table.primary_key}
    if declared != {column.name.lower() for column in key}:
        return False
    native = table.ref.native
    place = (native.catalog, native.schema, native.table)
    chosen = {native.columns[index] for index in native.as_texts}
    return chosen.isdisjoint(column.name for column in key) and all(
        column.kind in _ORDERED
        and not column.array
        and (
            column.kind not in _TEXTS or dialect.is_ordered_by_bytes(connection, place, column.name)
        )
        for column in key
    )


def find_next_chunk(
    connection: Connection,
    dialect: Dialect,
    relation: str,
    key: Sequence[LoggedColumn],
    after: Key | None,
    size: int,
    readers: int,
) -> Chunk:
    """Returns the next chunk.

    Args:
        relation: the quoted table.
        after: the last key of the chunk before it; None for the first one.
        size: how many rows it has at most.
        readers: among how many readers it is divided.
    """
    names = ", ".join(dialect.quote(column.name) for column in key)
    texts = ", ".join(f"{dialect.quote(column.name)}::text" for column in key)

    def beyond(operator: str, values: Key) -> str:
        literals = ", ".join(
            f"{dialect.text(value)}::{column.declared}"
            for value, column in zip(values, key, strict=True)
        )
        return f"({names}) {operator} ({literals})"

    begins = "" if after is None else f"where {beyond('>', after)}"
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
                select {names} from {relation} {begins} order by {names} limit {size + 1}
            ) as next
        ) as numbered
        where _cq_n % {step} = 0 or _cq_n = {size} or _cq_n = _cq_total
        order by _cq_n
        """
    )
    keys = {int(n or 0): tuple(value or "" for value in values) for n, _, *values in rows}
    total = int(rows[0][1] or 0) if rows else 0
    upto = keys[size] if total > size and _is_plain(keys[size], key) else None
    cuts = [values for n, values in keys.items() if n < min(total, size)]
    marks = [*([after] if after is not None else []), *cuts]
    conditions = [
        *([beyond("<=", marks[0])] if after is None and marks else []),
        *(f"{beyond('>', low)} and {beyond('<=', high)}" for low, high in pairwise(marks)),
    ]
    last = [beyond(">", marks[-1])] if marks else []
    last += [beyond("<=", upto)] if upto is not None else []
    conditions.append(" and ".join(last) or "true")
    known = total <= size or upto is not None
    return Chunk(min(total, size) if known else None, conditions, upto)


def _is_plain(values: Key, key: Sequence[LoggedColumn]) -> bool:
    """Returns whether Spark reads a key's values as PostgreSQL means them: not infinity, not BC."""
    return all(
        re.fullmatch(_ORDERED[column.kind], value)
        for value, column in zip(values, key, strict=True)
    )

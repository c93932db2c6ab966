"""Finds late rows in PostgreSQL.

:mod:`loader.sources.jdbc.postgresql.continuity` and
:mod:`loader.sources.jdbc.postgresql.table_identity` explain how late rows occur.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import BY_HAND
from loader.sources.interface import SourceTable, Window, parse_bound
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.late_commits_interface import (
    ONLY_WITHIN_LOOKBACK,
    SnapshotQueries,
    describe_range,
)
from loader.sources.jdbc.postgresql.continuity import (
    UNKNOWN_START,
    DatabaseContinuity,
    TransactionMark,
    parse_utc,
    wait_for_flush,
)
from loader.sources.jdbc.postgresql.sweep import SWEEP, Sweep, SweepRecord, must_store
from loader.sources.jdbc.postgresql.table_identity import (
    TableIdentity,
    find_lowest,
    read_table_identity,
)
from loader.spark.error_translation import DatabaseError

_FLUSH_SECONDS = 3.0
"""The maximum wait for the flush of the server's log; afterwards, the last checkpoint is kept."""
_FIRST_FLUSH_SECONDS = 15.0


class PostgresLateCommits:
    """Implements :class:`~loader.sources.jdbc.late_commits_interface.LateCommits`.

    Args:
        transactions: the snapshot's transaction state; None if it cannot be read.
    """

    def __init__(self, snapshot: SnapshotQueries, transactions: TransactionMark | None) -> None:
        self.snapshot = snapshot
        self.transactions = transactions
        self.identities: dict[str, TableIdentity] = {}
        self.added: dict[str, str] = {}
        self.sweeps: dict[str, Sweep] = {}
        self.is_flushed = False
        self.time_limit: str | None = None

    def find_late(self, connection: Connection, table: SourceTable, window: Window) -> None:
        if self.transactions is None:
            return
        relation = self.snapshot.source.relation(table.ref.native)
        name = self.snapshot.dialect.text(relation) if not table.ref.native.query else "null"
        self.identities[table.ref.name] = read_table_identity(connection, name)
        self._refuse_reused_numbers(table, window)
        if not table.ref.native.stored:
            return
        self.added[table.ref.name] = self._select_added(connection, table, window)
        if window.cursor is not None and not table.ref.native.has_xmin:
            self.sweeps[table.ref.name] = self._sweep(connection, table, window)

    def mark(
        self, connection: Connection, table: SourceTable, window: Window
    ) -> dict[str, Any] | None:
        """Returns the checkpoint for the next sync.

        Raises:
            DatabaseError: if a crash could undo transactions that the table's first sync read.
        """
        if self.transactions is None:
            return None
        identity = self.identities[table.ref.name].to_mark()
        if not table.ref.native.stored:  # the object id changes if a view is recreated
            kept = ("database", "view", "labels")
            identity = {name: identity[name] for name in kept if name in identity}
        before = self._read_last_mark(window)
        if not self.is_flushed:
            self.is_flushed = wait_for_flush(
                connection,
                self.transactions,
                _FIRST_FLUSH_SECONDS if before is None else _FLUSH_SECONDS,
                self.snapshot.source.lend_connection,
            )
        if self.is_flushed or not table.ref.native.stored:
            sweep = self.sweeps.get(table.ref.name)
            record = {SWEEP: sweep.record.to_mark()} if sweep else {}
            return {**self.transactions.to_mark(), **record, **identity}
        if before is None:
            raise DatabaseError(
                "the server has not written its log to disk, so a crash could undo transactions "
                "that this first sync has read, and the next sync would miss others",
                where=f"table {self.snapshot.source.name}.{table.ref.lake_name}",
                remedy="Run again; check the server's disk and its setting wal_writer_delay",
            )
        stored = window.mark or {}
        record = {SWEEP: stored[SWEEP]} if SWEEP in stored else {}
        return {**before.to_mark(), **record, **identity}

    def condition(
        self, table: SourceTable, window: Window, lowest: Cursor | None = None
    ) -> str | None:
        """Returns an SQL condition that selects late rows, or None if there cannot be any.

        If the table was swept, late rows are the rows that the sweep found. Otherwise, they are the
        rows at or above a lower bound for the cursors of rows written by transactions that were
        open at the last sync. `lowest` lets the database use an index on the cursor.
        """
        before, now = self._read_comparable_mark(table, window), self.transactions
        if self._has_moved(table, window):
            return "true"
        if before is None or now is None or window.cursor is None:
            return None
        column = self.snapshot.column(table, window.cursor.name)
        literal = self.snapshot.dialect.literal
        parts = [self.added[table.ref.name]]
        sweep = self.sweeps.get(table.ref.name)
        reach = self._reach_open_transactions(table, window)
        if sweep is not None and sweep.has_run:
            parts.append(sweep.condition)
        elif reach is not None:
            above = f"{column} >= {literal(reach)}"
            written = before.select_written_since(now)
            if table.ref.native.has_xmin:
                parts.append(above)
            elif written != "false":
                parts.append(f"{above} and {written}")
        elif before.compare_database(now) is not DatabaseContinuity.SAME:
            parts.append("true")
        late = " or ".join(f"({part})" for part in parts if part)
        if late and lowest is not None:
            above = f"{column} >= {literal(lowest)}"
            return above if window.is_exhaustive else f"{above} and ({late})"
        return late or None

    def reach(self, table: SourceTable, window: Window) -> Cursor | None:
        sweep = self.sweeps.get(table.ref.name)
        if sweep is not None and sweep.has_run:
            return sweep.lowest
        return self._reach_open_transactions(table, window)

    def _reach_open_transactions(self, table: SourceTable, window: Window) -> Cursor | None:
        """Returns a lower bound for the cursors of rows that may have been committed late.

        These rows were written by transactions that were open at the last sync.
        """
        before, now = self._read_comparable_mark(table, window), self.transactions
        if before is None or now is None or window.cursor is None:
            return None
        if table.ref.native.has_xmin:
            ids = [before.xmin]
            if _is_set_by_hand(window) and window.low is not None:
                ids.append(int(window.low.text))
            return Cursor(str(min(ids)), CursorType.INTEGER)
        return None if self._is_replicated(table, window) else before.reach(window.cursor.type, now)

    def is_settled(self, table: SourceTable, window: Window) -> bool:
        """Returns whether the checkpoint must be stored even if there are no new rows.

        This is necessary if the next sync would otherwise read the same rows again. It is also
        necessary after `loader state set`, because the stored checkpoint may lack transactions that
        are now open.
        """
        if self.transactions is None or window.low is None:
            return False
        before = self._read_last_mark(window)
        if before is None or _is_set_by_hand(window):
            return True
        identity = self.identities[table.ref.name]
        if not table.ref.native.stored:
            return self._has_moved(table, window) or identity.has_changed_labels(window.mark)
        if identity.is_changed(window.mark):
            return True
        sweep = self.sweeps.get(table.ref.name)
        if sweep is not None and sweep.must_store:
            return True
        continuity = before.compare_database(self.transactions)
        if continuity is not DatabaseContinuity.SAME or before.is_outlived(self.transactions):
            return True
        if before.is_clock_behind(self.transactions):
            return True
        if table.ref.native.has_xmin:
            return before.xmin <= int(window.low.text) < self.transactions.xmin
        return before.open and not self.transactions.open

    def may_reuse_numbers(self, table: SourceTable, window: Window) -> bool:
        before, now = self._read_last_mark(window), self.transactions
        if before is None or now is None or window.cursor is None:
            return False
        may_reuse = before.compare_database(now) is DatabaseContinuity.FAILED_OVER or (
            self._has_moved(table, window)
            and self.identities[table.ref.name].is_redefined(window.mark)
        )
        return may_reuse and not window.cursor.type.is_time

    def find_complete_until(self, table: SourceTable, window: Window) -> dt.datetime | None:
        """Returns the time at which the oldest open transaction started.

        This time was read before the snapshot, so the snapshot contains all earlier commits. The
        raw table contains their rows if this sync reads all rows or swept the table, or if no
        transaction has written to the database since the last sweep. Otherwise, rows may be
        missing, and the result is None. It is also None for a backfill, which reads only a range.
        """
        now = self.transactions
        since = now.complete_until if now is not None else None
        if now is None or since is None or not table.ref.native.stored or window.high is not None:
            return None
        if window.stored_cursor is not None and self._read_last_mark(window) is None:
            return None
        sweep = self.sweeps.get(table.ref.name)
        if sweep is not None and sweep.record.transactions is not now:
            seen = sweep.record.transactions
            if seen.compare_database(now) is not DatabaseContinuity.SAME or not seen.xmin:
                return parse_utc(UNKNOWN_START)  # the record is from another database
            if seen.select_written_since(now) != "false":
                return None
        return since

    def find_excluded(self, table: SourceTable) -> tuple[int, str]:
        sweep = self.sweeps.get(table.ref.name)
        return (sweep.excluded, sweep.exclusion) if sweep is not None else (0, "")

    def list_warnings(self, table: SourceTable, window: Window) -> tuple[str, ...]:
        is_time = window.cursor is not None and window.cursor.type.is_time
        if not self.snapshot.dialect.shares_snapshots:
            return ()
        identity = self.identities[table.ref.name]
        notes = []
        if self._read_last_mark(window) and identity.has_changed_labels(window.mark):
            effect = "all its rows are read"
            if not window.has_key:
                effect = (
                    "without a key, rows in the raw table keep their values until a full refresh"
                )
            notes.append(
                "labels of an enum or the expression of a virtual column may have changed since "
                f"the last sync: {effect}"
            )
        if not table.ref.native.stored:
            if self._has_moved(table, window) and not notes:
                what = "view" if identity.is_redefined(window.mark) else "database"
                notes.append(
                    f"the {what} has been replaced since the last sync: all its rows are read; "
                    "rows that it lacks stay in the raw table until a full refresh"
                )
            kind = "query" if table.ref.native.query else "view or a table of another server"
            return (*notes, f"in a {kind}, {describe_range(window)}")
        before = self._read_comparable_mark(table, window)
        continuity = (
            before.compare_database(self.transactions)
            if before and self.transactions
            else DatabaseContinuity.SAME
        )
        if continuity is DatabaseContinuity.BEHIND:
            notes.append(
                "this replica is behind the database that the last sync read: later runs load the "
                "rows that it lacks"
            )
        elif continuity is not DatabaseContinuity.SAME:
            notes.append(
                f"the database was {continuity.value} since the last sync: rows written since then "
                "are read again; rows that it lost stay in the raw table until a full refresh"
            )
        elif before and identity.is_replaced(window.mark):
            notes.append(
                "columns were renamed or recreated since the last sync: all its rows are read"
                if identity.has_renamed_column(window.mark)
                else "the table was replaced since the last sync: all its rows are read; "
                "rows that it no longer has stay in the raw table until a full refresh"
            )
        if before and self.transactions and before.is_clock_behind(self.transactions) and is_time:
            notes.append(
                "the database's clock was set back: all rows written since the last sync are read"
            )
        interval = self.snapshot.source.read_options(table.ref).sweep
        blind = self.transactions.blind if self.transactions is not None else ""
        if blind and is_time:
            scans = "each sync scans the table for rows that commit late"
            if interval == "never":
                scans = ONLY_WITHIN_LOOKBACK
            elif interval != "always" and (interval != "auto" or window.has_lookback):
                scans = "rows that commit late are found when the table is swept"
            notes.append(f"{blind}: {scans}")
        elif interval == "never" and before and is_time and self._is_replicated(table, window):
            notes.append(f"logical replication writes this table: {ONLY_WITHIN_LOOKBACK}")
        return tuple(notes)

    def _read_comparable_mark(self, table: SourceTable, window: Window) -> TransactionMark | None:
        """Returns the last checkpoint, or None if the table's rows have no transaction ids."""
        return self._read_last_mark(window) if table.ref.native.stored else None

    def _read_last_mark(self, window: Window) -> TransactionMark | None:
        """Returns the last checkpoint, or None if the search for late rows must ignore it."""
        if window.low is None or self.transactions is None:
            return None
        before = TransactionMark.from_mark(window.mark)
        if before is None or before.compare_database(self.transactions) is DatabaseContinuity.SAME:
            return before
        # The checkpoint is from another database. A cursor that the user set overrides it.
        return None if _is_set_by_hand(window) else before

    def _has_moved(self, table: SourceTable, window: Window) -> bool:
        """Returns whether a view or its database was replaced, so that any row may be new."""
        before = self._read_last_mark(window)
        if before is None or self.transactions is None or table.ref.native.stored:
            return False
        if _is_set_by_hand(window):
            return False
        continuity = before.compare_database(self.transactions)
        identity = self.identities[table.ref.name]
        is_replaced = identity.is_in_other_database(window.mark) or identity.is_redefined(
            window.mark
        )
        return (
            is_replaced
            or self._has_changed_labels(table, window)
            or continuity in (DatabaseContinuity.RESTORED, DatabaseContinuity.FAILED_OVER)
        )

    def _has_changed_labels(self, table: SourceTable, window: Window) -> bool:
        """Returns whether all rows must be read because labels in their values have changed.

        Returns false without a key, because the new versions would not replace the old ones.
        """
        return window.has_key and self.identities[table.ref.name].has_changed_labels(window.mark)

    def _is_replicated(self, table: SourceTable, window: Window) -> bool:
        """Returns whether logical replication writes the table, or wrote it at the last sync."""
        is_replicated = self.identities[table.ref.name].replicated
        return is_replicated or bool((window.mark or {}).get("replicated"))

    def _select_added(self, connection: Connection, table: SourceTable, window: Window) -> str:
        """Returns an SQL condition for rows of added partitions and child tables.

        The condition is empty if the window contains all these rows, as is usual for a new
        partition. If possible, the condition includes a lower bound for the cursor, so that the
        database can use an index.
        """
        identity = self.identities[table.ref.name]
        if window.cursor is None or self._read_comparable_mark(table, window) is None:
            return ""
        tables = identity.list_added(window.mark)
        if tables == identity.tables or self._has_changed_labels(table, window):
            return "true"
        if not tables:
            return ""
        condition = f"tableoid in ({', '.join(map(str, sorted(tables)))})"
        type_ = window.cursor.type
        if table.ref.native.has_xmin or type_ is CursorType.STRING:
            return condition
        lowest_of = self.snapshot.ends(table, window.cursor)[0]
        values = find_lowest(connection, tables, lowest_of)
        if values is None:
            return condition
        bounds = (parse_bound(value, type_, table, window) for value in values)
        cursors = [cursor for cursor in bounds if cursor is not None]
        bottom = min(cursors, key=lambda cursor: cursor.order, default=None)
        if bottom is None or (window.low is not None and bottom.order >= window.low.order):
            return ""
        column = self.snapshot.column(table, window.cursor.name)
        return f"{condition} and {column} >= {self.snapshot.dialect.literal(bottom)}"

    def _sweep(self, connection: Connection, table: SourceTable, window: Window) -> Sweep:
        """If a sweep is due, counts the rows below the window that the last sweep could not see."""
        before, now = self._read_comparable_mark(table, window), self.transactions
        identity = self.identities[table.ref.name]
        assert window.cursor is not None
        assert now is not None
        all_seen = SweepRecord(now, identity.clock, identity.bytes)
        keeps_exclusions = self._has_exclusions(table)
        if before is None or window.low is None:  # this sync reads all rows
            earlier = self.sweeps.get(table.ref.name)
            if earlier is None or not keeps_exclusions:
                return Sweep(all_seen)
            # The window now includes all rows that match the filter, but rows that stopped matching
            # must still become tombstones.
            return replace(earlier, has_run=False, rows=0, lowest=None, condition="")
        has_reach = self._reach_open_transactions(table, window) is not None
        is_same = before.compare_database(now) is DatabaseContinuity.SAME
        record = SweepRecord.from_mark(window.mark) or SweepRecord(before)
        if self.added[table.ref.name] == "true" or not (is_same or has_reach):
            return Sweep(record if keeps_exclusions else all_seen)
        if record.is_behind(now):
            return Sweep(record)
        interval = self.snapshot.source.read_options(table.ref).sweep
        must_scan = interval == "auto" and not has_reach and not window.has_lookback
        if record.transactions.compare_database(now) is not DatabaseContinuity.SAME:
            # The record's transaction ids are from another database, so any row may be new.
            nothing_seen = replace(now, xmin=0, unseen=(), unseen_from=0)
            record = replace(record, transactions=nothing_seen)
            must_scan = interval != "never"
        written = record.transactions.select_written_since(now)
        if written == "false":
            return Sweep(record)
        is_due = record.is_due(interval, identity.bytes, identity.clock)
        if not (is_due or must_scan or before.is_clock_behind(now)):
            return Sweep(record)
        dialect, cursor = self.snapshot.dialect, window.cursor
        column = self.snapshot.column(table, cursor.name)
        is_late = f"{column} < {dialect.literal(window.low)}"
        if window.initial is not None:
            is_late += f" and {column} >= {dialect.literal(window.initial)}"
        relation, is_excluded, grouped = self.snapshot.source.rows(table.ref.native), "false", ""
        if self._has_exclusions(table):
            relation = self.snapshot.source.relation(table.ref.native)
            is_excluded, grouped = f"((\n{table.ref.native.where}\n) is not true)", " group by 1"
        is_early = f"{column} < '0001-01-01'" if cursor.type.is_time else "false"
        began = time.monotonic()
        with self._without_time_limit(connection):
            groups = self.snapshot.read_ends(
                connection,
                cursor,
                f"select {is_excluded}::text, count(*), count(*) filter (where {is_early}), "
                f"{self.snapshot.ends(table, cursor)[0]} from {relation} "
                f"where {written} and (({is_late}) or {is_excluded}){grouped}",
            )
        found = {excluded: counts for excluded, *counts in groups}
        count, early, lowest = found.get("false", ("0", "0", None))
        excluded = int(found["true"][0] or 0) if "true" in found else 0
        seconds = time.monotonic() - began
        if int(early or 0):
            raise DatabaseError(
                f"{early} new or changed rows have a cursor ({cursor.name}) before year 1 or of "
                "-infinity, which the lake cannot store",
                where=f"table {self.snapshot.source.name}.{table.ref.lake_name}",
                remedy=f"Correct these rows, select * from {relation} where {is_early}; or set "
                "`sweep: never`, which ignores late rows below the cursor",
            )
        rows, bottom = int(count or 0), parse_bound(lowest, cursor.type, table, window)
        after = replace(all_seen, seconds=seconds)
        condition = f"{column} >= {dialect.literal(bottom)} and {written}" if bottom else ""
        is_stored = must_store(record, after, rows + excluded, interval)
        exclusion = f"{written} and {is_excluded}" if excluded else ""
        return Sweep(after, True, rows, bottom, condition, is_stored, excluded, exclusion)

    def _has_exclusions(self, table: SourceTable) -> bool:
        """Returns whether a row becomes a tombstone when it stops matching the table's filter.

        Returns false if the spec declares the key, because another row with the same key may match.
        """
        is_declared = self.snapshot.source.read_options(table.ref).primary_key is None
        return is_declared and bool(table.ref.native.where and table.primary_key)

    @contextmanager
    def _without_time_limit(self, connection: Connection) -> Iterator[None]:
        """Disables the role's `statement_timeout`, which may be meant for short queries."""
        if self.time_limit is None:
            setting = "select pg_catalog.current_setting('statement_timeout')"
            [(self.time_limit,)] = connection.rows(setting)
        if self.time_limit == "0":
            yield
            return
        connection.execute("set local statement_timeout = 0")
        yield
        limit = self.snapshot.dialect.text(str(self.time_limit))
        connection.execute(f"set local statement_timeout = {limit}")

    def _refuse_reused_numbers(self, table: SourceTable, window: Window) -> None:
        before = self._read_last_mark(window)
        if before is None or self.transactions is None or window.cursor is None:
            return
        continuity = before.compare_database(self.transactions)
        is_other = self.identities[table.ref.name].is_in_other_database(window.mark)
        if is_other and self._has_moved(table, window) and continuity is DatabaseContinuity.SAME:
            continuity = DatabaseContinuity.RESTORED  # another database on the same server
        if continuity is DatabaseContinuity.BEHIND and not window.cursor.type.is_time:
            raise DatabaseError(
                "this read replica is behind the database that the last sync read, so the cursor "
                f"{window.cursor.name} would skip rows that it still lacks",
                where=f"table {self.snapshot.source.name}.{table.ref.lake_name}",
                remedy="Run again once it has caught up",
            )
        by_writer = table.ref.native.has_xmin
        if continuity is DatabaseContinuity.RESTORED and not window.cursor.type.is_time:
            what = "this is not the database of the last sync: it was restored or replaced"
        elif continuity is DatabaseContinuity.FAILED_OVER and by_writer:
            what = "the database failed over since the last sync"
        else:
            return
        name = f"{self.snapshot.source.name}.{table.ref.lake_name}"
        shown = window.low.text if window.low else "?"
        accept = "" if by_writer else f"; or accept it with `loader state set {name} {shown}`"
        raise DatabaseError(
            f"{what}; it may reuse values of {window.cursor.name} that are below the stored "
            f"cursor, {shown}",
            where=f"table {name}",
            remedy=f"`loader run --full-refresh --select {name}`{accept}",
        )


def _is_set_by_hand(window: Window) -> bool:
    """Returns whether `loader state set` set the cursor after the checkpoint was stored."""
    return bool((window.mark or {}).get(BY_HAND))

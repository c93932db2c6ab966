"""Sets up a source's slot and publication for a run, and decides which tables can resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loader.cdc.position import Mark, format_position
from loader.cdc.requirements import (
    build_error,
    find_publication_lacks,
    find_server_lacks,
    find_table_lacks,
    find_unpublishable,
)
from loader.cdc.slot import Slot, SourceSlot
from loader.errors import TableError
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection, read_activity
from loader.spark.error_translation import DatabaseError

_MUCH = 10 * 1024**3
"""Of more log than this that the slot keeps, a run warns."""


def schema_and_table(table: SourceTable) -> tuple[str, str]:
    """Returns a table's schema and name."""
    return table.ref.native.schema or "", table.ref.native.table


def name_in_log(table: SourceTable) -> str:
    """Returns a table's name in the log."""
    return ".".join(schema_and_table(table))


@dataclass(frozen=True)
class SlotSetup:
    """A source's slot and publication at the beginning of a run.

    Attributes:
        slot: the slot.
        created: whether this run has created it: what came before is not in the log.
        system: the cluster's identity and timeline; empty if it is hidden.
        published: how each table is published (:meth:`SourceSlot.read_publication`).
        refused: why tables cannot be followed, by their names.
    """

    slot: Slot
    created: bool = False
    system: str = ""
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refused: Mapping[str, TableError] = field(default_factory=dict)

    def explain_loss(self, own: SourceSlot, table: SourceTable, mark: Mark) -> str:
        """Returns why a table cannot go on from its mark; empty if it can."""
        if self.created:
            return "its replication slot was gone"
        if mark.system and self.system and mark.system != self.system:
            return "the database was restored, replaced or failed over"
        if self.slot.confirmed > mark.position:
            return f"the log before {format_position(self.slot.confirmed)} is gone"
        published = self.published.get(schema_and_table(table), "")
        if mark.published and mark.published != published:
            if published and not published.endswith(mark.published[mark.published.rfind("/") :]):
                return "another table has its name now"
            return "the publication was changed"
        with own.database.connect() as connection:
            if mark.position > own.read_end(connection):
                return "the log ends before it: the database was restored"
        return ""

    def warn_of_unread_slot(self, own: SourceSlot, mark: Mark | None) -> tuple[str, ...]:
        """Returns a warning if the slot that a table has followed so far is no longer read."""
        if mark is None or not mark.slot or mark.slot == own.name:
            return ()
        text = own.database.dialect.text(mark.slot)
        with own.database.connect() as connection:
            there = connection.rows(
                f"select 1 from pg_catalog.pg_replication_slots where slot_name = {text}"
            )
        if not there:
            return ()
        return (
            f"the replication slot {mark.slot} is not read for this table any more, and keeps the "
            f"log: once no table needs it, run `select pg_drop_replication_slot({text})`",
        )

    def warn_of_retained_log(self, own: SourceSlot) -> tuple[str, ...]:
        """Returns a warning if the slot keeps much log, or the server may give it up."""
        held, left = self.slot.held, self.slot.left
        if left is not None and left < held // 4:
            return (
                f"the replication slot {own.name} keeps {held >> 20:,} MB of log, and is lost "
                f"{left >> 20:,} MB from now (max_slot_wal_keep_size)",
            )
        if held > _MUCH:
            return (
                f"the replication slot {own.name} keeps {held >> 20:,} MB of log: a table that "
                "fails, or that no run selects, may keep it where it is",
            )
        return ()


def prepare_slot(
    own: SourceSlot,
    tables: Sequence[SourceTable],
    key: Callable[[SourceTable], Sequence[str]],
    where: str,
) -> SlotSetup:
    """Creates the slot and the publication if they are missing.

    Raises:
        TableError: if this role cannot, or the log cannot be read; names all that is missing.
    """
    names = Counter(map(name_in_log, tables))
    no: dict[str, TableError] = {}
    with own.database.connect() as connection:
        lacks = build_error(find_server_lacks(connection, own), where)
        if lacks is not None:
            raise lacks
        system = read_activity(connection).system
        for table in tables:
            place = f"table {own.database.name}.{table.ref.name}, sync_mode: cdc"
            found: TableError | None
            try:
                found = build_error(find_table_lacks(connection, own, table, key(table)), place)
            except DatabaseError as error:  # such as a schema that the role may not use
                found = error
            if found is not None:
                no[table.ref.name] = found
            elif names[name_in_log(table)] > 1:
                no[table.ref.name] = TableError(
                    f"another table is called {name_in_log(table)} in the log, too",
                    where=place,
                    remedy="Read one of them by a cursor (sync_mode: incremental)",
                )
        good = [table for table in tables if table.ref.name not in no]
        for name, lack in find_unpublishable(connection, own, good).items():
            barred = build_error([lack], where)  # one statement for all tables: one error
            assert barred is not None
            no[name] = barred
        good = [table for table in good if table.ref.name not in no]
        lacks = build_error(find_publication_lacks(connection, own), where)
        if lacks is not None:
            raise lacks
        slot, created = own.read_slot(connection), False
        if not good:
            # No table needs it; without a publication it could not be read.
            return SlotSetup(slot or Slot(0), refused=no)
        if slot is not None and (slot.lost or own.read_publication(connection) is None):
            own.drop(connection)
            slot = None
        no |= _publish(own, connection, good)
        good = [table for table in good if table.ref.name not in no]
        published = own.read_publication(connection) or {}
        if slot is None:
            own.create(connection)
            slot, created = own.read_slot(connection), True
        assert slot is not None
        return SlotSetup(slot, created, system, published, no)


def _publish(
    own: SourceSlot, connection: Connection, tables: Sequence[SourceTable]
) -> dict[str, TableError]:
    """Adds tables to the publication; returns an error for each that another session locks."""
    try:
        own.publish(connection, [schema_and_table(table) for table in tables])
    except DatabaseError:
        errors: dict[str, TableError] = {}
        for table in tables:
            try:
                own.publish(connection, [schema_and_table(table)])
            except DatabaseError as error:
                place = f"table {own.database.name}.{table.ref.name}, sync_mode: cdc"
                errors[table.ref.name] = DatabaseError(error.what, where=place, remedy=error.remedy)
        return errors
    return {}

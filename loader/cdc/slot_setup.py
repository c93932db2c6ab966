"""Sets up a source's slot and publication for a run, and decides which tables can resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loader.cdc.position import Mark, format_position
from loader.cdc.requirements import find_unmet_requirements
from loader.cdc.slot import Slot, SourceSlot, schema_and_table
from loader.errors import TableError
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection, read_activity
from loader.spark.error_translation import DatabaseError

_MUCH = 10 * 1024**3
"""Of more log than this that the slot keeps, a run warns."""


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
    with own.database.connect() as connection:
        unmet = find_unmet_requirements(connection, own, tables, key, where)
        error = unmet.server or unmet.publication
        if error is not None:
            raise error
        no = {**unmet.tables, **unmet.unpublishable}
        good = [table for table in tables if table.ref.name not in no]
        system = read_activity(connection).system
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

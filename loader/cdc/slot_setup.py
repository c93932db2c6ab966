"""Creates a source's slot and publication, and finds tables for which the log lacks changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loader.cdc.position import Mark, format_position
from loader.cdc.requirements import check_requirements
from loader.cdc.slot import Slot, SourceSlot, get_schema_and_table
from loader.errors import TableError
from loader.sources.interface import SourceTable
from loader.sources.jdbc.interface import Connection, read_activity
from loader.spark.error_translation import DatabaseError

_WARNING_BYTES = 10 * 1024**3
"""A run warns if the slot retains more log than this."""


@dataclass(frozen=True)
class SlotSetup:
    """A source's slot and publication at the start of a run.

    Attributes:
        created: whether this run created the slot. A new slot lacks all earlier changes.
        system: the cluster's identity and timeline; empty if the role may not read them.
        published: a fingerprint of each table's publication (`SourceSlot.read_publication`).
        refused: maps the name of each table that cannot be read from the log to its error.
        complete_until: the start of the oldest transaction that was open before the log was read;
            None if unknown. Every transaction that this run does not find in the log commits after
            this time.
    """

    slot: Slot
    created: bool = False
    system: str = ""
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refused: Mapping[str, TableError] = field(default_factory=dict)
    complete_until: dt.datetime | None = None

    def explain_loss(self, source_slot: SourceSlot, table: SourceTable, mark: Mark) -> str:
        """Explains why the log lacks changes since a checkpoint. Returns "" if it is complete."""
        if self.created:
            return "its replication slot was missing"
        if mark.system and self.system and mark.system != self.system:
            return "the database was restored, replaced or failed over"
        if self.slot.confirmed > mark.position:
            return f"the log before {format_position(self.slot.confirmed)} is gone"
        published = self.published.get(get_schema_and_table(table), "")
        if mark.published and mark.published != published:
            if published and not published.endswith(mark.published[mark.published.rfind("/") :]):
                return "another table has its name now"
            return "the publication was changed"
        with source_slot.database.connect() as connection:
            if mark.position > source_slot.read_end(connection):
                return "the log ends below the stored position: the database was restored"
        return ""

    def warn_of_unread_slot(self, source_slot: SourceSlot, mark: Mark | None) -> tuple[str, ...]:
        """Returns a warning if the table's previous slot still exists and retains the log."""
        if mark is None or not mark.slot or mark.slot == source_slot.name:
            return ()
        text = source_slot.database.dialect.text(mark.slot)
        with source_slot.database.connect() as connection:
            rows = connection.rows(
                f"select 1 from pg_catalog.pg_replication_slots where slot_name = {text}"
            )
        if not rows:
            return ()
        return (
            f"this table is no longer read from the replication slot {mark.slot}, which still "
            "retains the log: once no table needs it, run "
            f"`select pg_drop_replication_slot({text})`",
        )

    def warn_of_retained_log(self, source_slot: SourceSlot) -> tuple[str, ...]:
        """Returns a warning if the slot retains a lot of the log or may soon be invalidated."""
        retained, remaining = self.slot.retained_bytes, self.slot.remaining_bytes
        if remaining is not None and remaining < retained // 4:
            return (
                f"the replication slot {source_slot.name} retains {retained >> 20:,} MB of log: "
                f"the server invalidates it after {remaining >> 20:,} MB more "
                "(max_slot_wal_keep_size)",
            )
        if retained > _WARNING_BYTES:
            return (
                f"the replication slot {source_slot.name} retains {retained >> 20:,} MB of log: it "
                "cannot move past a table that fails or that no run selects",
            )
        return ()


def prepare_slot(
    source_slot: SourceSlot,
    tables: Sequence[SourceTable],
    list_key: Callable[[SourceTable], Sequence[str]],
    where: str,
) -> SlotSetup:
    """Creates the slot and the publication if they are missing.

    Raises:
        TableError: if the server, the role or the publication does not meet the requirements. The
            message lists all unmet requirements.
    """
    with source_slot.database.connect() as connection:
        unmet = check_requirements(connection, source_slot, tables, list_key, where)
        error = unmet.server or unmet.publication
        if error is not None:
            raise error
        refused = {**unmet.tables, **unmet.unpublishable}
        accepted = [table for table in tables if table.ref.name not in refused]
        activity = read_activity(connection)
        slot, created = source_slot.read_slot(connection), False
        if not accepted:
            # No table needs the slot, so a missing slot is not created.
            return SlotSetup(slot or Slot(0), refused=refused)
        if slot is not None and (slot.lost or source_slot.read_publication(connection) is None):
            source_slot.drop(connection)
            slot = None
        refused |= _publish_tables(source_slot, connection, accepted)
        accepted = [table for table in accepted if table.ref.name not in refused]
        published = source_slot.read_publication(connection) or {}
        if slot is None:
            source_slot.create(connection)
            slot, created = source_slot.read_slot(connection), True
        assert slot is not None
        return SlotSetup(
            slot, created, activity.system, published, refused, activity.complete_until
        )


def _publish_tables(
    source_slot: SourceSlot, connection: Connection, tables: Sequence[SourceTable]
) -> dict[str, TableError]:
    """Adds all tables at once; if that fails, one by one. Returns the error of each failed table.

    One table can make the statement fail, for example because another session has locked it.
    """
    try:
        source_slot.publish(connection, tables)
    except DatabaseError:
        errors: dict[str, TableError] = {}
        for table in tables:
            try:
                source_slot.publish(connection, [table])
            except DatabaseError as error:
                option = "where" if table.ref.native.where else "sync_mode: cdc"
                location = f"table {source_slot.database.name}.{table.ref.name}, {option}"
                errors[table.ref.name] = DatabaseError(
                    error.what, where=location, remedy=error.remedy
                )
        return errors
    return {}

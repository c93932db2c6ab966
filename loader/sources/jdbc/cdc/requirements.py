"""What a database needs before its log can be read, and the SQL that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loader.errors import TableError
from loader.sources.jdbc.cdc.slot import SourceSlot
from loader.sources.jdbc.connection import Connection

_OLDEST = 140000


@dataclass(frozen=True)
class Lack:
    """Something that is missing.

    Attributes:
        what: a sentence without its full stop.
        remedy: SQL, or what else to do.
    """

    what: str
    remedy: str


def server_lacks(connection: Connection, slot: SourceSlot) -> list[Lack]:
    """Returns what the server and the role lack."""
    text = slot.database.dialect.text
    [(version, level, may, role, used, slots, standby)] = connection.rows(
        f"""
        select
            current_setting('server_version_num'),
            current_setting('wal_level'),
            (
                select rolsuper or rolreplication or exists (
                    select from pg_catalog.pg_roles as g
                    where g.rolname = 'rds_replication'
                        and pg_catalog.pg_has_role(current_user, g.oid, 'member')
                )
                from pg_catalog.pg_roles
                where rolname = current_user
            )::text,
            current_user,
            (
                select count(*) from pg_catalog.pg_replication_slots
                where slot_name <> {text(slot.name)}
            )::text,
            current_setting('max_replication_slots'),
            pg_catalog.pg_is_in_recovery()::text
        """
    )
    lacks = []
    if int(version or 0) < _OLDEST:
        lacks.append(Lack("its PostgreSQL is older than 14", "Upgrade it"))
    if standby == "true":
        lacks.append(Lack("it is a read replica", "Name the primary in the source's url"))
    if level != "logical":
        lacks.append(
            Lack(
                f"wal_level is {level}",
                "Run `alter system set wal_level = 'logical'` and restart the server",
            )
        )
    if may != "true":
        quoted = slot.database.dialect.quote(role or "")
        lacks.append(
            Lack(f"the role {role} may not read the log", f"Run `alter role {quoted} replication`")
        )
    if int(used or 0) >= int(slots or 0):
        lacks.append(
            Lack(
                f"all {slots} replication slots are taken",
                f"Run `alter system set max_replication_slots = {int(slots or 0) + 5}` and restart "
                "the server, or drop one that nobody reads (pg_replication_slots)",
            )
        )
    return lacks


def refuse_lacking(connection: Connection, slot: SourceSlot, where: str) -> None:
    """Refuses a server that lacks something; names all that it lacks.

    Raises:
        TableError: if it does.
    """
    _refuse(server_lacks(connection, slot), where)


def _refuse(lacks: Sequence[Lack], where: str) -> None:
    if lacks:
        raise TableError(
            "the log cannot be read: " + "; ".join(lack.what for lack in lacks),
            where=where,
            remedy=". ".join(lack.remedy for lack in lacks),
        )

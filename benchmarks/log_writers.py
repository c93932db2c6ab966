"""Writers for tools that read the log: they also delete, and everything committed is recorded."""

from __future__ import annotations

from typing import Any

from benchmarks.verdict import Version
from benchmarks.writers import SEEDED, TABLE, Writers
from tests.services import Database

_AUDIT = (
    f"""
    create table audit as
    select id, amount, note, (extract(epoch from updated_at) * 1000000)::bigint as micros
    from {TABLE}
    """,
    """
    create function noted() returns trigger language plpgsql as $$ begin
        if tg_op = 'DELETE' then
            insert into audit (id) values (old.id);
        else
            insert into audit values (
                new.id,
                new.amount,
                new.note,
                (extract(epoch from new.updated_at) * 1000000)::bigint
            );
        end if;
        return null;
    end $$
    """,
    f"""
    create trigger noted after insert or update or delete on {TABLE}
    for each row execute function noted()
    """,
)


class LogWriters(Writers):
    """Writers that delete rows instead of some updates. A trigger records every version."""

    def create(self) -> None:
        super().create()
        self.database.execute(*_AUDIT)

    def _execute(self, connection: Any, does: str, values: Any, cursor: str) -> None:
        if does == "any" and values["at"] > 0.7:
            connection.execute(
                f"delete from {TABLE} where id > {SEEDED} and id = "
                f"(select id from {TABLE} where id >= %(at)s * (select max(id) from {TABLE}) "
                "order by id limit 1)",
                values,
            )
            return
        super()._execute(connection, does, values, cursor)


def committed(database: Database) -> list[Version]:
    """Returns every version committed since the table was created; deletes have no values."""
    rows = database.query("select id, amount, note, micros from audit")
    return [Version(key, (amount, note), micros) for key, amount, note, micros in rows]

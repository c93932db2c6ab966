"""`sync_mode: cdc`: a first load, then each change once and in order."""

from __future__ import annotations

from typing import Any

from tests.services import Database
from tests.sync.project import Project

NEWEST = """
    select {columns}
    from (
        select max_by(struct(*), struct(_cq_generation, _cq_batch, _cq_seq)) as newest
        from raw.{table}
        group by id
    )
    where not newest._cq_deleted
    order by newest.id
"""


def newest(project: Project, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns the newest version of each row that is not deleted."""
    listed = ", ".join(f"newest.{column}" for column in columns)
    return project.rows(NEWEST.format(columns=listed, table=table))


def follow(project: Project, database: Database, *tables: str, **options: Any) -> None:
    """Adds a source that syncs these tables with `sync_mode: cdc`."""
    reported = {table: {"sync_mode": "cdc", **options.pop(table, {})} for table in tables}
    project.jdbc(database, list(tables), table_options=reported, **options)


def position(database: Database, slot: str = "%") -> str:
    """Returns the position up to which a source's slot is confirmed."""
    [(found,)] = database.query(
        "select confirmed_flush_lsn::text from pg_replication_slots "
        f"where database = current_database() and slot_name like '{slot}'"
    )
    return str(found)


def test_changes_after_a_first_load(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table orders (id int primary key, state text, amount numeric(10, 2))",
        "insert into orders values (1, 'new', 1.50), (2, 'new', 2), (3, 'new', 3)",
    )
    follow(project, postgres_database, "orders")
    first = project.run().table("shop.orders")
    assert (first["status"], first["appended"]) == ("synced", 3)
    began = position(postgres_database)
    postgres_database.execute(
        "update orders set state = 'paid' where id = 1",
        "begin; update orders set state = 'sent' where id = 1; "
        "update orders set state = 'back' where id = 1; commit",
        "delete from orders where id = 2",
        "insert into orders values (4, 'new', 4)",
        "update orders set id = 30 where id = 3",
    )
    ran = project.run()
    assert ran.table("shop.orders")["appended"] == 7, ran.text
    assert newest(project, "orders", "id", "state", "amount") == [
        (1, "back", 1.5),
        (4, "new", 4),
        (30, "new", 3),
    ]
    versions = project.rows(
        "select state, _cq_deleted from raw.orders where id = 1 "
        "order by _cq_generation, _cq_batch, _cq_seq"
    )
    assert [state for state, _ in versions] == ["new", "paid", "sent", "back"]
    state = project.state("shop.orders")
    assert state["mark"]["slot"] == "strandline_shop"
    assert state["mark"]["log_position"] == position(postgres_database) != began
    again = project.run().table("shop.orders")
    assert (again["status"], again["appended"]) == ("nothing new", 0)

"""`where` with `sync_mode: cdc` is the publication's row filter, and applies to first loads."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from loader.sync.fault_injection import STEPS
from tests.cdc.test_changes import follow, newest
from tests.crash.conftest import workers as workers
from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project

CREATE = (
    "create table orders (id int primary key, state text, amount numeric(10, 2))",
    "alter table orders replica identity full",
    "insert into orders values (1, 'open', 1), (2, 'paid', 2), (3, null, 3), (4, 'open', 4)",
)
OPEN = "state = 'open' or state = 'new'"


def published(database: Database) -> list[tuple[Any, ...]]:
    return database.query(
        "select c.relname, pg_get_expr(r.prqual, r.prrelid) from pg_publication_rel as r "
        "join pg_publication as p on p.oid = r.prpubid and p.pubname = 'strandline_shop' "
        "join pg_class as c on c.oid = r.prrelid order by 1"
    )


def test_changes_of_rows_that_match(project: Project, postgres_database: Database) -> None:
    """The log has an insert for a row that starts to match, and a delete for one that stops."""
    postgres_database.execute(*CREATE, "create table notes (id int primary key, v int)")
    follow(project, postgres_database, "orders", "notes", orders={"where": OPEN})
    project.run()
    assert newest(project, "orders", "id", "state") == [(1, "open"), (4, "open")]
    postgres_database.execute(
        "insert into orders values (5, 'new', 5), (6, 'paid', 6), (7, 'open', 7)",
        "update orders set state = 'paid' where id = 1",
        "update orders set state = 'open' where id = 2",
        "update orders set amount = 40 where id = 4",
        "update orders set amount = 30 where id = 3",
        "update orders set id = 70 where id = 7",
        "delete from orders where id = 5",
        "insert into notes values (1, 1)",
    )
    ran = project.run()
    assert ran.table("shop.orders")["appended"] == 8, ran.text
    expected = [(2, "open", 2), (4, "open", 40), (70, "open", 7)]
    assert newest(project, "orders", "id", "state", "amount") == expected
    assert project.run().table("shop.orders")["status"] == "nothing new"
    reconciled = project.loader("reconcile")
    assert reconciled.code == 0, reconciled.text
    postgres_database.execute("truncate orders", "insert into orders values (8, 'new', 8)")
    project.run()
    assert newest(project, "orders", "id") == [(8,)]
    assert project.loader("check").code == 0


def test_a_changed_condition_reads_everything(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(*CREATE)
    for where, expected in (
        (OPEN, [1, 4]),
        ("amount > 2", [3, 4]),
        ("(amount) > 2.00", [3, 4]),
        (None, [1, 2, 3, 4]),
        ("orders.state is null", [3]),
    ):
        own = {"where": where} if where else {}
        follow(project, postgres_database, "orders", orders=own)
        project.run()
        assert newest(project, "orders", "id") == [(key,) for key in expected]
        [(_, filter_)] = published(postgres_database)
        assert bool(filter_) == bool(where)
        postgres_database.execute("update orders set amount = amount + 0")
        project.run()
        assert newest(project, "orders", "id") == [(key,) for key in expected]
    # Another user changes the filter: it is set again, and all rows are read again.
    postgres_database.execute(
        "alter publication strandline_shop set table orders where (id > 100)",
        "insert into orders values (5, null, 5)",
    )
    ran = project.run()
    assert ran.warnings == ["shop.orders: the publication was changed: all rows are read again"]
    assert newest(project, "orders", "id") == [(3,), (5,)]


def test_partitions(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table parts (tenant int, id int, v text, primary key (tenant, id)) "
        "partition by list (tenant)",
        "create table parts_1 partition of parts for values in (1)",
        "create table parts_2 partition of parts for values in (2, 3)",
        "insert into parts select 1 + n % 3, n, 'a' from generate_series(1, 9) n",
    )
    follow(project, postgres_database, "parts", parts={"where": "tenant in (1, 2)"})
    project.run()
    assert project.rows("select count(*) from raw.parts") == [(6,)]
    postgres_database.execute(
        "update parts set v = 'b'",
        "update parts set tenant = 3 where id = 3",
        "update parts set tenant = 2 where id = 2",
    )
    project.run()
    assert newest(project, "parts", "tenant", "id", "v") == [
        (2, 1, "b"),
        (2, 2, "b"),
        (2, 4, "b"),
        (1, 6, "b"),
        (2, 7, "b"),
        (1, 9, "b"),
    ]


def test_a_large_value_of_a_row_that_enters_the_filter(
    project: Project, postgres_database: Database
) -> None:
    """The log omits the value unless the replica identity is FULL; without it, the table fails."""
    large = "(select string_agg(md5(n::text), '') from generate_series(1, 300) n)"
    for table in ("complete", "by_key"):
        postgres_database.execute(
            f"create table {table} (id int primary key, note text, v int)",
            f"insert into {table} values (1, 'small', 1), (-2, {large}, 1), (3, 'old', 1)",
        )
    postgres_database.execute("alter table complete replica identity full")
    own = {table: {"where": "id > 0"} for table in ("complete", "by_key")}
    follow(project, postgres_database, *own, **own)
    project.run()
    for table in own:
        postgres_database.execute(
            f"delete from {table} where id = 3", f"update {table} set id = 3 where id = -2"
        )
    ran = project.loader("run")
    assert [(key, len(note)) for key, note in newest(project, "complete", "id", "note")] == [
        (1, 5),
        (3, 9600),
    ]
    assert "REPLICA IDENTITY to FULL" in " ".join(ran.errors)
    assert newest(project, "by_key", "id", "note") == [(1, "small"), (3, "old")]
    postgres_database.execute("alter table by_key replica identity full")
    project.run("--full-refresh")
    assert len(newest(project, "by_key", "id", "note")[1][1]) == 9600


def test_unusable_conditions_are_refused(project: Project, postgres_database: Database) -> None:
    """The table is not published, because PostgreSQL would then refuse its updates."""
    postgres_database.execute(
        *CREATE[::2],
        "create table shown (id int primary key, v int)",
        "alter table orders replica identity default",
    )
    own = {"where": OPEN}
    follow(project, postgres_database, "orders", "shown", orders=own)
    for command in ("check", "run"):
        [error] = project.loader(command).errors
        assert "replica identity (id) lacks a column of the condition" in error
        assert "Run `alter table orders replica identity full`" in error
    assert published(postgres_database) == [("shown", None)]
    postgres_database.execute("update orders set state = 'x' where id = 1")
    postgres_database.execute("alter table orders replica identity full")
    for where, expected in (
        ("state ~ 'o' and random() < 2", "mutable functions are not allowed"),
        ("id in (select id from shown)", "invalid publication WHERE expression"),
        ("stat = 'open'", 'column "stat" does not exist'),
    ):
        follow(project, postgres_database, "orders", "shown", orders={"where": where})
        [error] = project.loader("run").errors
        assert expected in error
        assert "table shop.orders, where" in error
    follow(project, postgres_database, "orders", "shown", orders=own)
    project.run()
    assert newest(project, "orders", "id") == [(4,)]


def test_a_publication_that_the_loader_may_not_alter(
    project: Project, postgres_database: Database
) -> None:
    """The loader's role may not change it, so the error contains the statements to run."""
    with contextlib.suppress(Exception):
        postgres_database.execute("drop owned by filterer", "drop role filterer")
    postgres_database.execute(
        *CREATE,
        "create role filterer login replication password 'filtered'",
        "grant select on orders to filterer",
        "create publication strandline_shop for table orders "
        "with (publish_via_partition_root = true)",
    )
    role = {"user": "filterer", "password": "filtered"}
    try:
        follow(project, postgres_database, "orders", orders={"where": OPEN}, **role)
        statements = (
            'alter publication "strandline_shop" drop table "public"."orders"; '
            f'alter publication "strandline_shop" add table "public"."orders" where ({OPEN})'
        )
        for command in ("check", "run"):
            [error] = project.loader(command).errors
            assert f"Run `{statements}` as the owner of the tables" in error
        postgres_database.execute(statements)
        assert project.loader("check").code == 0
        project.run()
        assert newest(project, "orders", "id") == [(1,), (4,)]
        follow(project, postgres_database, "orders", **role)
        [error] = project.loader("run").errors
        assert 'add table "public"."orders"` as the owner' in error
        postgres_database.execute(
            "drop publication strandline_shop",
            "create publication strandline_shop for all tables "
            "with (publish_via_partition_root = true)",
        )
        follow(project, postgres_database, "orders", orders={"where": OPEN}, **role)
        [error] = project.loader("run").errors
        assert "which PostgreSQL does not filter" in error
    finally:
        postgres_database.execute(
            "drop publication strandline_shop", "drop owned by filterer", "drop role filterer"
        )


def test_a_large_first_load(project: Project, postgres_database: Database) -> None:
    """The size of its chunks is counted in rows that match."""
    postgres_database.execute(
        "create table orders (id int primary key, v int)",
        "insert into orders select n, n from generate_series(1, 40) n",
    )
    own = {"where": "id % 2 = 0"}
    follow(project, postgres_database, "orders", batch_rows=7, orders=own)
    assert project.run().table("shop.orders")["appended"] == 20
    assert project.rows("select count(*), count(distinct _cq_batch) from raw.orders") == [(20, 3)]
    assert newest(project, "orders", "id") == [(key,) for key in range(2, 41, 2)]


@pytest.mark.slow
def test_killed_at_every_step_after_a_changed_condition(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    victim = workers.take()
    places = {f"t_{step.replace('-', '_')}": step for step in STEPS}
    for table in places:
        postgres_database.execute(
            f"create table {table} (id int primary key, v int)",
            f"insert into {table} select n, n from generate_series(1, 6) n",
        )
    follow(project, postgres_database, *places, **{table: {"where": "id <= 3"} for table in places})
    project.run("--concurrency", "4")
    own = {table: {"where": "id >= 3"} for table in places}
    follow(project, postgres_database, *places, **own)
    for table in places:
        postgres_database.execute(f"update {table} set v = 40 where id in (1, 4)")
    crashes = ",".join(f"{step}:shop.{table}" for table, step in places.items())
    victim.start(project, "run", "--concurrency", str(len(places)), crash_at=crashes)
    assert victim.died() == signal.SIGKILL
    for table in places:
        postgres_database.execute(
            f"update {table} set id = -5 where id = 5", f"update {table} set v = 60 where id = 6"
        )
    project.run("--concurrency", "4")
    for table in places:
        assert newest(project, table, "id", "v") == [(3, 3), (4, 40), (6, 60)], table


CONDITIONS = (None, "state = 'open'", "amount >= 5", "amount < 3 or state is null", "id % 2 = 0")
WRITE = st.tuples(
    st.sampled_from(["insert", "update", "update", "key", "delete"]),
    st.integers(1, 8),
    st.sampled_from(["'open'", "'paid'", "null"]),
    st.sampled_from(["null", *map(str, range(8))]),
)
ROUND = st.tuples(st.sampled_from(CONDITIONS), st.lists(WRITE, max_size=8))


@pytest.mark.slow
@hypothesis.settings(
    max_examples=3, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(rounds=st.lists(ROUND, min_size=2, max_size=4))
def test_random_conditions_between_random_writes(
    project: Project,
    postgres_database: Database,
    rounds: list[tuple[str | None, list[Any]]],
) -> None:
    postgres_database.execute(
        "drop table if exists orders",
        *(statement for statement in CREATE if not statement.startswith("insert")),
    )
    for where, writes in rounds:
        for operation, key, state, amount in writes:
            statement = {
                "insert": f"insert into orders values ({key}, {state}, {amount}) "
                "on conflict (id) do nothing",
                "update": f"update orders set state = {state}, amount = {amount} where id = {key}",
                "key": f"update orders set id = {key} + 10 where id = {key} "
                f"and not exists (select from orders where id = {key} + 10)",
                "delete": f"delete from orders where id = {key}",
            }[operation]
            postgres_database.execute(statement)
        own = {"where": where} if where else {}
        follow(project, postgres_database, "orders", orders=own)
        project.run()
        expected = postgres_database.query(
            f"select id, state, amount from orders where {where or 'true'} order by id"
        )
        assert newest(project, "orders", "id", "state", "amount") == expected

"""`where`: the raw table gets only the rows that match a condition in the source's SQL."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from loader.sync.fault_injection import STEPS
from tests.crash.conftest import workers as workers
from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project

CREATE = (
    "create table orders (id int primary key, state varchar(20), amount int, at {time})",
    "insert into orders values (1, 'open', 1, '2026-01-01 00:00:01'), "
    "(2, 'paid', 20, '2026-01-01 00:00:02'), (3, null, 30, '2026-01-01 00:00:03'), "
    "(4, 'open', null, '2026-01-01 00:00:04'), (5, 'paid', 50, '2026-01-01 00:00:05')",
)
TIMES = {"postgresql": "timestamp", "mariadb": "datetime(6)"}
OPEN = "state = 'open' or state = 'new'"
MANY = [f"insert into orders values ({i}, 'open', 0, '2026-01-01')" for i in range(10, 20)]
"""Enough rows that one of them is less than a tenth, the limit for deletes of the safety check."""


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    """A database of each kind, with a table of orders."""
    name = {"postgresql": "postgres_database", "mariadb": "mariadb_database"}[request.param]
    found: Database = request.getfixturevalue(name)
    create, *others = CREATE
    found.execute(create.format(time=TIMES[request.param]), *others)
    return found


ON_POSTGRESQL = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
ON_MARIADB = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
"""These limit a test to one database if its code is the same for all of them."""


def load(project: Project, database: Database, **options: Any) -> list[int]:
    """Syncs with these table options, and returns the ids of the newest rows."""
    project.jdbc(database, ["orders"], table_options={"orders": {"cursor_field": "at", **options}})
    project.run()
    return ids(project)


def snapshot(project: Project, table: str = "orders") -> list[tuple[Any, ...]]:
    """Returns the newest version of each row, by the version order that all models use."""
    return project.rows(
        "select row.id, row.state, row.amount from (select max_by(struct(*), "
        f"struct(_cq_generation, at, _cq_batch, _cq_seq)) as row from raw.{table} group by id) "
        "where not row._cq_deleted order by 1"
    )


def ids(project: Project) -> list[int]:
    return [row[0] for row in snapshot(project)]


def is_postgresql(database: Database) -> bool:
    return database.url.startswith("jdbc:postgresql")


@ON_MARIADB
def test_after_a_reset_rows_that_stopped_matching_get_tombstones(
    project: Project, database: Database
) -> None:
    """The next run reads all rows that match, so other keys in the raw table get tombstones."""
    database.execute(*MANY)
    load(project, database, where=OPEN)
    database.execute("update orders set state = 'gone' where id = 4")
    for _ in range(2):
        assert project.loader("state", "reset", "shop.orders").code == 0
    ran = project.run()
    assert ids(project) == [1, *range(10, 20)]
    assert [w for w in ran.warnings if "the state was reset" in w]
    assert ran.table("shop.orders")["appended"] == 12
    ran = project.run()
    assert (ran.table("shop.orders")["appended"], ids(project)) == (0, [1, *range(10, 20)])


@ON_MARIADB
def test_a_reset_of_a_table_without_a_key_duplicates_no_row(
    project: Project, database: Database
) -> None:
    database.execute("alter table orders drop " + DROPPED_KEY[is_postgresql(database)])
    load(project, database, where=OPEN)
    database.execute("insert into orders values (6, 'open', 6, '2020-01-01 00:00:00')")
    assert project.loader("state", "reset", "shop.orders").code == 0
    ran = project.run()
    assert ran.table("shop.orders")["appended"] == 1
    assert not [w for w in ran.warnings if "all rows are read again" in w]
    for new_rows in (1, 0):
        assert project.loader("state", "reset", "shop.orders").code == 0
        assert project.run().table("shop.orders")["appended"] == 0
        database.execute("update orders set state = 'open', at = '2026-02-02' where id = 5")
        assert project.run().table("shop.orders")["appended"] == new_rows
    # With another condition, the rows get a new generation.
    load(project, database, where="amount > 10")
    assert project.rows("select count(*) from raw.orders where _cq_generation = 2") == [(3,)]


DROPPED_KEY = {True: "constraint orders_pkey", False: "primary key"}


def test_only_rows_that_match_are_read(project: Project, database: Database) -> None:
    """A condition that is null excludes a row, and `or` does not reach beyond the condition."""
    assert load(project, database, where=OPEN) == [1, 4]
    assert project.rows("select count(*) from raw.orders") == [(2,)]
    database.execute(
        "insert into orders values (6, 'new', 6, '2026-01-02 00:00:00'), "
        "(7, 'paid', 7, '2026-01-02 00:00:00'), (8, null, 8, '2026-01-02 00:00:01')",
        "update orders set state = 'open', at = '2026-01-02 00:00:00' where id = 2",
        "update orders set amount = 11, at = '2026-01-02 00:00:00' where id = 1",
    )
    ran = project.run().table("shop.orders")
    assert (ran["read"], ran["appended"]) == (4, 3)
    assert snapshot(project) == [(1, "open", 11), (2, "open", 20), (4, "open", None), (6, "new", 6)]
    assert project.run().table("shop.orders")["appended"] == 0
    # Only rows that match count, for the cursor and for warnings.
    database.execute("insert into orders values (9, 'paid', 9, '2999-01-01 00:00:00')")
    ran = project.run()
    assert not any("future" in warning for warning in ran.warnings)
    assert project.state("shop.orders")["cursor"].startswith("2026-01-02 00:00:00")
    ran = project.run("--from", "2026-01-01")
    assert ran.table("shop.orders")["appended"] == 0
    reconciled = project.loader("reconcile")
    assert reconciled.code == 0, reconciled.text
    assert project.loader("check").code == 0


def test_rows_that_stop_and_start_matching(project: Project, database: Database) -> None:
    """On PostgreSQL, the next sweep finds them, with any cursor. On MariaDB, reconcile does."""
    load(project, database, where=OPEN)
    database.execute(
        "update orders set state = 'gone', at = '2026-01-02 00:00:00' where id = 1",
        "update orders set state = 'gone' where id = 4",
        "update orders set state = 'open' where id = 3",
        "insert into orders values (6, 'open', 6, '2026-01-02 00:00:01')",
    )
    ran = project.run().table("shop.orders")
    if is_postgresql(database):
        assert ids(project) == [3, 6]
        assert ran["appended"] == 4  # two rows and two tombstones
        assert project.run().table("shop.orders")["status"] == "nothing new"
        database.execute("update orders set state = 'open' where id = 4")
        assert project.run().table("shop.orders")["appended"] == 1
        # The only changes are rows that stop matching, and rows that never matched.
        database.execute(
            "update orders set state = 'gone' where id in (4, 6)",
            "update orders set amount = amount + 1 where id in (1, 2, 5)",
        )
        assert project.run().table("shop.orders")["appended"] == 2
        assert ids(project) == [3]
        database.execute("update orders set amount = amount + 1 where id in (1, 2, 5)")
        memory = project.state("shop.orders")["mark"]
        assert project.run().table("shop.orders")["status"] == "nothing new"
        assert project.state("shop.orders")["mark"] != memory
    else:
        assert ids(project) == [1, 3, 4, 6]  # row 3 is within the lookback of five minutes
    repaired = project.loader("reconcile", "--repair", "--allow-deletes")
    assert repaired.code == 0, repaired.text
    assert ids(project) == ([3] if is_postgresql(database) else [3, 6])


def test_many_rows_that_stop_matching(project: Project, postgres_database: Database) -> None:
    """There are more of them than Spark may broadcast to its executors."""
    postgres_database.execute(
        "create table orders (id int primary key, state text, amount int, at timestamp)",
        "insert into orders select n, case when n % 100 = 0 then 'open' end, n, "
        "'2026-01-01' from generate_series(1, 120000) n",
    )
    assert len(load(project, postgres_database, where=OPEN, sweep="always")) == 1200
    postgres_database.execute("update orders set state = 'gone' where id > 1000")
    assert project.run().table("shop.orders")["appended"] == 1190
    assert ids(project) == list(range(100, 1001, 100))


@ON_MARIADB
def test_a_changed_condition_reads_everything(project: Project, database: Database) -> None:
    """Older rows that now match are read, and keys that no longer match become tombstones."""
    assert load(project, database, where=OPEN) == [1, 4]
    assert load(project, database, where="amount > 10") == [2, 3, 5]
    ran = project.run()
    assert ran.warnings == [w for w in ran.warnings if "selects different rows" not in w]
    assert ran.table("shop.orders")["appended"] == 0
    assert load(project, database, where="amount > 20") == [3, 5]
    assert load(project, database) == [1, 2, 3, 4, 5]
    assert "selection" not in project.state("shop.orders")
    assert load(project, database, where="  amount > 20\n") == [3, 5]
    database.execute("delete from orders where id = 5")
    assert load(project, database, where="amount > 20", sync_mode="full_refresh") == [3, 5]
    assert load(project, database, where="amount > 21", sync_mode="full_refresh") == [3]
    modes = project.rows("select mode from raw._cq_syncs where status = 'synced' order by batch")
    assert [mode for (mode,) in modes] == ["incremental", *["full_refresh"] * 6]


@ON_POSTGRESQL
def test_a_condition_that_no_row_matches_deletes_nothing(
    project: Project, database: Database
) -> None:
    """The condition may contain a typing error."""
    load(project, database, where=OPEN)
    assert load(project, database, where="state = 'opne'") == [1, 4]
    assert any("the source is empty" in warning for warning in project.run().warnings)
    database.execute("update orders set state = 'gone' where id = 1")
    assert load(project, database, where=OPEN) == [4]
    assert load(project, database, where="state = 'paid'") == [2, 5]


@ON_POSTGRESQL
def test_a_repair_between_two_conditions(project: Project, database: Database) -> None:
    """The repair mixes rows of two conditions, so a return to the first reads all rows again."""
    load(project, database, where=OPEN)
    load(project, database, where="state = 'opne'")
    repaired = project.loader("reconcile", "--repair", "--allow-deletes")
    assert repaired.code == 0, repaired.text
    assert ids(project) == []
    assert load(project, database, where=OPEN) == [1, 4]
    options = {"cursor_field": "at", "where": "amount > 10"}
    project.jdbc(database, ["orders"], table_options={"orders": options})
    project.run("--from", "2026-01-01")
    assert load(project, database, where=OPEN) == [1, 4]


@ON_MARIADB
def test_rows_that_the_cursor_excludes_do_not_become_tombstones(
    project: Project, database: Database
) -> None:
    options = {"initial_cursor": "2026-01-01 00:00:03", "null_cursor": "exclude"}
    assert load(project, database, where="amount > 0", **options) == [3, 5]
    project.run("--from", "2026-01-01")
    assert ids(project) == [2, 3, 5] or ids(project) == [1, 2, 3, 5]
    before = set(ids(project))
    assert set(load(project, database, where="amount > 40", **options)) == before - {3}


def test_tables_without_a_key(project: Project, postgres_database: Database) -> None:
    """Partitions are filtered by the condition of their table, and copies are counted."""
    postgres_database.execute(
        "create table orders (id int, state text, amount int, at timestamp) "
        "partition by range (id)",
        "create table orders_1 partition of orders for values from (0) to (100)",
        "create table orders_2 partition of orders for values from (100) to (200)",
        "insert into orders select n % 150, case n % 2 when 0 then 'open' end, 1, '2026-01-01' "
        "from generate_series(0, 449) n",
    )
    load(project, postgres_database, where=OPEN)
    count = "select count(*), count(distinct id) from raw.orders"
    assert project.rows(count) == [(225, 75)]
    postgres_database.execute(
        "insert into orders select * from orders where id = 2 limit 1",
        "insert into orders select * from orders where id = 3 limit 1",
        "update orders set state = 'new' where id = 149",
    )
    assert project.run().table("shop.orders")["appended"] == 4
    load(project, postgres_database, where="id < 10")
    newest = "where _cq_generation = (select max(_cq_generation) from raw.orders)"
    assert project.rows(f"{count} {newest}") == [(32, 10)]


def test_other_cursors_and_keys(project: Project, postgres_database: Database) -> None:
    """With `xmin`, no sweep runs; a key that only the spec declares may have several rows."""
    postgres_database.execute(
        *(
            sql.replace("orders", table).format(time="timestamp")
            for table in NAMES
            for sql in CREATE
        )
    )
    options: dict[str, Any] = {
        "by_writer": {"cursor_field": "xmin"},
        "declared": {"cursor_field": "at", "primary_key": "id"},
        "unswept": {"cursor_field": "at", "sweep": "never"},
    }
    for table in NAMES:
        options[table]["where"] = OPEN
    project.jdbc(postgres_database, [*NAMES], table_options=options)
    project.run()
    for table in NAMES:
        postgres_database.execute(
            f"update {table} set state = 'gone', at = '2026-01-02' where id = 1",
            f"insert into {table} values (6, 'open', 6, '2026-01-02')",
        )
    ran = project.run()
    for table in NAMES:
        assert ran.table(f"shop.{table}")["appended"] == 1, table
        found = "select id from raw.{} where not _cq_deleted order by id"
        assert project.rows(found.format(table)) == [(1,), (4,), (6,)]
    repaired = project.loader("reconcile", "--repair", "--allow-deletes")
    assert repaired.code == 0, repaired.text
    for table in NAMES:
        deleted = project.rows(f"select id from raw.{table} where _cq_deleted")
        assert deleted == [(1,)], table


NAMES = ("by_writer", "declared", "unswept")


def test_a_large_table_is_read_in_ranges(project: Project, postgres_database: Database) -> None:
    """It is split by pages if it is stored in cursor order, otherwise by ranges of a column."""
    postgres_database.execute(
        "create table orders (id int primary key, state text, amount int, at timestamp)",
        "insert into orders select n, 'open', n, '2026-01-01'::timestamp + n * interval '1 s' "
        "from generate_series(1, 20000) n",
        "analyze orders",
    )
    where = "amount % 10 = 0 and orders.state = 'open'"
    for options in ({}, {"partition_column": "id"}):
        load(project, postgres_database, where=where, num_partitions=4, **options)
        project.run("--full-refresh")
        assert ids(project) == list(range(10, 20001, 10))


NO_CONDITIONS = {
    "state = 'open' -- only these": "where: -- at character 16 begins a comment",
    "state = 'open';": "where: ; at character 15 ends the statement",
    "(state = 'open'": "where: a parenthesis is not closed",
    "state = 'open') or (1 = 1": "where: ) at character 15 has no opening parenthesis",
    "state = 'open": "where: ' at character 9 begins a string that does not end",
    "state /* x */ = 'open'": "where: /* at character 7 begins a comment",
    " ": "where is empty",
}


def test_invalid_conditions_are_refused(project: Project, postgres_database: Database) -> None:
    for where, expected in NO_CONDITIONS.items():
        options = {"cursor_field": "at", "where": where}
        project.jdbc(postgres_database, ["orders"], table_options={"orders": options})
        for command in ("check", "run"):
            [error] = project.loader(command).errors
            assert f"orders.{expected}" in error


def test_errors_of_the_database_are_reported(project: Project, database: Database) -> None:
    """Its error is shown, with the table and the option. Nothing is read or published."""
    wrong = {"stat": "stat = 'open'", "===": "state ==== 'open'", "nonsense": "nonsense(state)"}
    for part, where in wrong.items():
        options = {"cursor_field": "at", "where": where}
        project.jdbc(database, ["orders"], table_options={"orders": options})
        for command in ("check", "run"):
            ran = project.loader(command)
            assert ran.code == 1
            [error] = ran.errors
            assert "table shop.orders, where" in error
            assert part in error
    project.jdbc(database, ["orders"], table_options={"orders": {"wher": "1 = 1"}})
    [error] = project.loader("check").errors
    assert "where" in error
    assert "wher" in error


@pytest.mark.slow
def test_killed_at_every_step_after_a_changed_condition(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    victim = workers.take()
    places = {f"t_{step.replace('-', '_')}": step for step in STEPS}
    for table in places:
        postgres_database.execute(
            f"create table {table} (id int primary key, state text, amount int, at timestamp)",
            f"insert into {table} select n, 'open', n, '2026-01-01' from generate_series(1, 6) n",
        )

    def follow(where: str) -> None:
        options = {"cursor_field": "at", "where": where}
        project.jdbc(postgres_database, list(places), table_options=dict.fromkeys(places, options))

    follow("id <= 3")
    project.run("--concurrency", "4")
    follow("id >= 3")
    crashes = ",".join(f"{step}:shop.{table}" for table, step in places.items())
    for table in places:
        postgres_database.execute(f"update {table} set amount = 40 where id = 4")
    victim.start(project, "run", "--concurrency", str(len(places)), crash_at=crashes)
    assert victim.died() == signal.SIGKILL
    for table in places:
        postgres_database.execute(f"update {table} set id = -id where id = 5")
    project.run("--concurrency", "4")
    for table in places:
        expected = [(3, "open", 3), (4, "open", 40), (6, "open", 6)]
        found = snapshot(project, table)
        # A hard delete is not found by a sync, only by a complete read.
        assert [row for row in found if row[0] != 5] == expected, table


CONDITIONS = (
    None,
    "state = 'open'",
    "amount >= 5",
    "amount < 3 or state is null",
    "not (state = 'open' and amount > 4)",
    "amount % 2 = 0",
)
WRITE = st.tuples(
    st.sampled_from(["insert", "update", "unmoved", "delete"]),
    st.integers(1, 8),
    st.sampled_from(["'open'", "'paid'", "null"]),
    st.sampled_from(["null", *map(str, range(8))]),
)
AT_ONCE = 4
"""The number of tables in each random example. They are synced in the same runs."""

TURN = st.tuples(st.sampled_from(CONDITIONS), st.lists(WRITE, min_size=2, max_size=6))
ROUND = st.lists(TURN, min_size=AT_ONCE, max_size=AT_ONCE)


@pytest.mark.slow
@hypothesis.settings(  # the first example is the smallest
    max_examples=2, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(rounds=st.lists(ROUND, min_size=2, max_size=5))
def test_random_conditions_between_random_writes(
    project: Project, database: Database, rounds: list[list[tuple[str | None, list[Any]]]]
) -> None:
    """On PostgreSQL, a sync misses only deletes. On both databases, reconcile finds all changes."""
    tables = [f"t{next(NUMBERS)}" for _ in range(AT_ONCE)]
    time = TIMES["postgresql" if is_postgresql(database) else "mariadb"]
    for table in tables:
        database.execute(
            f"create table {table} (id int primary key, state varchar(9), amount int, at {time})"
        )
    clock = itertools.count(1)
    for turns in rounds:
        options: dict[str, dict[str, Any]] = {}
        expected = {}
        for table, (where, writes) in zip(tables, turns, strict=True):
            for operation, key, state, amount in writes:
                minute = next(clock)
                now = f"'2026-01-01 {minute // 60:02}:{minute % 60:02}:00'"
                _write(database, table, operation, key, f"{state}, {amount}, {now}")
            options[table] = {"cursor_field": "at", **({"where": where} if where else {})}
            matching = f"from {table} where {where or 'id > 0'}"
            expected[table] = database.query(f"select id, state, amount {matching} order by id")
        project.jdbc(database, tables, table_options=options)
        project.run()
        for table in tables if is_postgresql(database) else ():
            existing = {row[0] for row in database.query(f"select id from {table}")}
            found = [row for row in snapshot(project, table) if row[0] in existing]
            assert not expected[table] or found == expected[table], table
        repaired = project.loader("reconcile", "--repair", "--allow-deletes")
        assert repaired.code == 0, repaired.text
        for table in tables:
            assert not expected[table] or snapshot(project, table) == expected[table], table


def _write(database: Database, table: str, operation: str, key: int, values: str) -> None:
    """Changes a row; `unmoved` is an update that keeps the cursor."""
    state, amount, at = values.split(", ")
    if operation in ("insert", "delete"):
        database.execute(f"delete from {table} where id = {key}")
    if operation == "insert":
        database.execute(f"insert into {table} values ({key}, {values})")
    if operation in ("update", "unmoved"):
        moved = f", at = {at}" if operation == "update" else ""
        database.execute(
            f"update {table} set state = {state}, amount = {amount}{moved} where id = {key}"
        )


NUMBERS = itertools.count()


def test_rows_that_stop_matching_before_all_rows_are_read(
    project: Project, postgres_database: Database
) -> None:
    """After a column with values is added or renamed, the next sync reads all rows that match."""
    create, *others = CREATE
    postgres_database.execute(create.format(time="timestamp"), *others)
    load(project, postgres_database, where="state is not null")
    postgres_database.execute(
        "update orders set state = null where id = 1",
        "alter table orders add note varchar(10) default 'x'",
    )
    project.run()
    assert ids(project) == [2, 4, 5]
    postgres_database.execute(
        "update orders set state = null where id = 4",
        "alter table orders rename note to remark",
    )
    project.run()
    project.run()  # the sweep of the next sync finds it
    assert ids(project) == [2, 5]


@ON_POSTGRESQL
def test_rows_that_stop_matching_before_a_full_refresh(
    project: Project, database: Database
) -> None:
    """No later sweep would find them, because the refresh has seen all transactions."""
    database.execute("update orders set state = 'open'", *MANY)
    load(project, database, where=OPEN)
    database.execute("update orders set state = 'gone' where id = 4")
    project.run("--full-refresh")
    assert ids(project) == [1, 2, 3, 5, *range(10, 20)]
    assert project.run().table("shop.orders")["appended"] == 0
    database.execute("update orders set state = 'gone'")
    project.run("--full-refresh")  # deletes nothing: the condition may be wrong
    assert ids(project) == [1, 2, 3, 5, *range(10, 20)]

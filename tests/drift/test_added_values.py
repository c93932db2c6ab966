"""Values of a column that an ALTER adds or renames are read, although no cursor changes."""

from __future__ import annotations

import pytest

from loader.sync.fault_injection import STEPS
from tests.crash.steps import run_with
from tests.services import Database
from tests.sync.project import Project, Ran

AGAIN = "rows that were read before have values in"


def _read_latest(project: Project, *columns: str) -> list[tuple[object, ...]]:
    """Reads the newest version of each key, like a latest table."""
    newest = "struct(_cq_generation, c, _cq_batch, _cq_seq)"
    values = ", ".join(f"max_by({column}, {newest}) as {column}" for column in columns)
    return project.rows(f"select id, {values} from raw.t group by id order by id")


def _find_warnings(ran: Ran) -> list[str]:
    return [warning for warning in ran.warnings if AGAIN in warning]


@pytest.mark.parametrize("kind", ["postgresql", "xmin", "mariadb"])
def test_rows_that_were_read_before_get_the_values_of_a_new_column(
    project: Project, kind: str, request: pytest.FixtureRequest
) -> None:
    server = "mariadb" if kind == "mariadb" else "postgres"
    database: Database = request.getfixturevalue(f"{server}_database")
    database.execute(
        "create table t (id int primary key, c int, a int)",
        "insert into t values (1, 1, 10), (2, 2, 20), (3, 3, null)",
    )
    cursor = "xmin" if kind == "xmin" else "c"
    project.jdbc(database, ["t"], table_options={"t": {"cursor_field": cursor}})
    assert project.run().table("shop.t")["appended"] == 3

    database.execute("alter table t add column plain int")
    assert _find_warnings(project.run()) == []

    database.execute(
        "alter table t add column note varchar(9) default 'none'",
        "insert into t values (4, 4, 4, 4, 'x')",
    )
    ran = project.run()
    assert (ran.table("shop.t")["appended"], len(_find_warnings(ran))) == (4, 1)
    assert _read_latest(project, "note") == [(1, "none"), (2, "none"), (3, "none"), (4, "x")]
    ran = project.run()
    assert (ran.table("shop.t")["status"], _find_warnings(ran)) == ("nothing new", [])

    # no row is written: the ALTER alone is detected
    database.execute("alter table t rename column a to b")
    ran = project.run()
    assert (ran.table("shop.t")["appended"], len(_find_warnings(ran))) == (3, 1)
    assert _read_latest(project, "b", "note") == [
        (1, 10, "none"),
        (2, 20, "none"),
        (3, None, "none"),
        (4, 4, "x"),
    ]
    database.execute("update t set b = 5, c = 9 where id = 1")
    ran = project.run()
    assert (ran.table("shop.t")["appended"], _find_warnings(ran)) == (1, [])
    assert _read_latest(project, "b", "c")[0] == (1, 5, 9)


def test_a_backfill_leaves_the_values_of_a_new_column_to_the_next_run(
    project: Project, postgres_database: Database
) -> None:
    """It reads only some of the rows, so it must not record the column as loaded."""
    postgres_database.execute(
        "create table t (id int primary key, c int)",
        "insert into t values (1, 1), (2, 2), (3, 3)",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    postgres_database.execute("alter table t add column note text default 'none'")
    assert project.run("--from", "2", "--to", "2").table("shop.t")["appended"] == 1
    ran = project.run()
    assert (ran.table("shop.t")["appended"], len(_find_warnings(ran))) == (2, 1)
    assert _read_latest(project, "note") == [(1, "none"), (2, "none"), (3, "none")]
    assert project.run().table("shop.t")["status"] == "nothing new"
    changes = project.rows(
        "select schema_changes from raw._cq_syncs where batch > 1 order by batch"
    )
    assert changes == [(None,), ("added note string",)]


def test_a_column_that_comes_back_and_one_that_only_a_late_row_has(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, a int)",
        "insert into t values (1, 1, 10), (2, 2, 20), (3, 3, 30)",
    )
    options = {"t": {"cursor_field": "c", "initial_cursor": 2}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    assert project.run().table("shop.t")["appended"] == 2
    postgres_database.execute("alter table t rename column a to b")
    assert project.run().table("shop.t")["appended"] == 2
    postgres_database.execute("alter table t rename column b to a")
    ran = project.run()
    assert (ran.table("shop.t")["appended"], len(_find_warnings(ran))) == (2, 1)
    assert project.run().table("shop.t")["status"] == "nothing new"
    [before] = project.rows("select count(*) from raw.t")
    postgres_database.execute(
        "alter table t add column d int", "update t set d = 1 where id = 2"
    )  # a late row, which a sweep finds below the window
    assert _find_warnings(project.run()) == []
    assert _find_warnings(project.run()) == []
    assert project.rows("select count(*) from raw.t") == [(before[0] + 1,)]


def test_the_row_at_the_cursor_is_appended_again_after_a_type_change(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, a int)", "insert into t values (1, 1, 10)"
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    postgres_database.execute("alter table t alter column a type text")
    assert project.run().table("shop.t")["appended"] == 1  # into another column
    assert project.rows("select _cq_generation, a, a__string from raw.t order by 1") == [
        (1, 10, None),
        (2, None, "10"),
    ]


def test_a_run_that_ends_at_any_step_of_the_second_read_loses_no_value(
    project: Project, postgres_database: Database
) -> None:
    """This includes a run that ends after it has altered the raw table."""
    tables = {step.replace("-", "_"): step for step in STEPS}
    for table in tables:
        postgres_database.execute(
            f"create table {table} (id int primary key, c int)",
            f"insert into {table} values (1, 1), (2, 2), (3, 3)",
        )
    options = {table: {"cursor_field": "c"} for table in tables}
    project.jdbc(postgres_database, list(tables), table_options=options)
    project.run()
    postgres_database.execute(
        *(f"alter table {table} add column note text default 'none'" for table in tables)
    )

    def stop(step: str, name: str) -> None:
        if tables[name.removeprefix("shop.")] == step:
            raise KeyError(step)

    stopped = run_with(project, stop)
    assert sum(outcome.error is not None for outcome in stopped.values()) > len(tables) / 2
    project.run()
    newest = "struct(_cq_generation, c, _cq_batch, _cq_seq)"
    for table in tables:
        query = f"select id, max_by(note, {newest}) from raw.{table} group by id order by id"
        assert project.rows(query) == [(n, "none") for n in (1, 2, 3)], table
        assert project.rows(f"select count(*) from raw.{table}") == [(6,)], table
    assert _find_warnings(project.run()) == []

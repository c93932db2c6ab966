"""`loader reconcile` with `sync_mode: cdc`: writes during a comparison are no differences."""

from __future__ import annotations

from tests.cdc.test_changes import follow, newest
from tests.reconcile.shop import counts, nothing, reconcile_while
from tests.services import Database
from tests.sync.project import Project

THINGS = (
    "create table things (id int primary key, v int)",
    "insert into things select n, n from generate_series(1, 30) n",
)


def _assert_equal(project: Project, database: Database, table: str = "things") -> None:
    source = database.query(f"select id, v from {table} order by id")
    assert newest(project, table, "id", "v") == source


def test_writes_during_a_comparison_are_no_differences(
    project: Project, postgres_database: Database
) -> None:
    """The first reconcile also loads the table; the second one reads the log."""
    postgres_database.execute(*THINGS)
    follow(project, postgres_database, "things")
    for number in (1, 2):

        def write(number: int = number) -> None:
            postgres_database.execute(
                f"update things set v = v + 100 where id = {number}",
                f"delete from things where id = {number + 10}",
                f"insert into things values ({number + 30}, 0)",
            )

        found = reconcile_while(project, "things", "comparing", write)["things"]
        assert (counts(found), found.changed) == (nothing(), 0)
        _assert_equal(project, postgres_database)
        assert len(project.rows("select id from raw.things where _cq_deleted")) == number
    assert project.run().table("shop.things")["appended"] == 0

    # A wrong row in the raw table is still found and repaired.
    project.spark.sql(f"update {project.schema}.things set v = -1 where id = 5")
    change = "update things set v = v + 1 where id > 20"
    found = reconcile_while(
        project, "things", "comparing", lambda: postgres_database.execute(change)
    )["things"]
    assert counts(found) == {**nothing(), "missed_updates": 1}
    _assert_equal(project, postgres_database)


def test_a_table_that_is_loaded_after_another_was_compared(
    project: Project, postgres_database: Database
) -> None:
    """Its comparison must not use the other table's snapshot, which is older than its rows."""
    postgres_database.execute(
        *THINGS,
        "create table words (id int primary key, v int)",
        "insert into words select n, n from generate_series(1, 30) n",
    )
    follow(project, postgres_database, "things", "words")
    found = reconcile_while(
        project,
        "words",
        "counting",
        lambda: postgres_database.execute(
            "update words set v = 100 where id = 7", "delete from words where id = 8"
        ),
    )
    assert [counts(one) for one in found.values()] == [nothing(), nothing()]
    assert [*found] == ["things", "words"]
    _assert_equal(project, postgres_database, "words")


def test_the_snapshot_of_cursor_tables_is_not_used(
    project: Project, postgres_database: Database
) -> None:
    """A repair from this snapshot would overwrite newer rows."""
    postgres_database.execute(
        *THINGS,
        "create table by_cursor (id int primary key, at timestamptz)",
        "insert into by_cursor values (1, now())",
    )
    options = {"things": {"sync_mode": "cdc"}, "by_cursor": {"cursor_field": "at"}}
    project.jdbc(postgres_database, ["by_cursor", "things"], table_options=options)
    project.run()
    found = reconcile_while(
        project,
        "things",
        "counting",
        lambda: postgres_database.execute("update things set v = 100 where id = 7"),
    )
    assert [counts(one) for one in found.values()] == [nothing(), nothing()]
    assert found["things"].synced == 1
    _assert_equal(project, postgres_database)

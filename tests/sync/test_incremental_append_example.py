"""The example of Airbyte's "Incremental Append" page, with all three states of its table.

It includes the page's "known limitations" example: a row that is updated while its cursor stays
below the stored one. On PostgreSQL, the next sweep finds the row by its transaction. Without
sweeps, the row is found only within the lookback.
"""

from __future__ import annotations

from tests.services import Database
from tests.sync.project import Project

LOUIS = ("Louis XVI", False, 1754)
MARIE = ("Marie Antoinette", False, 1755)
SON = ("Louis XVII", False, 1785)


def _create_kings(project: Project, database: Database, **options: object) -> None:
    database.execute(
        "create table kings (name text, deceased boolean, updated_at int)",
        "insert into kings values ('Louis XVI', false, 1754), ('Marie Antoinette', false, 1755)",
    )
    table = {"cursor_field": "updated_at", "primary_key": "name", **options}
    project.jdbc(database, ["kings"], table_options={"kings": table})


def _read_raw(project: Project) -> list[tuple[object, ...]]:
    return project.rows(
        "select name, deceased, updated_at from raw.kings order by _cq_batch, updated_at, name"
    )


def test_new_versions_are_appended_and_old_ones_are_kept(
    project: Project, postgres_database: Database
) -> None:
    _create_kings(project, postgres_database)
    project.run()
    assert _read_raw(project) == [LOUIS, MARIE]

    postgres_database.execute("insert into kings values ('Louis XVII', false, 1785)")
    project.run()
    assert _read_raw(project) == [LOUIS, MARIE, SON]

    postgres_database.execute(
        "update kings set deceased = true, updated_at = 1793 where updated_at < 1785"
    )
    project.run()
    dead = [("Louis XVI", True, 1793), ("Marie Antoinette", True, 1793)]
    assert _read_raw(project) == [LOUIS, MARIE, SON, *dead]


def test_a_sweep_finds_an_update_below_the_cursor(
    project: Project, postgres_database: Database
) -> None:
    _create_kings(project, postgres_database)
    project.run()
    postgres_database.execute("update kings set deceased = true where name = 'Louis XVI'")
    assert project.run().table("shop.kings")["appended"] == 1
    assert _read_raw(project)[-1] == ("Louis XVI", True, 1754)


def test_without_sweeps_an_update_below_the_lookback_is_missed(
    project: Project, postgres_database: Database
) -> None:
    _create_kings(project, postgres_database, lookback=0, sweep="never")
    project.run()
    postgres_database.execute("update kings set deceased = true where name = 'Louis XVI'")
    assert project.run().table("shop.kings")["status"] == "nothing new"
    assert _read_raw(project) == [LOUIS, MARIE]


def test_an_update_within_the_lookback_is_found(
    project: Project, postgres_database: Database
) -> None:
    _create_kings(project, postgres_database, lookback=1)
    project.run()
    postgres_database.execute("update kings set deceased = true where name = 'Louis XVI'")
    ran = project.run().table("shop.kings")
    assert (ran["read"], ran["appended"], ran["redelivered"]) == (2, 1, 1)
    assert _read_raw(project)[-1] == ("Louis XVI", True, 1754)


def test_an_update_at_the_cursor_is_found(project: Project, postgres_database: Database) -> None:
    _create_kings(project, postgres_database)
    project.run()
    postgres_database.execute("update kings set deceased = true where updated_at = 1755")
    assert project.run().table("shop.kings")["appended"] == 1
    assert _read_raw(project)[-1] == ("Marie Antoinette", True, 1755)


def test_appending_redelivered_rows_gives_the_duplicates_of_the_page(
    project: Project, postgres_database: Database
) -> None:
    _create_kings(project, postgres_database, redelivered_rows="append")
    project.run()
    for _ in range(2):
        assert project.run().table("shop.kings")["appended"] == 1
    assert _read_raw(project) == [LOUIS, MARIE, MARIE, MARIE]

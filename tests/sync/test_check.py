"""`loader check` reports problems of cursors, such as missing indexes and future dates."""

from __future__ import annotations

from tests.services import Database
from tests.sync.project import Project


def _read_notes(project: Project) -> dict[str, str]:
    checked = project.loader("check")
    assert checked.code == 0, checked.text
    return {e["table"].removeprefix("shop."): e["notes"] for e in checked.events if "notes" in e}


def test_problems_of_cursors_are_reported(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table fine (id int primary key, at timestamptz)",
        "create index on fine (at)",
        "insert into fine values (1, '2025-01-01Z')",
        "create table holes (id int primary key, at timestamptz)",
        "insert into holes values (1, null), (2, '2025-01-01Z'), (3, '2999-01-01Z')",
        "create table coarse (id int primary key, day date)",
        "insert into coarse select n, '2025-01-01' from generate_series(1, 1500) n",
        "create view seen as select * from coarse",
    )
    options = {
        "fine": {"cursor_field": "at"},
        "holes": {"cursor_field": "at"},
        "coarse": {"cursor_field": "day"},
        "seen": {"cursor_field": "day", "primary_key": ["id"]},
    }
    project.jdbc(postgres_database, list(options), table_options=options)
    notes = _read_notes(project)
    assert notes["fine"] == ""
    assert notes["holes"] == (
        "at has no index: every sync scans the whole table; "
        "1 of 3 rows have no at: they are read at every sync; 1 row is dated in the future"
    )
    assert "1,500 rows share the highest day: every sync rereads them" in notes["seen"]
    assert "share the highest" not in notes["coarse"]  # not reread: a digest is compared
    assert "a date cursor is coarse" in notes["coarse"]


def test_updates_that_did_not_change_the_cursor_are_reported(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table parts (id int primary key, note text, version int)",
        "create index on parts (version)",
        "insert into parts values (1, 'a', 7), (2, 'b', 7)",
    )
    options = {"parts": {"cursor_field": "version"}}
    project.jdbc(postgres_database, ["parts"], table_options=options)
    assert _read_notes(project) == {"parts": ""}
    project.run()
    postgres_database.execute("update parts set note = 'c' where id = 1")
    project.run()
    assert _read_notes(project) == {
        "parts": "1 row was updated, but version stayed the same: such updates are found only if "
        "they are at the cursor or within the lookback"
    }

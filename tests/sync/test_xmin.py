"""PostgreSQL tables without a cursor column: `xmin`, a row's transaction id, is the cursor."""

from __future__ import annotations

import pytest

from tests.services import Database
from tests.sync.project import Project


@pytest.fixture
def parts(project: Project, postgres_database: Database) -> Database:
    """A table without a time column, with three rows that one transaction wrote."""
    postgres_database.execute(
        "create table parts (id int primary key, note text)",
        "insert into parts select n, 'n' || n from generate_series(1, 3) n",
    )
    project.jdbc(postgres_database, ["parts"], table_options={"parts": {"cursor_field": "xmin"}})
    return postgres_database


def _read_newest(project: Project) -> list[tuple[int, str]]:
    return project.rows(
        "select id, max_by(note, struct(xmin, _cq_batch, _cq_seq)) from raw.parts "
        "group by id order by id"
    )


def _sync_and_compare(project: Project, database: Database) -> dict[str, object]:
    ran = project.run().table("shop.parts")
    assert _read_newest(project) == database.query("select id, note from parts order by id")
    return ran


def test_inserts_and_updates_are_found_and_nothing_is_read_twice(
    project: Project, parts: Database
) -> None:
    assert _sync_and_compare(project, parts)["appended"] == 3
    parts.execute("insert into parts values (4, 'n4')", "update parts set note = 'u' where id = 1")
    ran = _sync_and_compare(project, parts)
    assert (ran["read"], ran["appended"]) == (2, 2)
    parts.execute("vacuum freeze parts")
    ran = _sync_and_compare(project, parts)
    assert (ran["read"], ran["status"]) == (0, "nothing new")
    ids = project.rows("select max(xmin) from raw.parts")
    assert ids == parts.query("select max(xmin::text::bigint) from parts")


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_transaction_that_commits_late_is_found(
    project: Project, parts: Database, savepoint: bool
) -> None:
    project.run()
    late = parts.connect()
    late.autocommit = False
    late.execute("select txid_current()")
    if savepoint:
        late.execute("savepoint s")
        late.execute("insert into parts values (5, 'late')")
        late.execute("release savepoint s")
    parts.execute("insert into parts values (6, 'n6')")
    assert _sync_and_compare(project, parts)["appended"] == 1
    late.execute("update parts set note = 'late' where id = 2")
    late.commit()
    late.close()
    ran = _sync_and_compare(project, parts)
    assert ran["appended"] == (2 if savepoint else 1)
    assert ran["redelivered"] == 1  # the row that was written while the late transaction was open
    assert _sync_and_compare(project, parts)["read"] <= 3
    assert _sync_and_compare(project, parts)["read"] == 0


def test_transactions_before_and_after_a_wraparound_are_distinguished(
    project: Project, parts: Database
) -> None:
    from loader.sources.jdbc.postgresql.continuity import TransactionMark

    [(shown,)] = parts.query("select max(xmin::text::bigint) from parts")
    for epochs in (0, 1, 5):
        seen = TransactionMark(None, 0, False, "", xmax=epochs * 2**32 + shown + 10)
        [(full,)] = parts.query(f"select max({seen.select_writer()}) from parts")
        assert full == epochs * 2**32 + shown
    # The counter has just wrapped around: the rows are from the previous epoch.
    seen = TransactionMark(None, 0, False, "", xmax=2**32 + shown - 1)
    [(full,)] = parts.query(f"select max({seen.select_writer()}) from parts")
    assert full == shown


def test_a_lookback_and_a_view_are_refused(project: Project, parts: Database) -> None:
    parts.execute("create view v as select * from parts")
    options = {
        "parts": {"cursor_field": "XMIN", "lookback": "10"},
        "v": {"cursor_field": "xmin", "primary_key": "id"},
    }
    project.jdbc(parts, ["parts", "v"], table_options=options)
    ran = project.loader("run")
    assert ran.code == 1
    assert sorted(ran.errors) == [
        "table shop.parts, cursor_field: the cursor xmin finds late rows without a lookback. "
        "Remove the lookback",
        "table shop.v, cursor_field: views and foreign tables do not record which transaction "
        "wrote a row. Choose a column, or read its underlying tables",
    ]

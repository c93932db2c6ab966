"""A backfill (`loader run --from`) finds missed changes and does not move the cursor."""

from __future__ import annotations

import datetime as dt

import pytest

from loader.sync import backfill
from tests.services import Database
from tests.sync.project import Project

MONTHS = 12


@pytest.fixture
def orders(project: Project, postgres_database: Database) -> Database:
    """Two rows per month, synced, then updated without a change of their cursors."""
    postgres_database.execute(
        "create table orders (id int primary key, note text, at date)",
        "insert into orders select n, 'first', date '2025-01-03' + (n - 1) / 2 * 31 "
        f"from generate_series(1, {2 * MONTHS}) n",
    )
    project.jdbc(postgres_database, ["orders"], table_options={"orders": {"cursor_field": "at"}})
    project.run()
    postgres_database.execute("update orders set note = 'changed'")
    return postgres_database


def read_newest(project: Project) -> list[tuple[object, ...]]:
    return project.rows(
        "select id, max_by(note, struct(_cq_generation, at, _cq_batch, _cq_seq)) "
        "from raw.orders group by id order by id"
    )


def test_a_range_is_read_again_in_chunks(project: Project, orders: Database) -> None:
    before = project.state("shop.orders")
    ran = project.run("--from", "2025-01-01", "--to", "2025-06-30", "--chunk", "31 days")
    line = ran.table("shop.orders")
    assert (line["read"], line["appended"], line["status"]) == (12, 12, "synced")
    ledger = project.rows(
        "select mode, batch, cursor_low, cursor_high, rows_appended from raw._cq_syncs "
        "where batch > 1 order by batch"
    )
    lows = [dt.date(2025, 1, 1) + dt.timedelta(days=31 * n) for n in range(6)]
    high = before["cursor"]
    assert ledger == [("backfill", 2 + n, low.isoformat(), high, 2) for n, low in enumerate(lows)]
    after = project.state("shop.orders")
    assert after == before | {"batch": 7}
    notes = [note for _, note in read_newest(project)]
    assert notes == ["changed"] * 12 + ["first"] * 12

    # A second backfill appends nothing, and the next sync continues at the stored cursor.
    ran = project.run("--from", "2025-01-01", "--to", "2025-06-30")
    assert (ran.table("shop.orders")["appended"], ran.table("shop.orders")["redelivered"]) == (
        0,
        12,
    )
    orders.execute("insert into orders values (99, 'new', date '2026-01-01')")
    project.run()
    assert len(read_newest(project)) == 2 * MONTHS + 1


def test_a_chunk_of_dates_is_at_least_a_day(
    project: Project, orders: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a single day has more rows than a chunk should have."""
    monkeypatch.setattr(backfill, "ROWS_A_CHUNK", 1)
    ran = project.run("--from", "2025-01-03", "--to", "2025-01-04")
    assert ran.table("shop.orders")["appended"] == 2
    assert project.rows("select max(_cq_batch) from raw.orders") == [(2,)]


def test_without_an_end_a_backfill_stops_at_the_cursor(project: Project, orders: Database) -> None:
    assert project.run("--from", "2025-01-01").table("shop.orders")["appended"] == 2 * MONTHS
    assert read_newest(project) == orders.query("select id, note from orders order by id")


WRONG: dict[str, tuple[list[str], int]] = {
    "ends (2025-01-01) before it starts": (["--from", "2025-06-30", "--to", "2025-01-01"], 1),
    "'June' is not a value of the column's type, date": (["--from", "June"], 1),
    "'100' does not fit a cursor of type date": (["--from", "2025-01-01", "--chunk", "100"], 1),
    "--chunk: 'fortnight' is no": (["--from", "2025-01-01", "--chunk", "fortnight"], 1),
    "into more than 10000 batches": (["--from", "0001-01-01", "--chunk", "1 day"], 1),
    "--to and --chunk need --from": (["--to", "2025-01-01"], 2),
}
"""By a part of the error: the arguments that cause it, and the exit code."""


def test_an_invalid_range_is_one_clear_error(project: Project, orders: Database) -> None:
    for words, (arguments, code) in WRONG.items():
        ran = project.loader("run", *arguments)
        assert (ran.code, words in ran.text) == (code, True), ran.text
        assert ran.errors[1:] == []
    assert project.state("shop.orders")["batch"] == 1


def test_a_table_that_was_never_synced_is_rejected(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table empty (id int primary key, at date)")
    project.jdbc(postgres_database, ["empty"], table_options={"empty": {"cursor_field": "at"}})
    ran = project.loader("run", "--from", "2025-01-01")
    assert (ran.code, "the table was never synced" in ran.errors[0]) == (1, True)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("double precision", "1.7e18"), ("numeric(38)", "12345678901234567890123456789012345000")],
)
def test_large_numbers_are_split_exactly_or_rejected(
    project: Project, postgres_database: Database, type_: str, value: str
) -> None:
    """Doubles of this size are 256 apart, and Python's default context rounds long decimals."""
    postgres_database.execute(
        f"create table t (id int primary key, at {type_})",
        f"insert into t select n, {value} + n * 100 from generate_series(0, 9) as n",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    project.run()
    if type_ == "numeric(38)":
        again = project.run("--from", value, "--chunk", "100").table("shop.t")
        assert (again["appended"], again["redelivered"]) == (0, 19)  # chunks share their bounds
        return
    ran = project.loader("run", "--from", value, "--chunk", "100")
    assert (ran.code, "further apart than 100" in ran.errors[0]) == (1, True)
    assert project.run("--from", value, "--chunk", "512").table("shop.t")["appended"] == 0

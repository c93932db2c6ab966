"""If a key's cursor decreases, the source's current row still becomes its newest version."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.rows.cursor import Cursor, CursorType
from loader.rows.redelivery import OVERRULES, REDELIVERED, flag_redelivered, select_keys
from loader.rows.version_order import Generations
from loader.rows.window import Bounds, CursorField, Window
from loader.spark.session import plan_simply, sibling
from tests.frames import frame_of
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_late_commits import _transaction


@pytest.fixture
def events(project: Project, postgres_database: Database) -> Database:
    """A table of five rows whose cursor is set by now(), synced once."""
    postgres_database.execute(
        "create table events (id int primary key, note text, at timestamptz default now())",
        "insert into events select n, 'first' from generate_series(1, 5) n",
    )
    project.jdbc(postgres_database, ["events"], table_options={"events": {"cursor_field": "at"}})
    project.run()
    return postgres_database


def _read_newest(project: Project) -> list[tuple[object, ...]]:
    """Returns the newest version of each key, by the version order that all models use."""
    return project.rows(
        "select id, max_by(note, struct(_cq_generation, at, _cq_batch, _cq_seq)) "
        "from raw.events group by id order by id"
    )


def _read_source(database: Database) -> list[tuple[object, ...]]:
    return database.query("select id, note from events order by id")


def test_an_update_with_an_older_now_that_commits_last_is_the_newest(
    project: Project, events: Database
) -> None:
    with _transaction(events) as older:
        older.execute("select now()")
        events.execute("update events set note = 'second', at = now() where id = 1")
        assert project.run().table("shop.events")["appended"] == 1
        older.execute("update events set note = 'third', at = now() where id = 1")
        older.commit()
    ran = project.run().table("shop.events")
    assert (ran["appended"], ran["redelivered"]) == (1, 0)
    assert _read_newest(project) == _read_source(events)
    state = project.state("shop.events")
    assert (state["generation"], state["base_generation"]) == (2, 1)
    # Later rows are appended in the new generation, and those of the old one are not repeated.
    events.execute("update events set note = 'fourth', at = now() where id in (1, 2)")
    ran = project.run().table("shop.events")
    assert ran["appended"] == 2
    assert project.run().table("shop.events")["status"] == "nothing new"
    assert _read_newest(project) == _read_source(events)


def test_rows_of_the_previous_generation_are_not_appended_again(
    project: Project, events: Database
) -> None:
    with _transaction(events) as oldest:
        oldest.execute("select now()")
        with _transaction(events) as older:
            older.execute("select now()")
            events.execute("update events set note = 'second', at = now()")
            project.run()
            older.execute("update events set note = 'third', at = now() where id = 1")
            older.commit()
        # The oldest transaction is still open, so the window includes all of these rows.
        assert project.run().table("shop.events")["appended"] == 1
        ran = project.run().table("shop.events")
        assert (ran["read"], ran["appended"]) == (4, 0)
        # A row that again equals an older generation's version, cursor included, is a new version.
        [(at,)] = events.query("select at::text from events where id = 2")
        events.execute(f"update events set note = 'second', at = '{at}' where id = 1")
        assert project.run().table("shop.events")["appended"] == 1
        assert project.run().table("shop.events")["appended"] == 0
        oldest.rollback()
    assert _read_newest(project) == _read_source(events)


@pytest.mark.parametrize("policy", ["drop", "append"])
def test_a_future_cursor_that_is_corrected(project: Project, events: Database, policy: str) -> None:
    options = {"events": {"cursor_field": "at", "redelivered_rows": policy}}
    project.jdbc(events, ["events"], table_options=options)
    events.execute("update events set note = 'typo', at = '2999-01-01Z' where id = 3")
    project.run()
    assert (3, "typo") in _read_newest(project)
    events.execute("update events set note = 'right', at = now() where id = 3")
    project.run()
    assert _read_newest(project) == _read_source(events)


def test_a_cursor_that_became_null(project: Project, events: Database) -> None:
    events.execute("update events set note = 'later', at = now() where id > 1")
    project.run()
    events.execute("update events set note = 'no time', at = null where id = 1")
    ran = project.run().table("shop.events")
    assert ran["appended"] == 1
    assert project.run().table("shop.events")["status"] == "nothing new"
    assert _read_newest(project) == _read_source(events)
    events.execute("insert into events values (6, 'never had one', null)")
    before = project.state("shop.events")["generation"]
    project.run()
    assert project.state("shop.events")["generation"] == before
    assert _read_newest(project) == _read_source(events)


def test_a_late_row_whose_time_was_rounded_or_is_of_another_zone(
    project: Project, postgres_database: Database
) -> None:
    kinds = ["timestamptz(0)", "timestamptz(3)", "timestamp(0)", "timestamp"]
    tables = {f"late_{number}": kind for number, kind in enumerate(kinds)}
    rows = [f"insert into {table} default values" for table in tables]
    postgres_database.execute(
        *(
            f"create table {table} (id serial primary key, at {kind} default now())"
            for table, kind in tables.items()
        ),
        *rows,
    )
    options = {table: {"cursor_field": "at"} for table in tables}
    project.jdbc(postgres_database, list(tables), table_options=options)
    project.run()
    for _ in range(2):
        with _transaction(postgres_database) as open_:
            open_.execute("set time zone 'America/New_York'")
            for row in rows:
                open_.execute(row)
            time.sleep(1.1)
            postgres_database.execute(*rows)
            project.run()
            open_.commit()
        project.run()
    for table, kind in tables.items():
        found = project.rows(f"select id from raw.{table} order by id")
        assert found == postgres_database.query(f"select id from {table} order by id"), kind


VERSION = (
    "id int, at int, _cq_row_hash bigint, _cq_deleted boolean, _cq_generation bigint, "
    "_cq_batch bigint, _cq_seq bigint"
)


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_version_is_found_in_any_window_and_generation(
    spark: SparkSession, seed: int
) -> None:
    """The result is the same whether or not the raw table is known to have older generations."""
    random, base, floor, current = Random(seed), 2, 3, 5

    def version(key: int, at: int, generation: int, batch: int, seq: int) -> list[Any]:
        return [key, at, random.randrange(2) + 2 * at, False, generation, batch, seq]

    raw = []
    for seq in range(120):
        batch = random.randrange(1, 9)
        generation = 1 + batch * current // 9  # later batches have no lower generation
        raw.append(version(random.randrange(40), random.randrange(7), generation, batch, seq))
    batch_rows = [version(key, random.randrange(floor, 7), current, 9, key) for key in range(30)]
    window = Window(
        CursorField("at", CursorType.INTEGER), Cursor.parse(str(floor + 1), CursorType.INTEGER)
    )
    bounds = Bounds(None, reach=Cursor.parse(str(floor), CursorType.INTEGER))
    newest: dict[int, list[Any]] = {}
    for row in sorted(raw, key=lambda v: (v[4], v[1], v[5], v[6])):
        if row[4] >= base:
            newest[row[0]] = row
    expected = set()
    for key, at, value, *_ in batch_rows:
        known = newest.get(key)
        is_known = known is not None and known[1:3] == [at, value]
        overrules = known is not None and (at < known[1] or known[1] == at == floor)
        expected.add((key, at, is_known, overrules))
    session = sibling(spark)
    plan_simply(session)
    for has_base in (False, True):
        rows, versions = (frame_of(session, some, VERSION) for some in (batch_rows, raw))
        flagged = flag_redelivered(
            rows,
            select_keys(versions, rows, ["id"]),
            ["id"],
            window,
            bounds,
            Generations(base, current),
            True,
            has_base,
        )
        found = flagged.select("id", "at", REDELIVERED, OVERRULES).collect()
        assert {tuple(each) for each in found} == expected
    assert len({flags[2:] for flags in expected}) > 1

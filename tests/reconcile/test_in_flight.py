"""Rows that are written or uncommitted during a comparison are not reported as differences."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import pytest

from tests.reconcile.shop import line, missed, nothing, reconcile
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_late_commits import _transaction

ROUNDS = 2
WRITERS = 3


@contextlib.contextmanager
def _run_writers(database: Database, clock: str, late: bool) -> Iterator[None]:
    """Runs writers that insert and update rows and set their cursor, until the block ends.

    Args:
        clock: SQL of the cursor that they set.
        late: whether their transactions are long, use savepoints and sometimes roll back.
    """
    over = threading.Event()
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        chance = random.Random(writer)
        next_id = 1_000_000 * (writer + 1)
        try:
            with contextlib.closing(database.connect()) as connection:
                connection.autocommit = not late
                while not over.is_set():
                    with connection.cursor() as cursor:
                        for _ in range(chance.randint(1, 3)):
                            # each has its own rows, so that a row's cursor never goes back
                            row = chance.randint(1, 30) * 10 + writer
                            if late:
                                cursor.execute("savepoint s")
                            cursor.execute(
                                f"update events set n = n + 1, at = {clock} where id = {row}"
                            )
                            next_id += 1
                            cursor.execute(f"insert into events values ({next_id}, 0, {clock})")
                            if late:
                                cursor.execute("release savepoint s")
                                time.sleep(chance.random() * 0.3)
                    if late:
                        connection.rollback() if chance.random() < 0.2 else connection.commit()
                    time.sleep(0.02)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


@pytest.mark.slow
def test_writers_of_postgresql_make_no_false_difference(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table events (id int primary key, n int, at timestamptz)",
        "insert into events select i, 0, now() - interval '1 hour' from generate_series(1, 400) i",
    )
    options = {"events": {"cursor_field": "at", "sweep": "never"}}
    project.jdbc(postgres_database, ["events"], table_options=options)
    project.run()
    with _run_writers(postgres_database, "now()", late=True):
        for _ in range(ROUNDS):
            ran = reconcile(project)
            assert missed(ran, "shop.events") == nothing()
        # really missed rows are still found, and nothing else is repaired
        postgres_database.execute(
            "delete from events where id in (5, 15)", "update events set n = -1 where id = 9"
        )
        wanted = {"missed_updates": 1, "missed_rows": 0, "missed_deletes": 2}
        assert missed(reconcile(project, "--repair"), "shop.events") == wanted
        assert missed(reconcile(project), "shop.events") == nothing()
    project.run()
    ran = reconcile(project)
    assert missed(ran, "shop.events") == nothing()
    assert (
        line(ran, "shop.events")["rows"]
        == postgres_database.query("select count(*) from events")[0][0]
    )


@pytest.mark.slow
def test_writers_of_mariadb_make_no_false_difference(
    project: Project, mariadb_database: Database
) -> None:
    # older than any open transaction on this server, from which a sync would read again
    values = ", ".join(f"({i}, 0, utc_timestamp(6) - interval 1 day)" for i in range(1, 401))
    mariadb_database.execute(
        "create table events (id int primary key, n int, at datetime(6))",
        f"insert into events values {values}",
    )
    # a statement's time is a little earlier than its commit
    options = {"events": {"cursor_field": "at", "lookback": "5 seconds"}}
    project.jdbc(mariadb_database, ["events"], table_options=options, time_zone="UTC")
    project.run()
    with _run_writers(mariadb_database, "utc_timestamp(6)", late=False):
        for _ in range(ROUNDS):
            assert missed(reconcile(project), "shop.events") == nothing()
        mariadb_database.execute(
            "delete from events where id in (5, 15)", "update events set n = -1 where id = 9"
        )
        wanted = {"missed_updates": 1, "missed_rows": 0, "missed_deletes": 2}
        assert missed(reconcile(project, "--repair"), "shop.events") == wanted
    project.run()
    assert missed(reconcile(project), "shop.events") == nothing()


def test_a_transaction_that_is_open_during_the_comparison(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table events (id int primary key, n int, at timestamptz)",
        "insert into events select i, 0, now() from generate_series(1, 50) as i",
    )
    options = {"events": {"cursor_field": "at", "sweep": "never"}}
    project.jdbc(postgres_database, ["events"], table_options=options)
    project.run()
    with _transaction(postgres_database) as late:
        late.execute("insert into events values (101, 0, now())")
        late.execute("update events set n = 1, at = now() where id = 1")
        late.execute("delete from events where id = 2")
        postgres_database.execute("insert into events values (102, 0, now())")
        ran = reconcile(project, "--repair")
        assert missed(ran, "shop.events") == nothing()
        assert line(ran, "shop.events")["synced"] == 1
        late.commit()
    # the next `reconcile` syncs what the cursor shows; only the delete was missed
    ran = reconcile(project, "--repair")
    assert line(ran, "shop.events")["synced"] == 2
    assert missed(ran, "shop.events") == {**nothing(), "missed_deletes": 1}
    assert project.run().table("shop.events")["appended"] == 0

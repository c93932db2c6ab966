"""Changes during a comparison are no differences, and `verified_at` precedes its snapshot."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator

import pytest

from loader.sources.interface import SourceTable
from loader.sources.jdbc.postgresql.exported_snapshot import open_exported_snapshot
from loader.sources.jdbc.snapshot import JdbcSnapshot
from loader.spark.error_translation import DatabaseError
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from tests.reconcile.shop import counts, nothing, reconcile_while
from tests.services import Database, Postgres
from tests.sync.project import Project
from tests.sync.test_late_commits import _transaction
from tests.sync.test_sweep_ids import _await_replay

TABLE = "create table events (id int primary key, note text, at timestamptz)"
ROWS = "insert into events select i, 'n', now() - interval '1 day' from generate_series(1, 40) i"
NEWEST = (
    "select newest.id, newest.note from (select max_by(struct(id, note, _cq_deleted), "
    "struct(_cq_generation, at, _cq_batch, _cq_seq)) as newest from raw.events group by id) "
    "where not newest._cq_deleted order by 1"
)


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    """A server with replicas."""
    server = Postgres()
    yield server
    server.remove()


@pytest.fixture
def replica(primary: Postgres) -> Iterator[Postgres]:
    """A replica of the primary."""
    server = primary.replica()
    yield server
    server.remove()


def test_a_comparison_dates_from_before_its_snapshot(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(TABLE, ROWS)
    options = {"events": {"cursor_field": "at", "sweep": "never"}}
    project.jdbc(postgres_database, ["events"], table_options=options)
    project.run()
    written: list[dt.datetime] = []

    def write() -> None:
        postgres_database.execute("update events set note = 'unseen' where id = 1")
        written.append(dt.datetime.now(dt.timezone.utc))

    found = reconcile_while(project, "events", "counting", write)["events"]
    assert counts(found) == nothing(), "the snapshot contains the update"
    assert {bucket.verified_at < written[0] for bucket in found.verified} == {True}
    stored = "select unix_micros(max(verified_at)) / 1e6 from raw._cq_reconciled"
    assert project.rows(stored)[0][0] < written[0].timestamp()


def test_changes_that_a_replica_replays_are_no_differences(
    project: Project, primary: Postgres
) -> None:
    """This includes rows of late commits, whose cursors are below the last one."""
    with primary.database() as database, contextlib.ExitStack() as stack:
        database.execute(TABLE, ROWS)
        replica = primary.replica()
        stack.callback(replica.remove)
        project.jdbc(
            Database(replica, database.name),
            ["events"],
            table_options={"events": {"cursor_field": "at"}},
        )
        with _transaction(database) as late:
            late.execute("update events set note = 'late', at = now() where id = 1")
            database.execute("update events set note = 'top', at = now() where id = 2")
            _await_replay(primary, replica)
            project.run()

            def write() -> None:
                late.commit()
                database.execute(
                    "update events set note = 'new', at = now() where id = 3",
                    "insert into events values (41, 'new', now())",
                )
                _await_replay(primary, replica)

            found = reconcile_while(project, "events", "comparing", write)["events"]
        assert (counts(found), found.synced) == (nothing(), 3)
        assert project.rows(NEWEST) == database.query("select id, note from events order by 1")

        # changes that no sync can see are still found, and repaired
        database.execute("delete from events where id = 9")

        def delete() -> None:
            database.execute("delete from events where id = 10")
            _await_replay(primary, replica)

        found = reconcile_while(project, "events", "comparing", delete)["events"]
        assert counts(found) == {**nothing(), "missed_deletes": 2}
        assert project.rows(NEWEST) == database.query("select id, note from events order by 1")


def test_a_replica_that_is_behind_another_one_is_not_read(
    project: Project, primary: Postgres, replica: Postgres
) -> None:
    """Several replicas may share one address. In this test, each of them has its own."""
    with primary.database() as database:
        database.execute(TABLE)
        _await_replay(primary, replica)
        behind = primary.replica()
        try:
            behind._execute("select pg_wal_replay_pause()")
            database.execute(ROWS)
            _await_replay(primary, replica)
            for name, server in {"ahead": replica, "behind": behind}.items():
                project.jdbc(Database(server, database.name), ["events"], name)
            pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
            sources = {spec.name: source for spec, source in pipeline.sources}
            [ref] = [ref for ref in sources["ahead"].tables() if ref.name == "events"]
            table: SourceTable = sources["ahead"].describe(ref)

            def count(first: str, later: str) -> int | None:
                """Opens a snapshot on one of them, and reads it from another one."""
                with (
                    open_exported_snapshot(sources[first], [table]) as exported,
                    contextlib.closing(JdbcSnapshot(sources[later], exported)) as snapshot,
                    snapshot.connect(table) as connection,
                ):
                    [(rows,)] = connection.rows("select count(*) from events")
                    return int(rows or 0)

            assert count("ahead", "ahead") == 40
            assert count("behind", "ahead") == 40
            with pytest.raises(DatabaseError, match="this replica is behind another one"):
                count("ahead", "behind")
        finally:
            behind.remove()

"""No gaps or duplicates: a first load or reload ends at the position where the log continues."""

from __future__ import annotations

import threading
import time

import pytest

from loader.cdc import log_snapshot
from tests.cdc.test_changes import follow, newest, position
from tests.services import Database
from tests.sync.project import Project

LIVING = "select id, v from {table} order by id"


def test_a_first_load_while_others_write(project: Project, postgres_database: Database) -> None:
    """The raw table has each committed version once, and the newest ones equal the source."""
    postgres_database.execute(
        "create table busy (id int primary key, v bigint)",
        "create sequence counter",
        "insert into busy select i, nextval('counter') from generate_series(1, 200) as i",
        "create table audit (id int, v bigint)",
        "create function noted() returns trigger language plpgsql as $$ begin "
        "insert into audit values (new.id, new.v); return new; end $$",
        "create trigger noted after insert or update on busy for each row execute function noted()",
    )
    follow(project, postgres_database, "busy")
    stop = threading.Event()

    def write(number: int) -> None:
        connection = postgres_database.connect()
        while not stop.wait(0.01):
            connection.execute(
                f"begin; update busy set v = nextval('counter') where id % 8 = {number} "
                f"and id % 5 = floor(random() * 5); delete from busy where id = {number} + 1; "
                f"insert into busy values ({number} + 1, nextval('counter')); commit"
            )
        connection.close()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    time.sleep(0.3)
    try:
        for _ in range(2):
            project.run()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    project.run()
    assert newest(project, "busy", "id", "v") == postgres_database.query(
        LIVING.format(table="busy")
    )
    held = project.rows("select v, count(*) from raw.busy where not _cq_deleted group by v")
    assert {count for _, count in held} == {1}
    first = {v for (v,) in project.rows("select v from raw.busy where _cq_batch = 1")}
    noted = {v for (v,) in postgres_database.query("select v from audit")}
    later = {v for v, _ in held} - first
    # The load does not see versions that were overwritten before its snapshot.
    assert later <= noted
    since = project.rows("select min(v) from raw.busy where _cq_batch > 1 and not _cq_deleted")
    unseen = {v for v in noted if v > max(first) and v not in later}
    assert not unseen, since


def test_a_full_refresh_of_one_table_does_not_affect_others(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table one (id int primary key, v int)",
        "create table two (id int primary key, v int)",
        "insert into one values (1, 1), (2, 2)",
        "insert into two values (1, 1)",
    )
    follow(project, postgres_database, "one")
    project.run()
    # A second table is added.
    follow(project, postgres_database, "one", "two")
    postgres_database.execute("update one set v = 10 where id = 1", "delete from one where id = 2")
    ran = project.run()
    assert [ran.table(f"shop.{t}")["appended"] for t in ("one", "two")] == [2, 1]
    postgres_database.execute("update one set v = 11 where id = 1", "update two set v = 2")
    before = position(postgres_database)
    ran = project.run("--full-refresh", "--select", "shop.one")
    assert ran.table("shop.one")["appended"] == 1
    assert position(postgres_database) == before  # `two` still needs the log from here
    ran = project.run()
    assert [ran.table(f"shop.{t}")["appended"] for t in ("one", "two")] == [0, 1]
    assert newest(project, "one", "id", "v") == [(1, 11)]
    assert newest(project, "two", "id", "v") == [(1, 2)]
    assert position(postgres_database) != before


def test_a_lost_slot_is_reported_and_all_rows_are_read_again(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table things (id int primary key, v int)",
        "insert into things values (1, 1), (2, 2), (3, 3)",
    )
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute(
        "select pg_drop_replication_slot('strandline_shop')",
        "delete from things where id = 2",
        "update things set v = 10 where id = 1",
    )
    ran = project.run()
    assert any(
        "its replication slot was missing: all rows are read again" in w for w in ran.warnings
    )
    assert newest(project, "things", "id", "v") == [(1, 10), (3, 3)]
    assert project.rows("select id from raw.things where _cq_deleted") == [(2,)]
    # another reader advances the slot
    postgres_database.execute(
        "set synchronous_commit = on",
        "update things set v = 11 where id = 1",
        "select pg_replication_slot_advance('strandline_shop', pg_current_wal_lsn())",
        "delete from things where id = 3",
    )
    ran = project.run()
    assert any("is gone: all rows are read again" in warning for warning in ran.warnings)
    assert newest(project, "things", "id", "v") == [(1, 11)]
    # another user removed the table from the publication and added it again
    postgres_database.execute(
        "alter publication strandline_shop drop table things",
        "update things set v = 12",
        "alter publication strandline_shop add table things",
    )
    ran = project.run()
    assert ran.warnings == ["shop.things: the publication was changed: all rows are read again"]
    # a publication that excludes changes is refused
    for change, says in {
        "set (publish = 'insert, update')": "excludes some kinds of changes",
        "set (publish = 'insert, update, delete, truncate')": "",
        "set table things (id)": "excludes columns of things",
        "set table things": "",
    }.items():
        postgres_database.execute(f"alter publication strandline_shop {change}")
        errors = project.loader("check").errors
        assert says in " ".join(errors)
        assert bool(errors) == bool(says)
    project.run()
    postgres_database.execute("update things set v = 13")
    assert project.run().table("shop.things")["appended"] == 1
    assert newest(project, "things", "id", "v") == [(1, 13)]


def test_attached_and_detached_partitions(project: Project, postgres_database: Database) -> None:
    """The log has writes to partitions, but not the rows of partitions that come or go."""
    alike = "(like parts including all)"
    postgres_database.execute(
        "create table parts (id int primary key, v int) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (100)",
        "insert into parts values (1, 1)",
    )
    follow(project, postgres_database, "parts")
    project.run()
    # Created as partitions, or attached while they were empty: the table is not read again.
    postgres_database.execute(
        "create table parts_2 partition of parts for values from (100) to (200)",
        "insert into parts_2 values (101, 1)",
        f"begin; create table parts_3 {alike}; "
        "alter table parts attach partition parts_3 for values from (200) to (300); "
        "insert into parts values (201, 1); commit",
        f"create table parts_4 {alike}",
        "alter table parts attach partition parts_4 for values from (300) to (400)",
    )
    ran = project.run()
    assert (ran.table("shop.parts")["appended"], ran.warnings) == (2, [])
    for number, statements in {
        5: "{create}; insert into {name} values ({id}, 1); {attach}",
        6: "begin; {create}; insert into {name} values ({id}, 1); {attach}; commit",
    }.items():
        name = f"parts_{number}"
        postgres_database.execute(
            *statements.format(
                name=name,
                id=number * 100,
                create=f"create table {name} {alike}",
                attach=f"alter table parts attach partition {name} "
                f"for values from ({number * 100}) to ({number * 100 + 100})",
            ).split("; " if number == 5 else "\0")
        )
        ran = project.run()
        assert ran.warnings == [
            f"shop.parts: the partition {name} was attached: all rows are read again"
        ]
    postgres_database.execute("alter table parts detach partition parts_1", "drop table parts_2")
    ran = project.run()
    assert ran.warnings == [
        "shop.parts: a partition was detached or dropped: all rows are read again"
    ]
    postgres_database.execute("update parts set v = 2")
    project.run()
    assert newest(project, "parts", "id", "v") == [(201, 2), (500, 2), (600, 2)]


def test_a_rebuilt_state_knows_how_far_the_log_was_read(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync without changes stores its position without a commit, and moves the slot there."""
    monkeypatch.setattr(log_snapshot, "SEGMENT_BYTES", 0)
    postgres_database.execute(
        *(f"create table {t} (id int primary key, v int)" for t in ("quiet", "busy")),
        *(f"insert into {t} values (1, 1)" for t in ("quiet", "busy")),
    )
    follow(project, postgres_database, "quiet", "busy")
    project.run()
    began = project.state("shop.quiet")["mark"]
    postgres_database.execute("update busy set v = 2")
    project.run()
    mark = project.state("shop.quiet")["mark"]
    assert mark["log_position"] != began["log_position"]
    assert project.loader("state", "rebuild").code == 0
    assert project.state("shop.quiet")["mark"] == mark
    ran = project.run()
    assert (ran.table("shop.quiet")["status"], ran.warnings) == ("nothing new", [])

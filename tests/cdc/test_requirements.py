"""If a database lacks a prerequisite, the error contains the SQL that adds it."""

from __future__ import annotations

import contextlib
import re
import threading
import time

import pytest

from tests.cdc.test_changes import follow, newest
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_privileges import _pasted

PASSWORD = "least-privileges"


def test_a_role_with_the_least_privileges(project: Project, postgres_database: Database) -> None:
    """The error for each missing privilege contains a statement; these statements are enough."""
    with contextlib.suppress(Exception):
        postgres_database.execute("drop owned by follower", "drop role follower")
    postgres_database.execute(
        "create table orders (id int primary key, v int)",
        "create table items (id int primary key)",
        "create table texts (id int primary key, v tsvector)",
        "insert into orders values (1, 1)",
        f"create role follower login password '{PASSWORD}'",
        "grant select on orders, items, texts to follower",
        "alter role follower set default_transaction_read_only = on",
    )
    names = ("orders", "items", "texts")
    follow(project, postgres_database, *names, user="follower", password=PASSWORD)
    ran = project.loader("check")
    assert ran.code == 1
    [error] = ran.errors  # one for all tables
    assert "may not read the log" in error
    assert 'Run `alter role "follower" replication`' in error
    assert "may not read the log" in project.loader("run").errors[0]
    postgres_database.execute('alter role "follower" replication')
    text, error = sorted(project.loader("check").errors)[::-1]
    assert "tsvector" in text  # although nothing is published yet
    follow(project, postgres_database, *names[:2], user="follower", password=PASSWORD)
    [error] = project.loader("check").errors
    statement = (
        'create publication "strandline_shop" for table "public"."orders", "public"."items" '
        "with (publish_via_partition_root = true)"
    )
    assert f"Run `{statement}` as the owner of the tables" in error
    assert statement in project.loader("run").errors[0]
    postgres_database.execute(statement)
    ran = project.loader("check")
    assert (ran.code, ran.errors) == (0, [])
    assert "the first run creates the replication slot strandline_shop" in ran.text
    project.run()
    postgres_database.execute("update orders set v = 2")
    ran = project.run()
    assert ran.table("shop.orders")["appended"] == 1
    assert PASSWORD not in ran.text
    assert "the replication slot strandline_shop retains" in project.loader("check").text
    shown = [e for e in project.loader("status").events if e["event"] == "status"]
    [status] = [e for e in shown if e["table"] == "shop.orders"]
    assert status["log_bytes"] > 0
    assert newest(project, "orders", "id", "v") == [(1, 2)]


def test_the_privileges_of_the_docs_page_are_enough(
    project: Project, postgres_database: Database
) -> None:
    """The statements of docs/privileges.md are run without changes."""
    tables = ("orders", "customers")
    with contextlib.suppress(Exception):
        postgres_database.execute("drop owned by loader", "drop role loader")
    [(name,)] = postgres_database.query("select current_database()")
    postgres_database.execute(
        *(f"create table {table} (id int primary key)" for table in tables),
        *(
            re.sub(r"database shop\b", f'database "{name}"', statement)
            for mark in ("pg_read_all", "alter role loader replication")
            for statement in _pasted(mark)
        ),
    )
    try:
        follow(project, postgres_database, *tables, user="loader", password=PASSWORD)
        project.run()
        ran = project.run()
        assert [ran.table(f"shop.{table}")["status"] for table in tables] == ["nothing new"] * 2
    finally:
        postgres_database.execute("drop owned by loader", "drop role loader")


def test_tables_that_the_log_cannot_deliver_are_not_published(
    project: Project, postgres_database: Database
) -> None:
    """If a table without a replica identity were published, it could not be updated any more.

    A deferrable key is no replica identity, and the log lacks columns that an index only includes.
    """
    parts = "create table {0} (id int, v int, primary key (id) {1}) partition by range (id)"
    postgres_database.execute(
        "create table keyless (id int not null, v int)",
        "create unlogged table unlogged (id int primary key, v int)",
        "create table parent (id int primary key, v int)",
        "create table child () inherits (parent)",
        "create table alone (id int primary key, v int)",
        "create table gone () inherits (alone)",
        "drop table gone",
        "create view seen as select * from keyless",
        parts.format("parts", ""),
        "create table parts_1 partition of parts for values from (0) to (100)",
        "create table parts_2 partition of parts for values from (100) to (200)",
        "create table plain (id int primary key deferrable, v int)",
        "create table complete (id int primary key deferrable initially deferred, v int)",
        "alter table complete replica identity full",
        parts.format("later", "deferrable"),
        "create table later_1 partition of later for values from (0) to (100)",
        "create table twin (id int primary key deferrable, v int)",
        "create unique index twin_key on twin (id) include (v)",
        "alter table twin replica identity using index twin_key",
        "create table beside (id int primary key, u int not null, v int)",
        "create unique index beside_u on beside (u) include (id)",
        "alter table beside replica identity using index beside_u",
        "insert into parts values (1, 1), (101, 1)",
        *(f"insert into {table} values (1, 1)" for table in ("plain", "complete", "later", "twin")),
    )
    deferrable = {"plain", "complete", "later"}
    refused = {"keyless", "unlogged", "parent", "seen", "beside", *deferrable}
    follow(
        project,
        postgres_database,
        *sorted(refused),
        *("alone", "parts", "twin"),
        **{table: {"primary_key": "id"} for table in ("keyless", "parent", "seen")},
    )
    for command in ("check", "run"):
        ran = project.loader(command)
        assert ran.code == 1
        said = {re.split("[,:]", error)[0]: error for error in ran.errors}
        assert set(said) == {f"table shop.{table}" for table in refused}, command
        for table in ("keyless", "beside"):
            lack = "replica identity does not contain the key (id)"
            assert lack in said[f"table shop.{table}"], table
        remedy = "Run `alter table keyless replica identity full`"
        assert remedy in said["table shop.keyless"]
        assert "Run `alter table unlogged set logged`" in said["table shop.unlogged"]
        assert "other tables inherit from parent" in said["table shop.parent"]
        assert "the log has only tables" in said["table shop.seen"]
        for table in deferrable:
            assert "is deferrable" in said[f"table shop.{table}"], table
            again = "Recreate the constraint without `deferrable`"
            assert again in said[f"table shop.{table}"], table
    assert ran.table("shop.parts")["appended"] == 2
    postgres_database.execute(
        *(f"update {table} set v = 2" for table in (*deferrable, "twin")),
        "insert into keyless values (1, 1)",
        "update keyless set v = 2",
        "alter table keyless replica identity full",
        "update parts set v = 2 where id = 1",
        "update parts set id = 102 where id = 1",  # into another partition
    )
    project.loader("run")
    postgres_database.execute("update keyless set v = 3")
    project.loader("run")
    assert newest(project, "keyless", "id", "v") == [(1, 3)]
    assert newest(project, "parts", "id", "v") == [(101, 1), (102, 2)]
    assert newest(project, "twin", "id", "v") == [(1, 2)]


def test_columns_that_change(project: Project, postgres_database: Database) -> None:
    """A column is added with its first changes; after a rename, all rows are read again.

    A table that another session is altering does not delay the others.
    """
    postgres_database.execute(
        "create table items (id int primary key, name text, old int)",
        "insert into items values (1, 'a', 1), (2, 'b', 2)",
    )
    for table in ("held", "new"):
        postgres_database.execute(
            f"create table {table} (id int primary key, v int)",
            f"insert into {table} values (1, 1)",
        )
    follow(project, postgres_database, "items", "held", lock_timeout="1 second")
    project.run()
    follow(project, postgres_database, "items", "held", "new", lock_timeout="1 second")
    postgres_database.execute(
        "update items set name = 'A' where id = 1",
        "alter table items add column note text",
        "alter table items drop column old",
        "update items set note = 'new' where id = 2",
        "update held set v = 2",
    )
    with postgres_database.connect() as other:
        other.execute("begin; alter table held add column w int; alter table new add column w int")
        ran = project.loader("run")
        other.execute("commit")
    assert ran.table("shop.items")["appended"] == 2
    assert {ran.table(f"shop.{table}")["status"] for table in ("held", "new")} == {"failed"}
    assert newest(project, "items", "id", "name", "note") == [(1, "A", None), (2, "b", "new")]
    postgres_database.execute(
        "update items set name = 'AA' where id = 1",
        "alter table items rename column name to title",
        "update items set title = 'BB' where id = 2",
    )
    ran = project.run()
    assert {ran.table(f"shop.{table}")["appended"] for table in ("held", "new")} == {1}
    assert any("was altered: all rows are read again" in warning for warning in ran.warnings)
    assert newest(project, "items", "id", "title") == [(1, "AA"), (2, "BB")]
    postgres_database.execute("alter table items add column state text default 'open'")
    project.run()
    assert newest(project, "items", "id", "state") == [(1, "open"), (2, "open")]
    # The columns change while the log is read, after the run has read their names.
    postgres_database.execute("update items set state = 'sent' where id = 1")
    changes = threading.Thread(target=_add_column, args=(postgres_database,))
    changes.start()
    ran = project.loader("run")
    changes.join()
    assert ran.errors == ["table shop.items: its columns were changed during the run. Run again"]
    project.run()
    assert newest(project, "items", "id", "state", "late") == [(1, "sent", 7), (2, "open", None)]


def _add_column(database: Database) -> None:
    reads = "select 1 from pg_replication_slots where active and database = current_database()"
    while not database.query(reads):
        time.sleep(0.02)
    database.execute(
        "alter table items add column late int", "update items set late = 7 where id = 1"
    )


def test_setup_shows_the_sql(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    follow(project, postgres_database, "orders", "Lines", slot="my_slot")
    ran = project.loader("setup", "--no-archive", "cdc")
    assert ran.code == 0, ran.text
    for statement in (
        "alter system set wal_level = 'logical';",
        f'alter role \\"{postgres_database.user}\\" replication;',
        'create publication my_slot for table orders, \\"Lines\\" with (publish_via_partition_root',
        "select pg_create_logical_replication_slot('my_slot', 'pgoutput');",
    ):
        assert statement in ran.text


def test_one_table_that_may_not_be_published_does_not_stop_others(
    project: Project, postgres_database: Database
) -> None:
    with contextlib.suppress(Exception):
        postgres_database.execute("drop owned by partial", "drop role partial")
    [(name,)] = postgres_database.query("select current_database()")
    postgres_database.execute(
        *(f"create table {table} (id int primary key)" for table in ("own", "alien", "guarded")),
        f"create role partial login replication password '{PASSWORD}'",
        f'grant create on database "{name}" to partial',
        "grant select on alien, guarded to partial",
        "alter table own owner to partial",
        "insert into own values (1)",
        "insert into guarded values (1), (2)",
        "alter table guarded enable row level security",
        "create policy half on guarded using (id = 1)",
    )
    try:
        tables = ("own", "alien", "guarded")
        follow(project, postgres_database, *tables, user="partial", password=PASSWORD)
        ran = project.loader("run")
        assert ran.table("shop.own")["appended"] == 1
        said = {error.split(",")[0]: error for error in ran.errors}
        assert set(said) == {"source shop", "table shop.guarded"}
        assert (
            'Run `alter publication "strandline_shop" add table "public"."alien"` as the owner'
            in said["source shop"]
        )
        assert "row-level security" in said["table shop.guarded"]
        assert 'Run `alter role "partial" bypassrls`' in said["table shop.guarded"]
    finally:
        postgres_database.execute("drop owned by partial", "drop role partial")


def test_two_sources_with_one_slot_are_refused(
    project: Project, postgres_database: Database
) -> None:
    """Each source would move the slot past changes that the other has not read."""
    follow(project, postgres_database, "orders", name="my-shop")
    follow(project, postgres_database, "lines", name="my_shop")
    [error] = project.loader("check").errors
    assert "the source my-shop also reads the replication slot strandline_my_shop" in error
    assert "Set a different `slot` in one of the two sources" in error

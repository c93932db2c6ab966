"""Specs for many tables: options by wildcard, lists of cursors, generated specs, discovery."""

from __future__ import annotations

import pytest

from loader.cli.database_url import DatabaseUrl
from loader.cli.init import describe_tables, render_spec
from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.source import JdbcSource
from tests.services import Database
from tests.sync.project import ROOT, Project


def test_each_table_takes_the_first_cursor_that_it_has(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table a (id int primary key, modified int, updated_at timestamptz default now())",
        "create table b (id int primary key, modified int)",
        "create table c (id int primary key)",
        "create view v as select id from c",
        "create table audit_x (id int primary key, modified int)",
        *(f"insert into {name} values (1)" for name in ("a", "b", "c", "audit_x")),
    )
    cursors = ["updated_at", "modified", "xmin"]
    project.jdbc(
        postgres_database,
        ["*", "v"],
        table_options={"*": {"cursor_field": cursors}, "audit_*": {"sync_mode": "full_refresh"}},
    )
    project.sources[0]["skip_tables"] = ["v"]
    project.write()
    project.run()
    ledger = project.spark.table(f"{project.schema}._cq_syncs")
    assert {(row.table_name, row.mode, row.cursor_field) for row in ledger.collect()} == {
        ("a", "incremental", "updated_at"),
        ("b", "incremental", "modified"),
        ("c", "incremental", "xmin"),
        ("audit_x", "full_refresh", "modified"),
    }

    project.sources[0]["skip_tables"] = []
    own = project.sources[0]["spec"]["table_options"]
    own["*"] = {"cursor_field": cursors[:2]}
    own["d*"] = {"lookback": "1 day"}
    project.write()
    ran = project.loader("run")
    assert ran.code == 1
    assert ran.errors == [
        "source shop, table_options: there are options for 'd*', but the source has no such table. "
        "`loader discover` lists its tables",
        "source shop, table_options: 2 tables have none of the cursors in their options: c, v. "
        'Set cursors for all of them, `"*": {cursor_field: [xmin]}`: each table uses the first '
        "column of the list that it has; or set sync_mode: full_refresh for small tables; or "
        "exclude them with skip_tables",
    ]
    assert project.loader("status").code == 0
    for asked in ("--fail-if-failing", "--fail-if-stale=1d"):  # v was never synced
        assert project.loader("status", asked).code == 1
    shown = project.loader("status", "--fail-if-stale=1s").text
    assert {name for name in ("a", "b", "c", "v") if f"shop.{name}" in shown} == {*"abcv"}


def test_a_spec_that_is_generated_from_a_database_runs(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres_database.password)
    postgres_database.execute(
        "create table a (id int primary key, created_at timestamptz, last_update timestamp)",
        "create index on a (last_update)",
        'create table "y" (id int, birth_date date)',
        'create table "${HOME}" (id int)',
        'create table "@@plugins.lake.connection" (id int)',
        'create table "😀" (id int primary key, "updated_${HOME}" date, "updated_😀" date)',
        'create table "it\'s: #1" (id int primary key, "Modified On" timestamptz)',
        "create view v as select id from a",
        "insert into a values (1, now(), now())",
    )
    url = DatabaseUrl(
        postgres_database.url, postgres_database.user, postgres_database.password, "PGPASSWORD"
    )
    options = JdbcOptions(url=url.jdbc, user=url.user, password=url.password)
    source = JdbcSource("shop", options, project.spark, project.folder)
    tables, reported = describe_tables(source)
    assert tables == [
        "# '${HOME}': create a view with a simpler name, and load that",
        "# '@@plugins.lake.connection': create a view with a simpler name, and load that",
        "- a",
        '- "it\'s: #1"',
        '- "y"',
        '- "😀"',
        "# views, for which you must choose a cursor and a key: v",
    ]
    assert reported == [
        "a: {cursor_field: last_update} # its name suggests an update time; key: id",
        '"it\'s: #1": {cursor_field: "Modified On"} # its name suggests an update '
        "time, without an index; key: id",
        '"y": {cursor_field: xmin} # no column with an update time; columns with dates '
        "and times: birth_date; no primary key",
        '"😀": {cursor_field: "updated_😀"} # its name suggests an update time, without '
        "an index; key: id",
    ]
    text = render_spec(url, tables, reported).replace("schema: raw", f"schema: {project.schema}")
    text = text.replace("profile: strandline", f"profiles_dir: {ROOT / 'profiles'}")
    (project.folder / "loader.yml").write_text(text)
    ran = project.run()
    assert sum(e["appended"] for e in ran.events if e["event"] == "table") == 1


def test_discover_lists_readable_tables_and_warns_about_the_others(
    project: Project, postgres_database: Database
) -> None:
    role = f"reader_{postgres_database.name}"
    postgres_database.execute(
        "create table a (id int primary key, updated_at timestamptz)",
        "create table secret (id int primary key)",
        "create view alias as select * from secret",
        f"create role {role} login password 'lacks-4711'",
        f"grant select on a to {role}",
    )
    project.jdbc(postgres_database, ["*"])
    project.sources[0]["spec"] |= {"user": role, "password": "lacks-4711"}
    project.write()
    try:
        found = project.loader("discover")
        assert (found.code, found.errors) == (0, [])
        assert [e["table"] for e in found.events if e["event"] == "table"] == ["a"]
        assert found.warnings == [
            "source shop: its account may not read 2 of 3 tables: alias, secret. Grant it select "
            "on the tables that you need"
        ]
    finally:
        postgres_database.execute(f"drop owned by {role}", f"drop role {role}")

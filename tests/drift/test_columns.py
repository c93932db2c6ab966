"""Columns with any name are added and altered, and changes during a run are detected."""

from __future__ import annotations

import pytest

from loader.lake.source_schema import PROPERTY
from loader.spec.plugins import SourceSpec
from loader.sync.pipeline import Pipeline
from tests.services import Database
from tests.sync.project import Project

NAMES = [
    "select",
    "up dated.at",
    "b`q",
    "naïve_表",
    "1st",
    "UPPER",
    "it's",
    "a/b:c?d",
    "x,y;z{}()=",
    "back\\slash",
    "element",
    'quo"te',
]


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture
def table(project: Project, postgres_database: Database) -> Database:
    """A table with one row that was synced."""
    postgres_database.execute(
        "create table t (id int primary key, c int)", "insert into t values (1, 1)"
    )
    # No sweep: otherwise the rows that an ALTER rewrote would be read again, too.
    options = {"t": {"cursor_field": "c", "sweep": "never"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    project.run()
    return postgres_database


def _read_schema_changes(project: Project) -> object:
    [(reported,)] = project.rows("select max_by(schema_changes, batch) from raw._cq_syncs")
    return reported


def test_columns_with_any_name_are_added_altered_and_dropped(
    project: Project, table: Database
) -> None:
    columns = [_quote(name) for name in NAMES]
    table.execute(
        *(f"alter table t add {column} int" for column in columns), "insert into t values (2, 2)"
    )
    reported = "; ".join(f"added {name} int" for name in NAMES)
    [checked] = [e for e in project.loader("check").events if "notes" in e]
    assert f"with the next batch: {reported}" in checked["notes"]
    project.run()
    assert _read_schema_changes(project) == reported
    assert project.run().table("shop.t")["status"] == "nothing new"
    table.execute(
        *(f"alter table t alter {column} type bigint" for column in columns),
        *(f"update t set {column} = 3000000000" for column in columns),
        "update t set c = 3 where id = 2",
    )
    assert project.run().table("shop.t")["appended"] == 1
    assert _read_schema_changes(project) == "; ".join(
        f"widened {name} int to bigint" for name in NAMES
    )
    table.execute(
        *(f"alter table t alter {column} type text" for column in columns),
        "update t set c = 4 where id = 2",
    )
    assert project.run().table("shop.t")["appended"] == 1
    assert _read_schema_changes(project) == "; ".join(
        f"changed {name} bigint to string, in {name}__string" for name in NAMES
    )
    variants = [f"{name}__string" for name in NAMES]
    raw = project.lake().frame("t")
    assert [name for name in raw.columns if name.endswith("__string")] == variants
    [row] = raw.where("_cq_batch = 4").collect()
    assert [row[name] for name in variants] == ["3000000000"] * len(NAMES)
    assert [row[name] for name in NAMES] == [None] * len(NAMES)
    table.execute(
        *(f"alter table t drop {column}" for column in columns), "insert into t values (5, 5)"
    )
    project.run()
    assert _read_schema_changes(project) == "; ".join(f"dropped {name} string" for name in NAMES)
    assert project.run().table("shop.t")["status"] == "nothing new"


def test_a_type_specific_column_whose_name_is_taken(project: Project, table: Database) -> None:
    table.execute(
        "alter table t add v int, add v__string text", "insert into t values (2, 2, 2, 'mine')"
    )
    project.run()
    table.execute("alter table t alter v type text", "insert into t values (3, 3, 'three', 'x')")
    ran = project.loader("run")
    assert (ran.code, ran.errors) == (
        1,
        [
            "table shop.t: the column 'v__string' has the name of the raw column for values of "
            "'v' that have another type. Rename 'v__string' in the source or in a view of it"
        ],
    )
    table.execute("alter table t rename v__string to other")
    project.run()
    # the raw table keeps the renamed column
    assert project.rows(
        "select id, v, v__string, v__string_2, other from raw.t where id > 1 order by _cq_batch, id"
    ) == [
        (2, 2, "mine", None, None),
        (2, None, None, "2", "mine"),
        (3, None, None, "three", "x"),
    ]


def test_names_that_begin_with_the_loaders_prefix(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table ours (id int primary key, c int, _cq_redelivered boolean)",
        "create table theirs (_cq_id text primary key, _cq_parent_id text, c int)",
        "insert into theirs values ('a', null, 1)",
    )
    options = {name: {"cursor_field": "c"} for name in ("ours", "theirs")}
    project.jdbc(postgres_database, list(options), table_options=options)
    ran = project.loader("run")
    assert ran.errors == [
        "table shop.ours: the source has a column '_cq_redelivered', and names that start with "
        "_cq_ are reserved for the loader. Rename it, or read the other columns through a view in "
        "the source"
    ]
    assert ran.table("shop.theirs")["appended"] == 1
    assert project.run("--select", "shop.theirs").table("shop.theirs")["redelivered"] == 1


def test_a_type_that_changes_while_the_table_is_read(
    project: Project, table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute("alter table t add v numeric(10, 2)", "insert into t values (2, 2, 2.25)")
    prepare = Pipeline.prepare

    def alter_and_prepare(pipeline: Pipeline, source: SourceSpec) -> None:
        table.execute("alter table t alter v type float8")
        prepare(pipeline, source)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "prepare", alter_and_prepare)
        ran = project.loader("run")
    assert ran.errors == [
        "table shop.t: the column 'v' changed its type while the table was read, from "
        "decimal(10,2) to double. No row of this batch is visible; run again"
    ]
    assert project.lake().frame("t").columns[:3] == ["id", "c", "_cq_source_name"]
    project.run()
    assert _read_schema_changes(project) == "added v double"
    assert project.rows("select v from raw.t where id = 2") == [(2.25,)]


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"])
def test_a_column_that_is_added_while_a_run_starts(
    project: Project,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, rows read without it would stay below the cursor, and never be read again."""
    table: Database = request.getfixturevalue(database)
    table.execute("create table t (id int primary key, c int)", "insert into t values (1, 1)")
    project.jdbc(table, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    table.execute("insert into t values (2, 2)")
    prepare = Pipeline.prepare

    def alter_and_prepare(pipeline: Pipeline, source: SourceSpec) -> None:
        table.execute("alter table t add v int", "insert into t values (3, 3, 33), (4, 4, 44)")
        prepare(pipeline, source)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "prepare", alter_and_prepare)
        ran = project.loader("run")
    assert ran.errors == [
        "table shop.t: its columns were changed while the run started or read it. Nothing was "
        "published, and the cursor has not moved; run again"
    ]
    assert project.rows("select id from raw.t") == [(1,)]
    project.run()
    assert project.rows("select id, v from raw.t order by id, _cq_seq") == [
        (1, None),
        (2, None),
        (3, 33),
        (4, 44),
    ]


def test_a_raw_table_without_a_stored_source_schema(project: Project, table: Database) -> None:
    table.execute(
        "alter table t add a int, add gone smallint, add x text",
        "insert into t values (2, 2, 2, 2, 'x')",
    )
    project.run()
    name = project.lake().name("t")
    project.spark.sql(f"alter table {name} unset tblproperties ('{PROPERTY}')")
    table.execute("insert into t values (3, 3, 3, 3, 'x')")
    assert project.run().table("shop.t")["appended"] == 1
    assert _read_schema_changes(project) is None
    project.spark.sql(f"alter table {name} unset tblproperties ('{PROPERTY}')")
    table.execute(
        "alter table t drop gone",
        "alter table t alter a type text",
        "update t set c = 4 where id = 3",
    )
    project.run()
    assert (
        _read_schema_changes(project) == "changed a int to string, in a__string; dropped gone int"
    )
    table.execute("insert into t values (5, 5, '5', 'x')")
    project.run()
    assert project.rows(
        "select batch, schema_changes from raw._cq_syncs "
        "where schema_changes is not null order by batch"
    ) == [
        (2, "added a int; added gone smallint; added x string"),
        (4, "changed a int to string, in a__string; dropped gone int"),
    ]

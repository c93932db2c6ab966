"""Two sources of one raw table are refused unless both set `shared: true`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from loader.property_codec import decode_property
from tests.services import Database
from tests.services.postgres import Postgres
from tests.sync.project import Project

ROWS = "insert into orders select g, '{name}' || g, g from generate_series({low}, {high}) g"


@pytest.fixture
def shards(postgres: Postgres) -> Iterator[dict[str, Database]]:
    """Two databases with the same table; `us` has fewer rows and lower cursors."""
    with postgres.database() as eu, postgres.database() as us:
        for name, database, high in (("eu", eu, 10), ("us", us, 3)):
            database.execute("create table orders (id int primary key, note text, c int)")
            database.execute(ROWS.format(name=name, low=1, high=high))
        yield {"eu": eu, "us": us}


def _add_source(project: Project, name: str, database: Database, **options: object) -> None:
    own = {"cursor_field": "c", **options}
    project.jdbc(database, ["orders"], name, table_options={"orders": own})


def _count_raw(project: Project) -> list[tuple[object, ...]]:
    return project.rows(
        "select _cq_source_name, count(*), max(_cq_batch) from raw.orders group by 1 order by 1"
    )


def _write_other_spec(
    project: Project, name: str, database: Database, **options: object
) -> Project:
    """Writes a second spec file with one source, and the same lake."""
    folder = project.folder / name
    folder.mkdir(exist_ok=True)
    other = Project(folder, project.spark, project.schema)
    _add_source(other, name, database, **options)
    return other


def test_a_second_source_of_a_raw_table_is_refused_before_anything_is_read(
    project: Project, shards: dict[str, Database]
) -> None:
    for name, database in shards.items():
        _add_source(project, name, database)
    refusal = (
        f"table us.orders: source eu already loads the raw table {project.schema}.orders. Set "
        "another `schema` in one of the two sources. If they are parts of one table (shards, "
        "regions), set table_options.orders.shared: true in eu and "
        "table_options.orders.shared: true in us"
    )
    checked = project.loader("check")
    assert (checked.code, checked.errors) == (1, [refusal])
    ran = project.loader("run")
    assert (ran.code, ran.errors) == (1, [refusal])
    assert ran.table("eu.orders")["status"] == "synced"
    # A run that selects only the second source is refused, too.
    ran = project.loader("run", "--select", "us.orders")
    assert (ran.code, ran.errors) == (1, [refusal])
    assert _count_raw(project) == [("eu", 10, 1)]
    assert project.rows("select key from raw._cq_state") == [("eu.orders",)]
    assert project.rows("select source_name, status, batch from raw._cq_syncs order by 1, 2") == [
        ("eu", "synced", 1),
        ("us", "failed", None),
        ("us", "failed", None),
    ]


def test_different_tables_of_one_name_are_loaded_into_separate_schemas(
    project: Project, shards: dict[str, Database]
) -> None:
    for name, database in shards.items():
        _add_source(project, name, database)
    us = f"{project.schema}_us"
    project.sources[1]["schema"] = us
    project.write()
    ran = project.run()
    assert {ran.table(name)["status"] for name in ("eu.orders", "us.orders")} == {"synced"}
    for schema, source in ((project.schema, "eu"), (us, "us")):
        orders, state, ledger = (
            project.spark.table(f"{schema}.{name}") for name in ("orders", "_cq_state", "_cq_syncs")
        )
        assert {row._cq_source_name for row in orders.collect()} == {source}
        assert {row.key for row in state.collect()} == {f"{source}.orders"}
        assert {row.source_name for row in ledger.collect()} == {source}
    assert project.run().table("us.orders")["status"] == "nothing new"


def test_a_second_source_in_another_spec_file_is_refused(
    project: Project, shards: dict[str, Database]
) -> None:
    _add_source(project, "eu", shards["eu"])
    project.run()
    other = _write_other_spec(project, "us", shards["us"])
    ran = other.loader("run")
    assert (ran.code, ran.errors) == (
        1,
        [
            f"table us.orders: the raw table {project.schema}.orders was loaded by source eu. Set "
            "another `schema` in source us. If us is the new name of eu, write `formerly: "
            "[eu]` in its document. If eu and us are parts of one table (shards, regions), set "
            "table_options.orders.shared: true in each"
        ],
    )
    assert other.loader("check").errors == ran.errors
    assert other.loader("run", "--dry-run").code == 1
    # The other source sets `shared`, but eu does not.
    other = _write_other_spec(project, "us", shards["us"], shared=True)
    [error] = other.loader("run").errors
    assert "was loaded by source eu, which does not share it. Also set shared: true in eu" in error
    assert _count_raw(project) == [("eu", 10, 1)]
    assert project.rows("select key from raw._cq_state") == [("eu.orders",)]
    assert project.rows("select source_name, batch from raw._cq_syncs where batch > 0") == [
        ("eu", 1)
    ]
    # The source that owns the table can still load it.
    shards["eu"].execute("update orders set note = 'new', c = 11 where id = 1")
    assert project.run().table("eu.orders")["appended"] == 1


def test_a_renamed_source_continues_with_its_table(
    project: Project, shards: dict[str, Database]
) -> None:
    eu = shards["eu"]
    _add_source(project, "eu", eu)
    project.run()
    project.sources = []
    _add_source(project, "europe", eu)
    project.sources[0]["formerly"] = ["eu"]
    project.write()
    # Before its next sync, its tables are already shown and its cursors exported.
    [seen] = project.loader("status").events
    assert (seen["table"], seen["batch"], seen["cursor"]) == ("europe.orders", 1, "10")
    assert "eu.orders" in project.loader("state", "export").text
    del project.sources[0]["formerly"]
    project.write()
    assert "If europe is the new name of eu" in project.loader("run").errors[0]
    project.sources[0]["formerly"] = ["eu"]
    project.write()
    eu.execute("update orders set note = 'new', c = 11 where id = 1")
    ran = project.run().table("europe.orders")
    assert (ran["status"], ran["read"], ran["appended"], ran["batch"]) == ("synced", 2, 1, 2)
    assert project.run().table("europe.orders")["status"] == "nothing new"
    assert project.state("europe.orders")["batch"] == 2
    assert project.rows(
        "select source_name, batch from raw._cq_syncs where batch > 0 order by batch"
    ) == [("eu", 1), ("europe", 2)]
    # `formerly` cannot name a source that still exists.
    _add_source(project, "eu", eu)
    ran = project.loader("run")
    assert ran.code == 2
    assert "'eu' is the name of a source in this file" in ran.text


def _add_shared_sources(project: Project, shards: dict[str, Database], **options: object) -> None:
    for name, database in shards.items():
        _add_source(project, name, database, shared=True, **options)


def _read_newest(project: Project) -> list[tuple[object, ...]]:
    """Returns the newest version for each source and key, without deleted rows."""
    return project.rows(
        "select source, id, newest.note from (select _cq_source_name as source, id, max_by("
        "struct(note, _cq_deleted), struct(_cq_generation, c, _cq_batch, _cq_seq)) as newest "
        "from raw.orders group by 1, 2) where not newest._cq_deleted order by 1, 2"
    )


def _read_sources(shards: dict[str, Database]) -> list[tuple[object, ...]]:
    query = "select id, note from orders order by id"
    return [(name, *row) for name, database in shards.items() for row in database.query(query)]


def _read_states(project: Project) -> list[tuple[object, ...]]:
    states = {name: project.state(f"{name}.orders") for name in ("eu", "us")}
    return [(name, said["batch"], said["cursor"]) for name, said in states.items()]


def test_shards_share_a_raw_table_and_nothing_else(
    project: Project, shards: dict[str, Database]
) -> None:
    _add_shared_sources(project, shards)
    assert project.loader("check").code == 0
    ran = project.run()
    batches = {name: ran.table(f"{name}.orders")["batch"] for name in shards}
    assert sorted(batches.values()) == [1, 2]
    assert _read_newest(project) == _read_sources(shards)
    assert [project.state(f"{name}.orders")["cursor"] for name in shards] == ["10", "3"]
    ran = project.run()
    assert [ran.table(f"{name}.orders")["status"] for name in shards] == ["nothing new"] * 2

    # Each source has its own cursor, and its rows are compared only with each other: this row is
    # below the cursor of eu, and equals a row of eu.
    shards["us"].execute("insert into orders values (4, 'eu4', 4)")
    ran = project.run().table("us.orders")
    assert (ran["appended"], ran["batch"], ran["cursor"]) == (1, 3, "4")

    # Each source has its own generations: a refresh supersedes only the rows of its source.
    shards["us"].execute("delete from orders where id = 1")
    project.run("--full-refresh", "--select", "us.orders")
    assert [project.state(f"{name}.orders")["generation"] for name in shards] == [1, 2]
    shards["eu"].execute("update orders set note = 'new' where id = 10")
    ran = project.run()
    assert ran.table("eu.orders")["appended"] == 1
    assert ran.table("us.orders")["status"] == "nothing new"
    assert _read_newest(project) == [
        *_read_sources(shards)[:10],
        ("us", 1, "us1"),
        *_read_sources(shards)[10:],
    ]
    assert project.rows(
        "select source_name, batch, generation from raw._cq_syncs where batch > 2 order by 2"
    ) == [("us", 3, 1), ("us", 4, 2), ("eu", 5, 1)]

    # Reconcile compares a source with its own rows.
    shards["eu"].execute("delete from orders where id = 2")
    ran = project.loader("reconcile", "--repair", "--allow-deletes", "--buckets", "4")
    found = {e["table"]: e for e in ran.events if e["event"] == "reconciled"}
    missed = {name: found[f"{name}.orders"]["missed_deletes"] for name in shards}
    assert missed == {"eu": 1, "us": 1}
    assert _read_newest(project) == _read_sources(shards)


def test_source_names_that_spark_redacts_are_known_to_dbt(
    project: Project, shards: dict[str, Database]
) -> None:
    """Spark's SHOW TBLPROPERTIES redacts values that contain `url` or `token`."""
    for name, of in (("url_eu", "eu"), ("token_us", "us")):
        _add_source(project, name, shards[of], shared=True)
    project.run()
    assert project.loader("compact", "--keep-versions", "1", "--expire-days", "0").code == 0
    shown = project.spark.sql(f"show tblproperties {project.schema}.orders").collect()
    reported = {row["key"]: row["value"] for row in shown}
    kept = [key for key in reported if key.startswith("strandline.newest.")]
    assert len(kept) == 2
    for key in ("strandline.sources", "strandline.newest", *kept):  # what the macros read
        assert json.loads(decode_property(reported[key]))
    assert project.loader("state", "rebuild").code == 0
    ran = project.run()
    assert {ran.table(f"{name}.orders")["status"] for name in ("url_eu", "token_us")} == {
        "nothing new"
    }


def test_after_a_crash_each_source_continues_from_its_own_commit(
    project: Project, shards: dict[str, Database]
) -> None:
    _add_shared_sources(project, shards)
    project.run("--select", "eu.orders")
    project.run("--select", "us.orders")
    shards["us"].execute("insert into orders values (4, 'us4', 4)")
    project.run()
    states = _read_states(project)
    ledger = project.rows("select source_name, batch from raw._cq_syncs where batch > 0")
    # Old commits expire, but what each source's newest one recorded is kept.
    assert project.loader("compact", "--keep-versions", "1", "--expire-days", "0").code == 0
    assert len(project.rows("select * from raw.orders")) == 14
    project.spark.sql(f"drop table {project.schema}._cq_state")
    project.spark.sql(f"drop table {project.schema}._cq_syncs")
    ran = project.run()
    assert sorted(ran.warnings) == [
        "eu.orders: state was behind: rolled forward to batch 1",
        "us.orders: state was behind: rolled forward to batch 3",
    ]
    assert _read_states(project) == states
    assert [ran.table(f"{name}.orders")["status"] for name in shards] == ["nothing new"] * 2
    # Missing ledger rows are rebuilt, each batch for its own source.
    assert project.loader("state", "rebuild").code == 0
    assert sorted(
        project.rows("select source_name, batch from raw._cq_syncs where batch > 0")
    ) == sorted(ledger)
    shards["eu"].execute("insert into orders values (11, 'eu11', 11)")
    assert project.run().table("eu.orders")["batch"] == 4
    # If the raw table is dropped, each source reads everything again; batch numbers continue.
    project.spark.sql(f"drop table {project.schema}.orders")
    ran = project.run()
    assert sorted(ran.table(f"{name}.orders")["batch"] for name in shards) == [5, 6]
    assert _read_newest(project) == _read_sources(shards)


def test_shards_whose_columns_and_keys_differ(
    project: Project, shards: dict[str, Database]
) -> None:
    shards["us"].execute("alter table orders add column state text default 'NY'")
    _add_shared_sources(project, shards)
    assert project.run("--select", "eu.orders").warnings == []
    added = ["us.orders: schema: added state string"]
    assert project.run("--select", "us.orders").warnings == added
    # It is logged only once: a column that one source lacks is not a change of either.
    for database in shards.values():
        database.execute("update orders set note = 'new', c = 20 where id = 1")
    assert project.run().warnings == []
    assert project.rows(
        "select _cq_source_name, state from raw.orders where c = 20 order by 1"
    ) == [
        ("eu", None),
        ("us", "NY"),
    ]
    _add_source(project, "us", shards["us"], shared=True, primary_key=["id", "note"])
    refusal = (
        "table us.orders, primary_key: it shares the raw table orders with source eu: its "
        "primary_key is id, note, but in that source it is id. Set the same primary_key in "
        "table_options.orders of all sources of the raw table"
    )
    assert project.loader("check").errors == [refusal]
    assert project.loader("run", "--select", "us.orders").errors == [refusal]
    other = _write_other_spec(project, "us", shards["us"], shared=True, primary_key=["id", "note"])
    assert other.loader("run").errors == [refusal]
    # A source without `shared` would treat the other source's rows as its own.
    _add_source(project, "eu", shards["eu"])
    project.sources = project.sources[-1:]
    project.write()
    [error] = project.loader("run").errors
    assert "was loaded by source us" in error

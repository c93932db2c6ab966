"""Two sources with a table of one name: refused, unless both say that they share the raw table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services import Database
from tests.services.postgres import Postgres
from tests.sync.project import Project

ROWS = "insert into orders select g, '{name}' || g, g from generate_series({low}, {high}) g"


@pytest.fixture
def shards(postgres: Postgres) -> Iterator[dict[str, Database]]:
    """Two databases of one shape; `us` has fewer rows, and lower cursors."""
    with postgres.database() as eu, postgres.database() as us:
        for name, database, high in (("eu", eu, 10), ("us", us, 3)):
            database.execute("create table orders (id int primary key, note text, c int)")
            database.execute(ROWS.format(name=name, low=1, high=high))
        yield {"eu": eu, "us": us}


def _source(project: Project, name: str, database: Database, **options: object) -> None:
    own = {"cursor_field": "c", **options}
    project.jdbc(database, ["orders"], name, table_options={"orders": own})


def _raw(project: Project) -> list[tuple[object, ...]]:
    return project.rows(
        "select _cq_source_name, count(*), max(_cq_batch) from raw.orders group by 1 order by 1"
    )


def _other_spec(project: Project, name: str, database: Database, **options: object) -> Project:
    """A second spec file with one source, and the same lake."""
    folder = project.folder / name
    folder.mkdir(exist_ok=True)
    other = Project(folder, project.spark, project.schema)
    _source(other, name, database, **options)
    return other


def test_a_second_source_of_a_raw_table_is_refused_before_anything_is_read(
    project: Project, shards: dict[str, Database]
) -> None:
    for name, database in shards.items():
        _source(project, name, database)
    refusal = (
        f"table us.orders: source eu loads the raw table {project.schema}.orders already. Give one "
        "of the two sources a destination with another schema. If they hold parts of one table "
        "(shards, regions), set table_options.orders.shared: true in eu and "
        "table_options.orders.shared: true in us"
    )
    checked = project.loader("check")
    assert (checked.code, checked.errors) == (1, [refusal])
    ran = project.loader("run")
    assert (ran.code, ran.errors) == (1, [refusal])
    assert ran.table("eu.orders")["status"] == "synced"
    # Nor does a selection slip through.
    ran = project.loader("run", "--select", "us.orders")
    assert (ran.code, ran.errors) == (1, [refusal])
    assert _raw(project) == [("eu", 10, 1)]
    assert project.rows("select key from raw._cq_state") == [("eu.orders",)]
    assert project.rows("select source_name, status, batch from raw._cq_syncs order by 1, 2") == [
        ("eu", "synced", 1),
        ("us", "failed", None),
        ("us", "failed", None),
    ]


def test_a_second_source_in_another_spec_file_is_refused(
    project: Project, shards: dict[str, Database]
) -> None:
    _source(project, "eu", shards["eu"])
    project.run()
    other = _other_spec(project, "us", shards["us"])
    ran = other.loader("run")
    assert (ran.code, ran.errors) == (
        1,
        [
            f"table us.orders: the raw table {project.schema}.orders was loaded by source eu. Give "
            "us a destination with another schema. If us is the new name of eu, write `formerly: "
            "[eu]` in its document. If eu and us hold parts of one table (shards, regions), set "
            "table_options.orders.shared: true in each"
        ],
    )
    assert other.loader("check").errors == ran.errors
    assert other.loader("run", "--dry-run").code == 1
    # It says that it shares the table, but eu does not.
    other = _other_spec(project, "us", shards["us"], shared=True)
    [error] = other.loader("run").errors
    assert "was loaded by source eu, which does not share it. Set shared: true in eu" in error
    assert _raw(project) == [("eu", 10, 1)]
    assert project.rows("select key from raw._cq_state") == [("eu.orders",)]
    assert project.rows("select source_name, batch from raw._cq_syncs where batch > 0") == [
        ("eu", 1)
    ]
    # Neither stands in the way of the source whose table it is.
    shards["eu"].execute("update orders set note = 'new', c = 11 where id = 1")
    assert project.run().table("eu.orders")["appended"] == 1


def test_a_renamed_source_goes_on_with_its_table(
    project: Project, shards: dict[str, Database]
) -> None:
    eu = shards["eu"]
    _source(project, "eu", eu)
    project.run()
    project.sources = []
    _source(project, "europe", eu)
    assert "If europe is the new name of eu" in project.loader("run").errors[0]
    project.sources[0]["formerly"] = ["eu"]
    project.write()
    eu.execute("update orders set note = 'new', c = 11 where id = 1")
    ran = project.run().table("europe.orders")
    assert (ran["status"], ran["read"], ran["appended"], ran["batch"]) == ("synced", 2, 1, 2)
    assert project.run().table("europe.orders")["status"] == "nothing new"
    assert project.state("europe.orders")["batch"] == 2
    assert project.rows("select source_name, batch from raw._cq_syncs where batch > 0") == [
        ("eu", 1),
        ("europe", 2),
    ]
    # Not of a source that is still there.
    _source(project, "eu", eu)
    ran = project.loader("run")
    assert ran.code == 2
    assert "'eu' is the name of a source in this file" in ran.text

"""A table whose metadata was cut off stops no command for the others, and can be brought back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services import Database
from tests.sync.project import Project, Ran

TOLD = "its metadata cannot be read: v"


@pytest.fixture
def metadata(project: Project, postgres_database: Database, warehouse: Path) -> Path:
    """Two tables with two batches each; the metadata of orders is cut off, as by a power cut."""
    for table in ("orders", "items"):
        postgres_database.execute(
            f"create table {table} (id int primary key, version bigint)",
            f"insert into {table} values (1, 1)",
        )
    options = {name: {"cursor_field": "version"} for name in ("orders", "items")}
    project.jdbc(postgres_database, ["orders", "items"], table_options=options)
    project.run()
    for table in ("orders", "items"):
        postgres_database.execute(f"insert into {table} values (2, 2)")
    project.run()
    folder = warehouse / project.schema / "orders" / "metadata"
    newest = folder / f"v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"
    newest.write_bytes(newest.read_bytes()[:200])
    return folder


def _told_once(ran: Ran, where: str) -> None:
    """The command failed with one error, which names the table and the file."""
    assert ran.code == 1, ran.text
    [error] = ran.errors
    assert error.startswith(f"{where}: {TOLD}"), error
    assert ".metadata.json is damaged or missing. Other tables are not affected." in error


def test_the_other_tables_go_on(
    project: Project, postgres_database: Database, metadata: Path
) -> None:
    where = f"table {project.schema}.orders"
    for arguments in ((), ("--keep-versions", "1")):
        ran = project.loader("compact", *arguments)
        _told_once(ran, where)
        done = {e["table"]: e for e in ran.events if e["event"] == "compacted"}
        assert set(done) == {
            "shop.items",
            *(f"{project.schema}.{name}" for name in ("_cq_state", "_cq_syncs")),
        }
        assert not done["shop.items"]["note"]
    project.spark.sql(f"delete from {project.schema}._cq_syncs where table_name = 'items'")
    ran = project.loader("state", "rebuild")
    _told_once(ran, where)
    assert [(e["table"], e["syncs_added"]) for e in ran.events if e["event"] == "rebuilt"] == [
        ("shop.items", 2)
    ]
    assert project.loader("compact", "--select", "shop.items").code == 0

    for table in ("orders", "items"):
        postgres_database.execute(f"insert into {table} values (3, 3)")
    ran = project.loader("run")
    _told_once(ran, "table shop.orders")
    assert ran.table("shop.items")["appended"] == 1

    # as docs/operations.md says, "A damaged table"
    newest = metadata / f"v{(metadata / 'version-hint.text').read_text().strip()}.metadata.json"
    newest.rename(newest.with_suffix(".damaged"))
    before = int(newest.name.removeprefix("v").partition(".")[0]) - 1
    (metadata / "version-hint.text").write_text(str(before))
    ran = project.run()
    assert any("state was ahead of the data" in text for text in ran.warnings)
    assert sorted(project.rows("select id from raw.orders")) == [(1,), (2,), (3,)]
    assert project.loader("compact").code == 0


def test_a_damaged_model_keeps_versions_but_stops_nothing(
    project: Project, metadata: Path, warehouse: Path
) -> None:
    """Nobody can say which versions it needs, so none go; files and Iceberg snapshots do."""
    marts = f"mart_{project.schema.removeprefix('raw_')}"
    project.spark.sql(f"create namespace {marts}")
    project.spark.sql(f"create table {marts}.latest (id int) using iceberg")
    (warehouse / marts / "latest/metadata/v1.metadata.json").write_text("{")
    ran = project.loader("compact", "--keep-versions", "1")
    assert ran.code == 1
    assert [error.partition(":")[0] for error in ran.errors] == [
        f"table {project.schema}.orders",
        f"table {marts}.latest",
    ]
    done = {e["table"]: e["note"] for e in ran.events if e["event"] == "compacted"}
    assert done["shop.items"] == f"table {marts}.latest cannot be read: it may need any version"

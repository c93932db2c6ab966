"""What a cluster loads and builds is what one process loads and builds."""

from __future__ import annotations

from typing import Any

from tests.cluster.project import Machine, create_dbt_project
from tests.crash import shop
from tests.services import Database
from tests.sync.conftest import project as project
from tests.sync.project import Project

TABLES = shop.names(2)


def _rows(project: Project, table: str) -> list[tuple[Any, ...]]:
    """Returns a table's rows without the time at which they were loaded."""
    frame = project.spark.table(table).drop("_cq_sync_time")
    return sorted(tuple(row) for row in frame.select(sorted(frame.columns)).collect())


def test_a_cluster_loads_and_builds_what_one_process_does(
    machine: Machine, lakehouse: Project, project: Project, postgres_database: Database
) -> None:
    create_dbt_project(project.folder, project.schema)
    shop.create(postgres_database, TABLES)
    for each in (lakehouse, project):
        shop.configure(each, postgres_database, TABLES)
    project.run()
    loaded = machine.run(lakehouse, "run")
    assert loaded.code == 0, loaded.text
    shop.change(postgres_database, TABLES)
    project.run()
    loaded = machine.run(lakehouse, "run")
    assert loaded.code == 0, loaded.text
    batches = [shop.FIRST, shop.ADDED + shop.UPDATED]
    shop.assert_whole(lakehouse, postgres_database, TABLES, batches)
    for table in TABLES:
        raw = [_rows(each, f"{each.schema}.{table}") for each in (project, lakehouse)]
        assert raw[0] == raw[1], table

    # One update is at the stored cursor, of which the generated test `no_cursor_ties` complains.
    build = ("run", "--build", "--", "--exclude", "test_name:no_cursor_ties")
    for command in (("codegen",), build):
        for done in (project.loader(*command), machine.run(lakehouse, *command)):
            assert done.code == 0, done.text
    for table in TABLES:
        name = f"analytics.shop_{table}_latest"
        assert _rows(project, name) == _rows(lakehouse, name)
        assert len(_rows(lakehouse, name)) == shop.FIRST + shop.ADDED

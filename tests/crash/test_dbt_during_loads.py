"""A typical dbt project, built while a loader and compaction run, equals a rebuild.

The project has three raw schemas, staging models, latest tables, a history and a mart. At the end,
the mart alone is built in development, deferred to production. STRANDLINE_BUILDS sets the number of
builds.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash import shop
from tests.crash.workers import Worker
from tests.dbt.dbtproject import SESSION, DbtProject, as_json
from tests.services import Database
from tests.sync.project import Project

BUILDS = int(os.environ.get("STRANDLINE_BUILDS", "2"))
PAUSE = 0.5
"""Seconds between two loads, which would otherwise slow down the builds too much."""
TABLES = {"eu": "orders_eu", "us": "orders_us", "crm": "customers"}
KEY = {"unique_key": "id", "cursor_field": "at"}
CQ = "_cq_source_name, _cq_sync_time, _cq_batch, _cq_seq, _cq_row_hash, _cq_deleted, _cq_generation"
CONFIG = (
    "{{ config(materialized='%s', unique_key='id', "
    "meta={'strandline': {'cursor_field': 'at'%s}}) }}\n"
)
MODELS = {
    "stg_customers": "{{ config(materialized='ephemeral') }}\n"
    f"select id, upper(note) as label, cast(at as timestamp) as at, {CQ} "
    "from {{ source('crm', 'customers') }}",
    "orders": CONFIG
    % ("deduped_latest", "")
    + "select * from ({{ strandline.union_raw([source('eu', 'orders_eu'), "
    "source('us', 'orders_us')]) }}) as orders",
    "customers": CONFIG % ("deduped_latest", """, 'row_filter': "label <> 'HIDDEN'\"""")
    + "select * from {{ ref('stg_customers') }}",
    "customers_history": CONFIG % ("deduped_history", "")
    + "select * from {{ ref('stg_customers') }}",
    "mart": "{{ config(materialized='table', file_format='iceberg') }}\n"
    "select orders.id, orders.note, customers.label, history.versions "
    "from {{ ref('orders') }} as orders "
    "left join {{ ref('customers') }} as customers on orders.id % 40 = customers.id "
    "left join (select id, count(*) as versions from {{ ref('customers_history') }} group by id) "
    "as history on orders.id % 40 = history.id",
}
DATA_TESTS = {
    "orders": ["strandline.matches_raw", "strandline.unique_key"],
    "customers": ["strandline.matches_raw", "strandline.unique_key"],
    "customers_history": ["strandline.matches_raw", "strandline.unique_key"],
}
OTHERS = [
    {
        "name": "_cq_syncs",
        "data_tests": ["strandline.inclusive_cursor", "strandline.batches_complete"],
    },
    {"name": "_cq_state", "data_tests": ["strandline.state_consistent"]},
]
"""Tests of ledger and state; the package itself has them only for the first raw schema."""


def _create_projects(project: Project, database: Database) -> dict[str, Project]:
    """Creates a loader project for each raw schema."""
    found = {}
    for name, table in TABLES.items():
        folder = project.folder / name
        folder.mkdir()
        found[name] = Project(folder, project.spark, f"{name}_{project.schema}")
        shop.configure(found[name], database, [table])
        found[name].run()
    return found


def _create_dbt_project(project: Project, projects: dict[str, Project], folder: Path) -> DbtProject:
    first = projects["eu"].schema
    dbt = DbtProject(project.spark, folder, schema=f"prod_{project.schema}", raw_schema=first)
    targets = ("prod", "anew", "dev")
    outputs = {name: {**SESSION, "schema": f"{name}_{project.schema}"} for name in targets}
    dbt.write("profiles.yml", {"probe_profile": {"target": "prod", "outputs": outputs}})
    sources = []
    for name, table in TABLES.items():
        tables = [{"name": table, "config": {"meta": {"strandline": KEY}}}]
        others = OTHERS if projects[name].schema != first else []
        sources.append({"name": name, "schema": projects[name].schema, "tables": tables + others})
    models = [{"name": name, "data_tests": tests} for name, tests in DATA_TESTS.items()]
    dbt.write("models/company.yml", {"sources": sources, "models": models})
    for name, sql in MODELS.items():
        dbt.write(f"models/{name}.sql", sql)
    return dbt


@contextmanager
def _load_continuously(
    projects: dict[str, Project], database: Database, worker: Worker
) -> Iterator[list[int]]:
    """Changes rows, loads them and compacts, in another process."""
    enough, codes = threading.Event(), [0]

    def load() -> None:
        for number in range(1, 100_000):
            if enough.wait(PAUSE):
                return
            for table in TABLES.values():
                row = number % shop.FIRST + 1
                database.execute(
                    f"insert into {table} select max(id) + 1, 'new', clock_timestamp() "
                    f"from {table}",
                    f"update {table} set note = case {number} % 3 when 0 then 'hidden' "
                    f"else 'changed {number}' end, at = clock_timestamp() where id = {row}",
                )
            for name in TABLES:
                worker.start(projects[name], *(("compact",) if number % 4 == 3 else ("run",)))
                codes.append(worker.ended().code)

    loader = threading.Thread(target=load)
    loader.start()
    try:
        yield codes
    finally:
        enough.set()
        loader.join()


def _await_loads(codes: list[int], count: int) -> None:
    """Waits until so many loads have ended, so that new batches arrive between the builds."""
    began = time.monotonic()
    while len(codes) <= count:
        assert time.monotonic() - began < 300, "the loader does not go on"
        time.sleep(0.1)


def _build(dbt: DbtProject, *options: str, command: str = "build") -> None:
    results = dbt.run(command, *options)
    # no-op is for exposures
    fine = ("success", "pass", "no-op")
    said = {name: (r.status, r.message) for name, r in results.items() if r.status not in fine}
    assert not said


def _read_tables(dbt: DbtProject, target: str, project: Project) -> dict[str, list[str]]:
    tables = ("orders", "customers", "customers_history", "mart")
    return {
        table: sorted(as_json(row) for row in dbt.rows(f"{target}_{project.schema}.{table}"))
        for table in tables
    }


@pytest.mark.slow
def test_builds_during_loads_and_compaction_equal_a_rebuild(
    project: Project, postgres_database: Database, worker: Worker, tmp_path: Path
) -> None:
    shop.create(postgres_database, list(TABLES.values()))
    postgres_database.execute("update orders_us set id = id + 100000")
    projects = _create_projects(project, postgres_database)
    dbt = _create_dbt_project(project, projects, tmp_path / "dbt")
    batches = f"select count(distinct _cq_batch) as b from {dbt.schema}.orders"
    heads: list[Any] = []
    with _load_continuously(projects, postgres_database, worker) as codes:
        for number in range(BUILDS):
            _await_loads(codes, number * len(TABLES))
            _build(dbt, command="build" if number else "run")
            heads += [project.spark.sql(batches).collect()[0]["b"]]
    for each in projects.values():
        each.run()  # changes that came after the last run, or during a compaction
    assert set(codes) == {0}
    assert heads[-1] > heads[0], "no batch came while dbt ran"
    dbt.artifacts = True
    # the dbt tests passed while the loader ran; now compare the rows themselves
    own = ("--exclude", "package:strandline")
    _build(dbt, *own, command="run")
    _build(dbt, *own, "--target", "anew", command="run")
    built = _read_tables(dbt, "prod", project)
    assert built == _read_tables(dbt, "anew", project)
    ids = [row["id"] for row in dbt.rows("orders")]
    every = "select id from orders_eu union all select id from orders_us order by id"
    assert sorted(ids) == [row[0] for row in postgres_database.query(every)]
    # a developer builds the mart alone, on production's latest tables
    dbt.run("compile", "--target", "prod")
    (dbt.folder / "state").mkdir()
    shutil.copy(dbt.folder / "target" / "manifest.json", dbt.folder / "state")
    state = ("--defer", "--state", str(dbt.folder / "state"))
    _build(dbt, "--target", "dev", "--select", "mart", *state)
    mart: list[dict[str, Any]] = dbt.rows(f"dev_{project.schema}.mart")
    assert sorted(as_json(row) for row in mart) == built["mart"]

"""Many batches are compacted while a loader keeps running in another process.

STRANDLINE_BATCHES sets the number of batches; `pytest -s` shows the sizes.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.workers import Worker
from tests.dbt.dbtproject import DbtProject, as_json
from tests.services import Database
from tests.sync.project import Project

BATCHES = int(os.environ.get("STRANDLINE_BATCHES", "3"))
ROWS = 2000
CHANGED = 100
PAUSE = 1.0
"""Seconds between two loads, which would otherwise take half of the CPU from the compaction."""
TABLES = ("orders", "lines")
MODEL = """
{{{{ config(
    materialized='{kind}', unique_key='id', meta={{'strandline': {{'cursor_field': 'at'}}}}
) }}}}
select * from {{{{ source('shop', '{table}') }}}}
"""
MODELS = {
    "orders_latest": ("deduped_latest", "orders"),
    "lines_latest": ("deduped_latest", "lines"),
    "lines_history": ("deduped_history", "lines"),
}


def _change(database: Database, number: int) -> None:
    for table in TABLES:
        database.execute(
            f"update {table} set note = md5({number}::text || id), "
            f"at = timestamp '2025-01-01' + {number} * interval '1 minute' "
            f"where id % {ROWS // CHANGED} = {number} % {ROWS // CHANGED}"
        )


def _create_dbt_project(project: Project, folder: Path) -> DbtProject:
    name = project.schema
    dbt = DbtProject(project.spark, folder, schema=f"mart_{name}", raw_schema=name)
    key = {"unique_key": "id", "cursor_field": "at"}
    tables = [{"name": table, "config": {"meta": {"strandline": key}}} for table in TABLES]
    matches = [{"name": model, "data_tests": ["strandline.matches_raw"]} for model in MODELS]
    source = {"name": "shop", "schema": name, "tables": tables}
    dbt.write("models/shop.yml", {"sources": [source], "models": matches})
    for model, (kind, table) in MODELS.items():
        dbt.write(f"models/{model}.sql", MODEL.format(kind=kind, table=table))
    return dbt


def _measure(folder: Path) -> tuple[int, int]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return len(files), sum(file.stat().st_size for file in files)


@pytest.mark.slow
def test_a_loader_runs_during_compaction(
    project: Project,
    postgres_database: Database,
    worker: Worker,
    warehouse: Path,
    tmp_path: Path,
) -> None:
    for table in TABLES:
        postgres_database.execute(
            f"create table {table} (id int primary key, note text, at timestamp)",
            f"insert into {table} select n, md5(n::text), timestamp '2025-01-01' "
            f"from generate_series(1, {ROWS}) n",
        )
    # lines are redelivered: compaction may remove repeated rows even if there is a history
    again = {"redelivered_rows": "append", "lookback": "3 minutes"}
    options = {"orders": {"cursor_field": "at"}, "lines": {"cursor_field": "at", **again}}
    project.jdbc(postgres_database, list(TABLES), table_options=options)
    for number in range(BATCHES):
        _change(postgres_database, number)
        project.run()
    dbt = _create_dbt_project(project, tmp_path / "dbt")
    manifest = dbt.parse()

    def rows(model: str) -> list[str]:
        return sorted(as_json(row) for row in dbt.rows(model))

    def good(*command: str) -> None:
        results = dbt.run(*command, manifest=manifest)
        assert {r.status for r in results.values()} <= {"success", "pass"}, results

    own = ("--exclude", "cq_freshness+")
    good("run", *own)
    built = {model: rows(model) for model in MODELS}
    begun, enough = threading.Event(), threading.Event()
    endings: Counter[str] = Counter()

    def load() -> None:
        number = BATCHES
        while not enough.wait(PAUSE):
            number += 1
            _change(postgres_database, number)
            worker.start(project, "run")
            begun.set()
            ran = worker.ended()
            for table in TABLES:
                status = ran.table(f"shop.{table}")["status"]
                assert status in ("synced", "nothing new", "locked"), ran.text
                endings[status] += 1

    folders = {table: warehouse / project.schema / table for table in (*TABLES, "_cq_state")}
    sizes = {table: [_measure(folder)] for table, folder in folders.items()}
    loader = threading.Thread(target=load)
    loader.start()
    try:
        assert begun.wait(300)
        # compaction waits for the lock, which is free between two syncs
        ran = project.loader("compact", "--keep-versions", "1", "--expire-days", "0")
        assert ran.code == 0, ran.text
        assert {model: rows(model) for model in MODELS} == built
        good("test", "--select", "test_name:batches_complete")
    finally:
        enough.set()
        loader.join()
    final = project.loader("compact", "--keep-versions", "1", "--expire-days", "0")
    assert final.code == 0, final.text
    reports = [event for event in ran.events + final.events if event["event"] == "compacted"]
    for table, folder in folders.items():
        sizes[table].append(_measure(folder))

    project.run()
    good("build", *own)
    merged = {model: rows(model) for model in MODELS}
    good("run", "--full-refresh", *own)
    assert {model: rows(model) for model in MODELS} == merged
    for table in TABLES:
        newest = sorted((row["id"], row["note"]) for row in dbt.rows(f"{table}_latest"))
        assert newest == postgres_database.query(f"select id, note from {table} order by id")

    for report in reports:
        print({name: value for name, value in report.items() if name not in ("at", "event")})
    for table, (before, after) in sizes.items():
        print(f"{table}: {before[0]} files, {before[1]:,} bytes; {after[0]}, {after[1]:,}")
    print(f"the loader beside it: {dict(endings)}")
    assert endings["synced"] > 0
    compacted = next(r for r in reports if r["table"] == "shop.orders")
    assert compacted["rows_after"] < compacted["rows_before"]

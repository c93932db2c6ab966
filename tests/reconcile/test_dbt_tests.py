"""After a repair, dbt models have the repaired rows, and all dbt tests pass."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from tests.dbt.dbtproject import DbtProject
from tests.reconcile.shop import missed, nothing, reconcile
from tests.services import Database
from tests.sync.project import Project

MODELS = {
    "merged": "{{ config(materialized='deduped_latest', unique_key='id', "
    "meta={'strandline': {'cursor_field': 'at'}}) }} "
    "select * from {{ source('shop', 't') }}",
    "viewed": "{{ config(materialized='table', file_format='iceberg') }} "
    "{{ strandline.deduped_latest(source('shop', 't'), 'id', 'at') }}",
}
ON_RAW = ("no_cursor_ties", "no_duplicates", "cursor_plausible")
RECONCILED = "reconciled_recently"
TESTS = (*ON_RAW, "inclusive_cursor", "state_consistent", "batches_complete", RECONCILED)


def test_snapshots_follow_a_repair_and_the_tests_pass(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, note text, at timestamptz)",
        "insert into t select i, 'n', now() - i * interval '1 day' from generate_series(1, 30) i",
    )
    options = {"t": {"cursor_field": "at", "sweep": "never"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    project.run()
    name = project.schema
    dbt = DbtProject(project.spark, tmp_path / "dbt", schema=f"mart_{name}", raw_schema=name)
    table = {
        "name": "t",
        "config": {"meta": {"strandline": {"unique_key": "id", "cursor_field": "at"}}},
        "data_tests": [f"strandline.{test}" for test in ON_RAW],
    }
    recently = {f"strandline.{RECONCILED}": {"arguments": {"tables": ["t"]}}}
    records = {"name": "_cq_reconciled", "data_tests": [recently]}
    source = {"name": "shop", "schema": name, "tables": [table, records]}
    model = {"name": "merged", "data_tests": ["strandline.matches_raw"]}
    dbt.write("models/shop.yml", {"sources": [source], "models": [model]})
    for name, sql in MODELS.items():
        dbt.write(f"models/{name}.sql", sql)
    manifest = dbt.parse()

    def check(problems: set[str], tests: tuple[str, ...] = TESTS) -> None:
        chosen = (*MODELS, *(f"test_name:{test}" for test in tests))
        results = dbt.run("build", "--select", *chosen, manifest=manifest)
        wrong = {n for n, one in results.items() if one.status not in ("pass", "success")}
        found = {next((test for test in TESTS if test in one), one) for one in wrong}
        assert found == problems, results
        assert len(results) == len(tests) + len(MODELS) + 1  # matches_raw on `merged`
        source = postgres_database.query("select id, note from t order by id")
        for model in MODELS:
            rows = sorted((row["id"], row["note"]) for row in dbt.rows(model))
            assert (rows == source) is (RECONCILED not in problems), model

    postgres_database.execute(
        "update t set note = 'm' where id in (5, 6)",
        "delete from t where id in (7, 8)",
        "insert into t values (99, 'late', now() - interval '9 days')",
    )
    check({RECONCILED}, (RECONCILED,))  # never compared, so this test fails
    found = {"missed_updates": 2, "missed_rows": 1, "missed_deletes": 2}
    assert missed(reconcile(project, "--repair"), "shop.t") == found
    check(set())
    postgres_database.execute(
        "insert into t values (7, 'again', now())",
        "update t set note = 'bumped', at = now() where id = 5",
        "delete from t where id = 9",
    )
    project.run()
    assert missed(reconcile(project, "--repair"), "shop.t") == {**nothing(), "missed_deletes": 1}
    check(set())
    # the model shows the last complete comparison, as `loader status` does
    dbt.run("run", "--select", "cq_sync_log", "cq_freshness", manifest=manifest)
    [row] = dbt.rows("cq_freshness")
    [status] = [e for e in project.loader("status").events if e["event"] == "status"]
    in_utc = row["verified_until"].astimezone(dt.timezone.utc)
    assert in_utc.isoformat(sep=" ")[:19] == status["verified_until"][:19]

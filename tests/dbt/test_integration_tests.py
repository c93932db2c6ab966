"""integration_tests/ on Spark: the seeds and expected rows of DuckDB, and incremental models."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import PACKAGE, SESSION, DbtProject


@pytest.fixture(scope="module")
def integration(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DbtProject:
    folder = tmp_path_factory.mktemp("integration_tests")
    name = "strandline_integration_tests"
    project = DbtProject(spark, folder, name=name, schema=name, raw_schema="integration_tests")
    made = shutil.ignore_patterns("target", "logs", "dbt_packages", "packages.yml", "profiles.yml")
    shutil.copytree(PACKAGE / "integration_tests", folder, ignore=made, dirs_exist_ok=True)
    output = {**SESSION, "schema": "integration_tests"}
    project.write("profiles.yml", {name: {"target": "spark", "outputs": {"spark": output}}})
    return project


def test_builds_with_the_expected_rows(integration: DbtProject) -> None:
    """Each test passes on correct seeds and finds the expected number of faults in the others."""
    seeded = integration.run("seed")
    assert {one.status for one in seeded.values()} == {"success"}, seeded
    # dbt commits the seeds, so the ledger's test rightly reports writes by another program.
    ledger = "strandline_batches_complete_cq_sync_log_"
    built = integration.run("build", "--exclude-resource-type", "seed", "--exclude", ledger)
    wrong = {
        name: (one.message, one.sql)
        for name, one in built.items()
        if one.status not in ("success", "pass")
    }
    assert wrong == {}
    merged = {name for name in built if name.startswith("merged_")}
    assert merged == {"merged_latest", "merged_history"}
    again = integration.run("build", "--select", "merged_latest", "merged_history")
    assert {again[name].message for name in merged} == {"NO NEW BATCH"}

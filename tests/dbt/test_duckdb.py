"""The package works on DuckDB: integration_tests/ with its expected rows, and a bare project.

Each project runs dbt in a process of its own, because this process has loaded Spark's adapter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dbt.gitpackage import ROOT, write_git_package

PORTABLE = {
    *(
        "batches_complete",
        "complete_recently",
        "cursor_plausible",
        "inclusive_cursor",
        "matches_raw",
    ),
    *("no_cursor_ties", "no_duplicates", "reconciled_recently", "state_consistent", "unique_key"),
    "volume_plausible",
}
"""The generic tests that need no Spark; row_hash_valid does."""

RUN_EACH = """
import json, sys
from dbt.cli.main import dbtRunner

results = []
for command in json.loads(sys.argv[1]):
    outcome = dbtRunner().invoke([*command, "--profiles-dir", ".", "--quiet"])
    nodes = getattr(outcome.result, "results", None) or []
    results.append({
        "success": outcome.success,
        "exception": str(outcome.exception or ""),
        "nodes": {
            one.node.name: [str(one.status), one.message or "", one.failures]
            for one in nodes if hasattr(one, "status")
        },
    })
with open("results.json", "w") as file:
    json.dump(results, file)
"""
"""Runs several dbt commands in one process, because starting dbt takes longest."""


def run_each(project: Path, *commands: Sequence[str]) -> list[dict[str, Any]]:
    """Runs dbt commands; returns of each whether it succeeded, and its nodes' results."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, json.dumps([list(one) for one in commands])],
        cwd=project,
        env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results: list[dict[str, Any]] = json.loads((project / "results.json").read_text())
    return results


def failed(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the nodes that neither succeeded nor passed."""
    return {name: one for name, one in result["nodes"].items() if one[0] not in ("success", "pass")}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the database file that integration_tests/ builds, with raw tables and models."""
    project = tmp_path_factory.mktemp("portable") / "integration_tests"
    made = shutil.ignore_patterns("target", "logs", "dbt_packages")
    shutil.copytree(ROOT / "integration_tests", project, ignore=made)
    (project / "packages.yml").write_text(yaml.safe_dump({"packages": [{"local": str(ROOT)}]}))
    results = run_each(project, ["deps"], ["seed"], ["build", "--exclude-resource-type=seed"])
    for result in results:
        assert result["success"], result["exception"] or failed(result)
    nodes = json.loads((project / "target" / "manifest.json").read_text())["nodes"].values()
    tests = [one for one in nodes if one["resource_type"] == "test" and one["test_metadata"]]
    ours = [
        one
        for one in tests
        if one["test_metadata"]["namespace"] == "strandline" and one["name"] in results[-1]["nodes"]
    ]
    found = {one["test_metadata"]["name"] for one in ours if one["name"].startswith("finds_")}
    assert found == PORTABLE
    passing = {one["test_metadata"]["name"] for one in ours if not one["name"].startswith("finds_")}
    assert passing == PORTABLE
    assert {tag for one in ours for tag in one["tags"]} == {"strandline"}
    return project / "target" / "strandline.duckdb"


def test_integration_tests_build(database: Path) -> None:
    """Each portable test passes on correct seeds and finds the faults of the others."""
    assert database.is_file()


BARE_MODELS = {
    "orders": """
{{ strandline.deduped_latest(source("shop", "raw_orders"), "id", "updated_at") }}
""",
    "hashed": """
select * from {{ source("shop", "raw_orders") }}
""",
}
MATCHES = {
    "raw": "source('shop', 'raw_orders')",
    "unique_key": "id",
    "cursor_field": "updated_at",
}
BARE_SCHEMA = {
    "sources": [
        {
            "name": "shop",
            "schema": "integration_tests",
            "tables": [
                {
                    "name": "raw_orders",
                    "config": {
                        "meta": {"strandline": {"unique_key": "id", "cursor_field": "updated_at"}}
                    },
                    "data_tests": ["strandline.no_cursor_ties"],
                }
            ],
        }
    ],
    "models": [
        {
            "name": "orders",
            "data_tests": [
                {"strandline.unique_key": {"arguments": {"unique_key": "id"}}},
                {"strandline.matches_raw": {"arguments": MATCHES}},
            ],
        },
        {"name": "hashed", "data_tests": [{"strandline.row_hash_valid": {"name": "hash"}}]},
    ],
}


@pytest.fixture(scope="module")
def bare(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that installs only the package, from a git tag."""
    folder = tmp_path_factory.mktemp("bare")
    repository, tag = write_git_package(folder / "strandline.git")
    project = folder / "project"
    (project / "models").mkdir(parents=True)
    files: dict[str, Any] = {
        "dbt_project.yml": {
            "name": "bare",
            "profile": "bare",
            "vars": {"strandline__raw_schema": "integration_tests"},
        },
        "packages.yml": {"packages": [{"git": str(repository), "revision": tag}]},
        "profiles.yml": profiles(folder),
        "models/schema.yml": BARE_SCHEMA,
    }
    for path, content in files.items():
        (project / path).write_text(yaml.safe_dump(content))
    for name, sql in BARE_MODELS.items():
        (project / "models" / f"{name}.sql").write_text(sql)
    shutil.copy(database, folder / database.name)
    return project


def profiles(folder: Path) -> dict[str, Any]:
    writer = {"type": "duckdb", "path": f"{folder}/strandline.duckdb", "schema": "bare"}
    reader = {**writer, "config_options": {"access_mode": "read_only"}}
    return {"bare": {"target": "writer", "outputs": {"writer": writer, "reader": reader}}}


def test_installed_from_a_git_tag(bare: Path) -> None:
    """The package works when it is installed by `git:` and `revision:`."""
    building = ["parse"], ["compile"], ["build", "--exclude", "hash"], ["docs", "generate"]
    for result in run_each(bare, ["deps"], *building):
        assert result["success"], result["exception"] or failed(result)
    installed = bare / "dbt_packages" / "strandline"
    assert installed.is_dir()
    assert not installed.is_symlink()
    manifest = json.loads((bare / "target" / "manifest.json").read_text())
    assert "strandline" in {one["package_name"] for one in manifest["macros"].values()}
    assert (bare / "target" / "catalog.json").is_file()
    models = [one for one in manifest["nodes"].values() if one["resource_type"] == "model"]
    assert {one["name"] for one in models if one["package_name"] == "strandline"} == {
        *("cq_freshness", "cq_state_current", "cq_sync_log"),
    }

    # A role that may only read, and a test that this adapter cannot run.
    tests, hashes = run_each(
        bare,
        ["test", "--select", "tag:strandline", "--exclude", "hash", "--target", "reader"],
        ["test", "--select", "hash", "--target", "reader"],
    )
    assert failed(tests) == {}
    assert len(tests["nodes"]) >= 6
    assert "Run it with a Spark target" in hashes["nodes"]["hash"][1]


def test_enabled_false(bare: Path) -> None:
    """Without the package's models its macros and tests still work."""
    project = yaml.safe_load((bare / "dbt_project.yml").read_text())
    off = {**project, "models": {"strandline": {"+enabled": False}}}
    off["sources"] = {"strandline": {"+enabled": False}}
    (bare / "dbt_project.yml").write_text(yaml.safe_dump(off))
    try:
        deps, built = run_each(bare, ["deps"], ["build", "--exclude", "hash"])
    finally:
        (bare / "dbt_project.yml").write_text(yaml.safe_dump(project))
    assert deps["success"]
    assert failed(built) == {}
    assert {name for name in built["nodes"] if name.startswith("cq_")} == set()
    assert "orders" in built["nodes"]

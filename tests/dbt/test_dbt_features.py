"""dbt features with both materializations and the tests: defer, empty, unit tests, contracts."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from loader.property_codec import decode_property
from tests.dbt.dbtproject import SESSION, DbtProject, Result
from tests.dbt.rawtables import RawSchema, Row, sync_time

COLUMNS = "id int, updated_at timestamp, payload string"
KEY = {"unique_key": "id", "cursor_field": "updated_at"}
MODELS = ("orders_latest", "orders_history")
TYPES = {
    "id": "int", "updated_at": "timestamp", "payload": "string", "_cq_source_name": "string",
    "_cq_sync_time": "timestamp", "_cq_batch": "bigint", "_cq_seq": "bigint",
    "_cq_row_hash": "bigint", "_cq_deleted": "boolean", "_cq_generation": "bigint",
}  # fmt: skip


def row(key: int, day: int, payload: str | None = "a", **more: Any) -> Row:
    return {"id": key, "updated_at": sync_time(day), "payload": payload, **more}


class Company:
    """A project with staging, a latest table, a history and a mart, in several targets."""

    def __init__(self, project: DbtProject, raw: RawSchema) -> None:
        self.project, self.raw = project, raw
        project.artifacts = True
        raw.create("orders", COLUMNS)
        raw.append("orders", 1, [row(1, 1), row(2, 1)])
        raw.append("orders", 2, [row(1, 2, "b")])
        raw.syncs("orders", [sync(1, 2), sync(2, 1)])
        raw.states("orders", [(1, state(1)), (2, state(2))])
        outputs = {
            target: {**SESSION, "schema": f"{target}_{project.schema}"}
            for target in ("dev", "prod", "empty", "contract")
        }
        project.write("profiles.yml", {"probe_profile": {"target": "dev", "outputs": outputs}})
        for kind in ("latest", "history"):
            project.write(
                f"models/orders_{kind}.sql",
                f"{{{{ config(materialized='deduped_{kind}', unique_key='id', "
                "meta={'strandline': {'cursor_field': 'updated_at'}}) }}\n"
                "select * from {{ ref('stg_orders') }}",
            )
        project.write(
            "models/stg_orders.sql",
            "{{ config(materialized='ephemeral') }}\n"
            "select id, updated_at, upper(payload) as payload, _cq_source_name, _cq_sync_time, "
            "_cq_batch, _cq_seq, _cq_row_hash, _cq_deleted, _cq_generation "
            "from {{ source('shop', 'orders') }}",
        )
        project.write(
            "models/mart.sql",
            "{{ config(materialized='table', file_format='iceberg') }}\n"
            "select id, payload from {{ ref('orders_latest') }}",
        )
        self.schema_file()

    def schema_file(self, **config: Any) -> None:
        """Writes sources, tests and, for both models, a config."""
        contract = config.get("contract", {}).get("enforced")
        models = []
        for name in MODELS:
            kind = name.removeprefix("orders_")
            extra = {"valid_from": "timestamp", "valid_to": "timestamp", "is_current": "boolean"}
            types = {**TYPES, **(extra if kind == "history" else {})}
            condition = {"arguments": {"row_condition": "is_current"}} if kind == "history" else {}
            models.append(
                {
                    "name": name,
                    "config": config,
                    "data_tests": [
                        {"strandline.unique_key": condition},
                        "strandline.matches_raw",
                    ],
                    "columns": [
                        {"name": column, **({"data_type": type_} if contract else {})}
                        for column, type_ in types.items()
                    ],
                }
            )
        tables = [{"name": "orders", "config": {"meta": {"strandline": KEY}}}]
        sources = [{"name": "shop", "schema": self.raw.schema, "tables": tables}]
        self.project.write("models/schema.yml", {"sources": sources, "models": models})

    def run(self, *command: str) -> dict[str, Result]:
        return self.project.run(*command)

    def rows(self, target: str, table: str) -> list[tuple[Any, ...]]:
        frame = self.project.spark.table(f"{target}_{self.project.schema}.{table}")
        return sorted(tuple(one) for one in frame.select("id", "payload").collect())


def sync(batch: int, rows: int) -> dict[str, Any]:
    low = None if batch == 1 else state(batch - 1)["cursor"]
    high = state(batch)["cursor"]
    window = {"cursor_low": low, "cursor_high": high, "cursor_field": "updated_at"}
    return {"batch": batch, "rows_read": rows, "rows_appended": rows, **window}


def state(batch: int) -> dict[str, Any]:
    cursor = f"{sync_time(batch):%Y-%m-%d %H:%M:%S}"
    return {"batch": batch, "cursor": cursor, "cursor_field": "updated_at", "generation": 1}


def statuses(results: dict[str, Result]) -> dict[str, str]:
    return {name: one.status for name, one in results.items()}


@pytest.fixture(scope="module")
def company(project: DbtProject, raw: RawSchema) -> Company:
    company = Company(project, raw)
    results = company.run("build", "--target", "prod")
    assert set(statuses(results).values()) <= {"success", "pass"}, results
    (project.folder / "prod").mkdir()
    manifest = project.folder / "target" / "manifest.json"
    (project.folder / "prod" / "manifest.json").write_bytes(manifest.read_bytes())
    return company


def state_of_production(company: Company) -> tuple[str, ...]:
    return ("--defer", "--favor-state", "--state", str(company.project.folder / "prod"))


def test_defer(company: Company) -> None:
    """Tests and downstream models of models that were not built in this target read production."""
    defer = state_of_production(company)
    results = company.run("test", *defer)
    assert set(statuses(results).values()) == {"pass"}, results
    assert statuses(company.run("build", "--select", "mart", *defer)) == {"mart": "success"}
    assert company.rows("dev", "mart") == [(1, "B"), (2, "A")]
    results = company.run("build", "--select", "orders_latest", *defer)
    assert set(statuses(results).values()) == {"success", "pass"}, results
    assert company.rows("dev", "orders_latest") == [(1, "B"), (2, "A")]
    # each target's table has its own verdicts
    for target in ("prod", "dev"):
        table = f"{target}_{company.project.schema}.orders_latest"
        listed = company.project.spark.sql(f"show tblproperties {table}").collect()
        [proved] = [one[1] for one in listed if one[0] == "strandline.proved"]
        assert "matches_raw" in decode_property(proved), target


def test_empty(company: Company) -> None:
    """In a new schema, `--empty` creates empty tables, which the next build fills."""
    results = company.run("build", "--empty", "--target", "empty")
    assert set(statuses(results).values()) <= {"success", "pass"}, results
    assert company.rows("empty", "orders_latest") == []
    results = company.run("build", "--select", *MODELS, "--target", "empty")
    assert set(statuses(results).values()) <= {"success", "pass"}, results
    assert company.rows("empty", "orders_latest") == [(1, "B"), (2, "A")]


def test_show(company: Company) -> None:
    """`--select` runs the model's own SELECT on all versions; `--inline` can read the table."""
    inline = "select * from {{ ref('orders_latest') }}"
    [shown] = company.run("show", "--inline", inline, "--target", "prod").values()
    assert shown.status == "success"
    shown = company.run("show", "--select", "orders_latest", "--target", "prod")
    assert set(statuses(shown).values()) == {"success"}


def test_unit_tests(company: Company) -> None:
    """A unit test runs the model's own SELECT, from versions to versions, and builds nothing."""
    given = "select 1 as id, 'b' as payload, 7 as _cq_batch"
    expected = {"format": "sql", "rows": given}
    tests = []
    for name in MODELS:
        rows = {"input": "ref('stg_orders')", "format": "sql", "rows": given}
        tests.append({"name": f"unit_{name}", "model": name, "given": [rows], "expect": expected})
    wrong = {"format": "sql", "rows": given.replace("'b'", "'c'")}
    tests.append({**tests[0], "name": "unit_wrong", "expect": wrong})
    path = company.project.folder / "models" / "unit_tests.yml"
    before = {
        name: company.project.spark.table(in_production(company, name)).count() for name in MODELS
    }
    path.write_text(yaml.safe_dump({"unit_tests": tests}))
    try:
        results = company.run("test", "--select", "test_type:unit", "--target", "prod")
    finally:
        path.unlink()
    assert statuses(results) == {
        **dict.fromkeys((f"unit_{name}" for name in MODELS), "pass"),
        "unit_wrong": "fail",
    }
    for name, rows in before.items():
        assert company.project.spark.table(in_production(company, name)).count() == rows


def in_production(company: Company, table: str) -> str:
    return f"prod_{company.project.schema}.{table}"


def test_settings_of_tests(company: Company) -> None:
    """A failing test follows dbt's own limit, warn_if, error_if and store_failures."""
    table = f"dev_{company.project.schema}.orders_latest"
    company.run("run", "--select", "orders_latest")
    company.project.spark.sql(f"delete from {table}")
    path = company.project.folder / "models" / "schema.yml"
    before = path.read_text()
    document = yaml.safe_load(before)
    proof = {"strandline.matches_raw": {"config": {
        "limit": 1, "warn_if": ">0", "error_if": ">1", "store_failures": True}}}  # fmt: skip
    document["models"][0]["data_tests"] = [proof]
    path.write_text(yaml.safe_dump(document))
    [result] = company.run("test", "--select", "orders_latest").values()
    path.write_text(before)
    assert (result.status, result.failures) == ("warn", 1)


def test_contracts(company: Company) -> None:
    """A contract is enforced by the first build and by later ones."""
    company.schema_file(contract={"enforced": True})
    try:
        results = company.run("run", "--select", *MODELS, "--target", "contract")
        assert statuses(results) == dict.fromkeys(MODELS, "success"), results
        company.raw.spark.sql(f"alter table {company.raw.schema}.orders add columns (note string)")
        company.project.write(
            "models/stg_orders.sql",
            "{{ config(materialized='ephemeral') }}\nselect * from {{ source('shop', 'orders') }}",
        )
        results = company.run("run", "--select", *MODELS, "--target", "contract")
        assert statuses(results) == dict.fromkeys(MODELS, "error")
        for name in MODELS:
            assert "contract" in re.sub(r"\s+", " ", results[name].message)
    finally:
        company.schema_file()


def test_retry_and_fail_fast(company: Company) -> None:
    """Once the cause of an error is removed, `dbt retry` builds the failed model."""
    path = company.project.folder / "models" / "orders_history.sql"
    good = path.read_text()
    path.write_text(good.replace("unique_key='id'", "unique_key='nobody'"))
    results = company.run("run", "--fail-fast", "--select", "orders_history")
    assert statuses(results)["orders_history"] == "error"
    path.write_text(good)
    assert statuses(company.run("retry")) == {"orders_history": "success"}

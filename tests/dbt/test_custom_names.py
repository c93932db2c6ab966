"""Models work with schemas and aliases from a project's own macros, and with two targets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import SESSION, DbtProject, Result
from tests.dbt.rawtables import RawSchema

NAMES = """
{% macro generate_schema_name(custom_schema_name, node) -%}
    {{ target.name ~ "_named" ~ ("_" ~ custom_schema_name if custom_schema_name else "") }}
{%- endmacro %}

{% macro generate_alias_name(custom_alias_name=none, node=none) -%}
    {%- set name = custom_alias_name or node.name -%}
    {{ "t_" ~ name if node.resource_type == "model" else name }}
{%- endmacro %}
"""
MODEL = """
{{{{ config(materialized='deduped_{kind}', unique_key='id', schema='{kind}') }}}}
select * from {{{{ ref('stg_orders') }}}}
"""
STAGED = """
{{ config(materialized='ephemeral') }}
select *, upper(payload) as label
from {{ source('shop', 'orders') }}
"""


# joins a seed, so each build is a rebuild
LABELLED = """
{{ config(materialized='deduped_latest', unique_key='id', schema='latest') }}
select o.*, c.label as long
from {{ ref('stg_orders') }} as o
left join {{ ref('codes') }} as c on o.payload = c.payload
"""


@pytest.fixture(scope="module")
def named(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> DbtProject:
    folder: Path = tmp_path_factory.mktemp("named")
    project = DbtProject(spark, folder, name="named", schema="named", raw_schema=raw.schema)
    outputs = {target: {**SESSION, "schema": "named"} for target in ("dev", "prod")}
    project.write("profiles.yml", {"named_profile": {"target": "dev", "outputs": outputs}})
    project.write("macros/names.sql", NAMES)
    project.write("seeds/codes.csv", "payload,label\na,A\nb,B\n")
    project.write("models/labelled.sql", LABELLED)
    project.write("models/stg_orders.sql", STAGED)
    kinds = ("latest", "history")
    for kind in kinds:
        project.write(f"models/orders_{kind}.sql", MODEL.format(kind=kind))
    document = {
        "sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": "orders"}]}],
        "models": [
            {"name": f"orders_{kind}", "data_tests": ["strandline.matches_raw"]} for kind in kinds
        ],
    }
    project.write("models/schema.yml", yaml.safe_dump(document))
    project.install()
    raw.create("orders", "id int, payload string")
    raw.append("orders", 1, [{"id": 1, "payload": "a"}, {"id": 2, "payload": "a"}])
    return project


def test_each_target_has_tables_and_watermarks_of_its_own(
    named: DbtProject, raw: RawSchema
) -> None:
    def build(target: str, *flags: str) -> set[str]:
        results = named.run("build", "--select", "codes", "stg_orders+", "--target", target, *flags)
        assert {one.status for one in results.values()} <= {"success", "pass"}, results
        return {words(results[f"orders_{kind}"]) for kind in ("latest", "history")}

    def words(result: Result) -> str:
        return result.message

    def payloads(target: str) -> list[tuple[str, str]]:
        rows = named.rows(f"{target}_named_latest.t_orders_latest")
        joined = named.rows(f"{target}_named_latest.t_labelled")
        assert {one["long"] for one in joined} == {one["label"] for one in rows}
        return sorted((one["payload"], one["label"]) for one in rows)

    assert build("dev") == {"REBUILD to batch 1"}
    raw.append("orders", 2, [{"id": 1, "payload": "b"}])
    assert build("prod") == {"REBUILD to batch 2"}
    assert payloads("dev") == [("a", "A"), ("a", "A")]
    assert build("dev") == {"MERGE to batch 2"}
    assert build("prod") == build("dev") == {"NO NEW BATCH"}
    assert payloads("dev") == payloads("prod") == [("a", "A"), ("b", "B")]
    # neither another target's tables nor --defer causes a rebuild
    named.artifacts = True
    named.run("compile", "--select", "stg_orders+", "--target", "prod")
    state = named.folder / "prod"
    state.mkdir()
    (state / "manifest.json").write_bytes((named.folder / "target" / "manifest.json").read_bytes())
    assert build("dev", "--defer", "--state", str(state)) == {"NO NEW BATCH"}


def test_run_operations_find_tables_of_odd_names(named: DbtProject, raw: RawSchema) -> None:
    raw.create("`Odd Ones`", "id int")
    raw.append("`Odd Ones`", 1, [{"id": 1}])
    named.run("run", "--select", "stg_orders", "orders_latest")
    for table in (f"{raw.schema}.Odd Ones", "dev_named_latest.t_orders_latest"):
        assert named.operation("rewrite_files", relation=table, alone=True)
    assert not named.operation("rewrite_files", relation=f"{raw.schema}.Nobody", alone=True)

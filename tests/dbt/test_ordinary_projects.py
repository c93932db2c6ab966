"""What people do with any dbt project: compile before a build, name a catalog, edit a seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.shop import READS, Shop, row


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    shop = Shop(project, raw, ["eu", "us"])
    for table in ("eu", "us"):
        raw.append(table, 1, [row(1, 1, table)])
    return shop


def test_it_compiles_before_anything_is_built(shop: Shop) -> None:
    shop.model("compiled", READS % "eu")
    told = shop.project.run("compile")
    assert {one.status for one in told.values()} == {"success"}, told
    # but a test that is asked for an answer says what is missing
    tested = shop.project.run("test", "--select", "compiled")
    assert "there is no such table" in " ".join(one.message for one in tested.values())
    assert "there is no such table" not in shop.build("compiled")
    assert {one.status for one in shop.project.run("compile").values()} == {"success"}


def test_a_target_schema_may_name_its_catalog(
    spark: SparkSession, raw: RawSchema, shop: Shop, tmp_path: Path
) -> None:
    dotted = DbtProject(spark, tmp_path, schema="lake.dotted_ordinary", raw_schema=raw.schema)
    dotted.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": "eu"}]}]},
    )
    dotted.write(
        "models/plain.sql",
        "{{ config(materialized='table', file_format='iceberg') }}\n" + READS % "eu",
    )
    for _ in range(2):
        built = dotted.run("run", "--select", "plain")
        assert built["plain"].status == "success", built["plain"].message


def test_of_a_key_in_two_tables_the_one_named_last_counts(shop: Shop) -> None:
    """By the SELECT's own words: dbt gives the calls of source() in any order."""
    part = "select *, '{raw}.{name}' as _cq_table from {{{{ source('shop', '{name}') }}}}"
    parts = {name: part.format(raw=shop.raw.schema, name=name) for name in ("eu", "us")}
    for name, first, last in (("to_us", "eu", "us"), ("to_eu", "us", "eu")):
        shop.model(name, f"{parts[first]} union all {parts[last]}")
        shop.build(name)
        assert shop.open_ids(name) == {1: last}


def test_a_seed_that_changes_its_types_is_seen(shop: Shop) -> None:
    shop.project.write("seeds/rates.csv", "id,rate\n1,2\n")
    shop.model(
        "rated",
        "select o.*, r.rate from {{ source('shop', 'eu') }} as o "
        "left join {{ ref('rates') }} as r on o.id = r.id",
    )
    types = []
    for given in ("int", "decimal(10,2)"):
        settings = {"name": "rates", "config": {"column_types": {"rate": given}}}
        shop.project.write("seeds/rates.yml", {"seeds": [settings]})
        shop.project.run("seed", "--full-refresh")
        assert shop.build("rated") == "BUILD to batch 1"
        [row_] = shop.project.rows("rated")
        types.append(type(row_["rate"]).__name__)
    assert types == ["int", "Decimal"]

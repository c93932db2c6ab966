"""Common dbt workflows: compile before a build, name a catalog, edit a seed, join a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import Outcomes, Steps, in_step
from tests.dbt.shop import META, READS, Shop, gone, row


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    shop = Shop(project, raw, ["eu", "us", "far", "gains", "keyed", "kept", "dotted"])
    for table in ("eu", "us"):
        raw.append(table, 1, [row(1, 1, table)])
    return shop


def test_it_compiles_before_anything_is_built(shop: Shop) -> None:
    shop.model("compiled", READS % "eu")
    told = shop.project.run("compile")
    assert {one.status for one in told.values()} == {"success"}, told
    # a test that is run names the missing table
    tested = shop.project.run("test", "--select", "compiled")
    assert "there is no table" in " ".join(one.message for one in tested.values())
    assert "there is no table" not in shop.build("compiled")
    assert {one.status for one in shop.project.run("compile").values()} == {"success"}


def test_a_target_schema_may_name_its_catalog(
    spark: SparkSession, raw: RawSchema, shop: Shop, tmp_path: Path
) -> None:
    dotted = DbtProject(spark, tmp_path, schema="lake.dotted_ordinary", raw_schema=raw.schema)
    dotted.write(
        "models/sources.yml",
        {
            "sources": [
                {
                    "name": "shop",
                    "schema": raw.schema,
                    "tables": [{"name": t} for t in ("eu", "dotted")],
                }
            ]
        },
    )
    dotted.write(
        "models/plain.sql",
        "{{ config(materialized='table', file_format='iceberg') }}\n" + READS % "eu",
    )
    for kind in ("latest", "history"):
        dotted.write(
            f"models/{kind}.sql",
            f"{{{{ config(materialized='deduped_{kind}', full_refresh=false, unique_key='id') }}}}"
            f"\n{READS % 'dotted'}",
        )

    def build(*flags: str) -> list[str]:
        built = dotted.run("run", "--select", "plain", "latest", "history", *flags)
        assert built["plain"].status == "success", built["plain"].message
        return [built[kind].message for kind in ("latest", "history")]

    raw.append("dotted", 1, [row(1, 1)])
    assert build() == ["REBUILD to batch 1"] * 2
    raw.append("dotted", 2, [row(1, 2), row(2, 2)])
    assert build() == ["MERGE to batch 2"] * 2
    # rows that were deleted from the raw table stay
    spark.sql(f"delete from {raw.schema}.dotted where _cq_batch = 1")
    assert build() == ["NO NEW BATCH"] * 2
    assert all("--empty" in message for message in build("--empty"))
    assert len(dotted.rows("history")) == 3
    spark.sql(f"delete from {dotted.schema}.latest where id = 1")
    rewrite = {"relation": f"{dotted.schema}.history", "alone": True}
    assert dotted.operation("rewrite_files", **rewrite)
    damaged, rewritten = build()
    assert "its config `full_refresh: false` forbids that" in damaged
    assert rewritten == "NO NEW BATCH"


@in_step
def test_a_source_schema_may_name_its_catalog(shop: Shop) -> Steps:
    """dbt-spark has no catalogs, so it is part of the schema; the watermark has the full name."""
    ledger = {"name": "_cq_syncs", "data_tests": [{"strandline.batches_complete": {"name": "far"}}]}
    shop.project.write(
        "models/far.yml",
        {
            "sources": [
                {
                    "name": "far",
                    "schema": f"lake.{shop.raw.schema}",
                    "tables": [
                        {
                            "name": "far",
                            "config": {"meta": {"strandline": {"unique_key": "id"}}},
                        },
                        ledger,
                    ],
                }
            ]
        },
    )
    shop.raw.append("far", 1, [row(1, 1), row(2, 1)])
    shop.raw.append("far", 2, [row(2, 1)], generation=2)
    refresh = {"batch": 2, "mode": "full_refresh", "generation": 2, "rows_appended": 1}
    shop.raw.syncs("far", [{"batch": 1, "rows_appended": 2}, refresh])
    far = "select * from ({{ strandline.union_raw([source('far', 'far')]) }}) as orders"
    for kind in ("latest", "history"):
        shop.model(f"far_{kind}", far, f"deduped_{kind}", delete_stale=True)
    yield shop.plan_build("far_latest", "far_history")
    assert shop.open_ids("far_latest") == {2: "open"}
    assert (yield shop.plan_build("far_latest", "far_history")) == "NO NEW BATCH"
    [accounted] = shop.run("test", "--select", "source:far").values()
    assert accounted.status == "pass", accounted.message
    assert ".`far` version as of" in accounted.sql
    told = shop.project.spark.sql(f"show tblproperties {shop.project.schema}.far_latest").collect()
    stored = {one[0]: one[1].replace("\u2063", "") for one in told}
    assert stored["strandline.batch"] == "2"
    [table] = json.loads(stored["strandline.watermark"])["tables"]
    assert table["name"] == f"lake.{shop.raw.schema}.far"


@in_step
def test_for_a_key_in_two_tables_the_one_listed_last_counts(shop: Shop) -> Steps:
    union = "select * from ({{{{ strandline.union_raw([{}]) }}}}) as versions"
    for name, order in (("to_us", ("eu", "us")), ("to_eu", ("us", "eu"))):
        shop.model(name, union.format(", ".join(f"source('shop', '{one}')" for one in order)))
    yield shop.plan_build("to_us", "to_eu")
    assert (shop.open_ids("to_us"), shop.open_ids("to_eu")) == ({1: "us"}, {1: "eu"})


@in_step
def test_changed_types_of_a_seed_are_detected(shop: Shop) -> Steps:
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
        assert (yield shop.plan_build("rated")) == "REBUILD to batch 1"
        [row_] = shop.project.rows("rated")
        types.append(type(row_["rate"]).__name__)
    assert types == ["int", "Decimal"]


@in_step
def test_a_new_column_of_a_raw_table_comes_with_its_batch(shop: Shop) -> Steps:
    """The loader adds the column before it appends the batch; no test may fail in between."""
    shop.raw.append("gains", 1, [row(1, 1)])
    for kind in ("latest", "history"):
        shop.model(f"gains_{kind}", READS % "gains", f"deduped_{kind}")
    both = ("gains_latest", "gains_history")
    yield shop.plan_build(*both)
    shop.project.spark.sql(f"alter table {shop.raw.schema}.gains add columns (note string)")
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "NO NEW BATCH")
    proofs = yield shop.plan_proofs(*both)
    assert {one.status for one in proofs.values()} == {"pass"}
    shop.raw.append("gains", 2, [{**row(2, 2), "note": "new"}])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "MERGE to batch 2")
    for name in both:
        notes = {one["id"]: one["note"] for one in shop.project.rows(name)}
        assert notes == {1: None, 2: "new"}


@in_step
def test_a_latest_table_may_be_joined(shop: Shop) -> Steps:
    """A latest table is no raw table despite its columns: a model that joins it is rebuilt."""
    shop.model("known", READS % "us")
    shop.model(
        "beside",
        "select o.*, k.status as known from {{ source('shop', 'eu') }} as o "
        "left join {{ ref('known') }} as k on o.id = k.id",
    )
    assert (yield shop.plan_build("known", "beside")) == "REBUILD to batch 1"
    shop.raw.append("us", 2, [row(1, 2, "moved")])
    assert (yield shop.plan_build("known", "beside")) == "REBUILD to batch 1"
    assert [one["known"] for one in shop.project.rows("beside")] == ["moved"]


@in_step
def test_a_key_that_a_tombstone_lacks_is_refused(shop: Shop) -> Steps:
    """`strict: false` allows a key that is computed from the raw table's key alone."""
    shop.project.write(
        "models/keyed.yml",
        {
            "sources": [
                {
                    "name": "keyed",
                    "schema": shop.raw.schema,
                    "config": {"meta": {"strandline": {"unique_key": "id"}}},
                    "tables": [{"name": "keyed"}],
                }
            ]
        },
    )
    select = f"select %s as sk, cursor, status, {META} from {{{{ source('keyed', 'keyed') }}}}"
    shop.model("by_id", select % "md5(string(id))", unique_key="sk", strict=False)
    shop.model("by_both", select % "md5(concat_ws('|', id, status))", unique_key="sk")
    shop.model("by_status", READS.replace("shop", "keyed") % "keyed", unique_key="status")
    shop.raw.append("keyed", 1, [row(1, 1), row(2, 1, "shut")])
    built = ("by_id", "by_both", "by_status")
    told = yield shop.plan_messages(*built)
    assert told["by_id"] == "REBUILD to batch 1"
    for name, key in (("by_both", "sk"), ("by_status", "status")):
        assert (
            f"its unique_key is {key}, but the key of {shop.raw.schema}.keyed is id" in told[name]
        )
        assert "A deleted row has only that key" in told[name]
        assert "`strict: false`" in told[name]
    shop.raw.append("keyed", 2, [gone(1, 2)])
    assert (yield shop.plan_build("by_id")) == "MERGE to batch 2"
    assert [one["status"] for one in shop.project.rows("by_id")] == ["shut"]


@in_step
def test_a_column_that_somebody_renamed_in_a_latest_table(shop: Shop) -> Steps:
    """A rename creates no Iceberg snapshot; the test fails, and the next batch rebuilds."""
    shop.raw.append("kept", 1, [row(1, 1, "old")])
    shop.model("renamed", READS % "kept")
    yield shop.plan_build("renamed")
    shop.project.spark.sql(f"alter table {shop.project.schema}.renamed rename column status to was")
    assert (yield shop.plan_proofs("renamed"))["renamed"].status in ("fail", "error")
    shop.raw.append("kept", 2, [row(2, 2, "new")])
    assert (yield shop.plan_build("renamed")) == "REBUILD to batch 2"
    assert shop.open_ids("renamed") == {1: "old", 2: "new"}


@in_step
def test_names_that_the_tests_use_themselves(shop: Shop) -> Steps:
    """The key has the name of a test's own column, and a condition ends with a comment."""
    select = f"select id as actual_rows, cursor, status, {META} from {{{{ source('shop', 'eu') }}}}"
    shop.model("worded", select, unique_key="actual_rows")
    condition = {"arguments": {"row_condition": "status is not null -- only those"}}
    tests = ["strandline.matches_raw", {"strandline.unique_key": condition}]
    shop.project.write("models/worded.yml", {"models": [{"name": "worded", "data_tests": tests}]})
    yield shop.plan_build("worded")


def test_all_models_match_their_raw_tables(shop: Shop, outcomes: Outcomes) -> None:
    """Tests each model once, after its last build."""
    shop.prove()

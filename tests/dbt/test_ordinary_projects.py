"""What people do with any dbt project: compile before a build, name a catalog, edit a seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.property_codec import decode_property
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
    # but if a test is run, it says what is missing
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
            f"{{{{ config(materialized='deduped_{kind}', full_refresh=false, primary_key='id') }}}}"
            f"\n{READS % 'dotted'}",
        )

    def build(*flags: str) -> list[str]:
        built = dotted.run("run", "--select", "plain", "latest", "history", *flags)
        assert built["plain"].status == "success", built["plain"].message
        return [built[kind].message for kind in ("latest", "history")]

    raw.append("dotted", 1, [row(1, 1)])
    assert build() == ["BUILD to batch 1"] * 2
    raw.append("dotted", 2, [row(1, 2), row(2, 2)])
    assert build() == ["MERGE to batch 2"] * 2
    # what raw no longer holds stays
    spark.sql(f"delete from {raw.schema}.dotted where _cq_batch = 1")
    assert build() == ["NO NEW BATCH"] * 2
    assert all("--empty" in message for message in build("--empty"))
    assert len(dotted.rows("history")) == 3
    spark.sql(f"delete from {dotted.schema}.latest where id = 1")
    rewrite = {"relation": f"{dotted.schema}.history", "alone": True}
    assert dotted.operation("rewrite_files", **rewrite)
    damaged, rewritten = build()
    assert "`full_refresh: false` forbids a rebuild" in damaged
    assert rewritten == "NO NEW BATCH"


@in_step
def test_a_source_schema_may_name_its_catalog(shop: Shop) -> Steps:
    """dbt-spark knows no catalogs, so it is part of the schema; the watermark knows the table."""
    shop.project.write(
        "models/far.yml",
        {
            "sources": [
                {
                    "name": "far",
                    "schema": f"lake.{shop.raw.schema}",
                    "tables": [{"name": "far", "data_tests": ["strandline.batches_accounted"]}],
                }
            ]
        },
    )
    shop.raw.append("far", 1, [row(1, 1), row(2, 1)])
    shop.raw.append("far", 2, [row(2, 1)], generation=2)
    refresh = {"batch": 2, "mode": "full_refresh", "generation": 2}
    shop.raw.syncs("far", [{"batch": 1}, refresh])
    far = "select * from ({{ strandline.union_raw([source('far', 'far')]) }}) as orders"
    for kind in ("latest", "history"):
        shop.model(f"far_{kind}", far, f"deduped_{kind}", delete_stale=True)
    yield shop.plan_build("far_latest", "far_history")
    assert shop.open_ids("far_latest") == {2: "open"}
    assert (yield shop.plan_build("far_latest", "far_history")) == "NO NEW BATCH"
    [accounted] = shop.run("test", "--select", "source:far").values()
    assert accounted.status == "pass", accounted.message
    told = shop.project.spark.sql(f"show tblproperties {shop.project.schema}.far_latest").collect()
    stored = decode_property({one[0]: one[1] for one in told}["strandline.watermark"])
    assert f'"raw": ["{shop.raw.schema}.far"]' in stored


@in_step
def test_of_a_key_in_two_tables_the_one_named_last_counts(shop: Shop) -> Steps:
    """By the SELECT's own words: dbt gives the calls of source() in any order."""
    part = "select *, '{raw}.{name}' as _cq_table from {{{{ source('shop', '{name}') }}}}"
    parts = {name: part.format(raw=shop.raw.schema, name=name) for name in ("eu", "us")}
    for name, first, last in (("to_us", "eu", "us"), ("to_eu", "us", "eu")):
        shop.model(name, f"{parts[first]} union all {parts[last]}")
    yield shop.plan_build("to_us", "to_eu")
    assert (shop.open_ids("to_us"), shop.open_ids("to_eu")) == ({1: "us"}, {1: "eu"})


@in_step
def test_a_seed_that_changes_its_types_is_seen(shop: Shop) -> Steps:
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
        assert (yield shop.plan_build("rated")) == "BUILD to batch 1"
        [row_] = shop.project.rows("rated")
        types.append(type(row_["rate"]).__name__)
    assert types == ["int", "Decimal"]


@in_step
def test_a_column_that_raw_gains_is_there_at_once(shop: Shop) -> Steps:
    """The loader adds it before its batch comes; until then no proof may fail because of it."""
    shop.raw.append("gains", 1, [row(1, 1)])
    for kind in ("latest", "history"):
        shop.model(f"gains_{kind}", READS % "gains", f"deduped_{kind}")
    both = ("gains_latest", "gains_history")
    yield shop.plan_build(*both)
    shop.project.spark.sql(f"alter table {shop.raw.schema}.gains add columns (note string)")
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "NO NEW BATCH")
    assert [one["note"] for one in shop.project.rows("gains_latest")] == [None]


@in_step
def test_a_snapshot_may_be_joined(shop: Shop) -> Steps:
    """It has raw's columns but is no raw table: it is watched like any table that is joined."""
    shop.model("known", READS % "us")
    shop.model(
        "beside",
        "select o.*, k.status as known from {{ source('shop', 'eu') }} as o "
        "left join {{ ref('known') }} as k on o.id = k.id",
    )
    assert (yield shop.plan_build("known", "beside")) == "BUILD to batch 1"
    assert (yield shop.plan_build("known", "beside")) == "NO NEW BATCH"
    shop.raw.append("us", 2, [row(1, 2, "moved")])
    assert (yield shop.plan_build("known", "beside")) == "BUILD to batch 1"
    assert [one["known"] for one in shop.project.rows("beside")] == ["moved"]


@in_step
def test_a_key_that_a_deleted_row_does_not_hold_is_refused(shop: Shop) -> Steps:
    shop.project.write(
        "models/keyed.yml",
        {
            "sources": [
                {
                    "name": "keyed",
                    "schema": shop.raw.schema,
                    "config": {"meta": {"strandline": {"primary_key": "id"}}},
                    "tables": [{"name": "keyed"}],
                }
            ]
        },
    )
    select = f"select %s as sk, cursor, status, {META} from {{{{ source('keyed', 'keyed') }}}}"
    models = {"by_id": "md5(string(id))", "by_both": "md5(concat_ws('|', id, status))"}
    for name, key in models.items():
        shop.model(name, select % key, primary_key="sk")
    # a computed key may have the name of raw's
    shop.model("same_name", (select % models["by_both"]).replace("as sk", "as id"))
    shop.model("by_status", READS.replace("shop", "keyed") % "keyed", primary_key="status")
    shop.raw.append("keyed", 1, [row(1, 1), row(2, 1, "shut")])
    built = (*models, "by_status", "same_name")
    yield shop.plan_messages(*built)
    shop.raw.append("keyed", 2, [gone(1, 2)])
    told = yield shop.plan_messages(*built)
    assert told["by_id"] == "MERGE to batch 2"
    assert len(shop.project.rows("by_id")) == 1
    for name in ("by_both", "by_status", "same_name"):
        assert "its primary_key of the row id 1 is" in told[name]
        assert "raw keeps only the key of a deleted row (id)" in told[name]
        assert len(shop.project.rows(name)) == 2


@in_step
def test_comments_and_line_breaks_are_no_change(shop: Shop) -> Steps:
    told = []
    for text in (
        "*, 'a  b' as t",
        "*,\n  'a  b' as t -- said twice\n/* and more */",
        "*, 'a b' as t",
    ):
        shop.model("commented", (READS % "eu").replace("*", text))
        told.append((yield shop.plan_build("commented")))
    assert told == ["BUILD to batch 1", "NO NEW BATCH", "BUILD to batch 1"]


@in_step
def test_a_column_that_somebody_renamed_in_a_snapshot(shop: Shop) -> Steps:
    """Iceberg makes no snapshot for it: the columns show it."""
    shop.model("renamed", READS % "eu")
    yield shop.plan_build("renamed")
    shop.project.spark.sql(f"alter table {shop.project.schema}.renamed rename column status to was")
    assert (yield shop.plan_build("renamed")) == "BUILD to batch 1"
    assert shop.open_ids("renamed") == {1: "eu"}


@in_step
def test_a_broken_off_merge_of_deletes_alone_goes_on(shop: Shop) -> Steps:
    """It leaves no row that shows how far it got; if a rebuild is forbidden, the content does."""
    shop.raw.append("kept", 1, [row(1, 1), row(2, 1)])
    shop.model("kept", READS % "kept", full_refresh=False)
    yield shop.plan_build("kept")
    shop.raw.append("kept", 2, [gone(2, 2)])
    shop.project.spark.sql(f"delete from {shop.project.schema}.kept where id = 2")
    assert (yield shop.plan_build("kept")) == "MERGE to batch 2"
    assert sorted(shop.open_ids("kept")) == [1]


@in_step
def test_a_key_and_a_condition_that_meet_the_proofs_own_words(shop: Shop) -> Steps:
    """A column called as one of a proof's own; a comment at the end of a condition."""
    select = f"select id as actual_rows, cursor, status, {META} from {{{{ source('shop', 'eu') }}}}"
    shop.model("worded", select, primary_key="actual_rows")
    condition = {"arguments": {"row_condition": "status is not null -- only those"}}
    tests = ["strandline.latest_matches_raw", {"strandline.unique_key": condition}]
    shop.project.write("models/worded.yml", {"models": [{"name": "worded", "data_tests": tests}]})
    yield shop.plan_build("worded")


def test_all_that_was_built_is_proved(shop: Shop, outcomes: Outcomes) -> None:
    """Each model once, after its last build."""
    shop.prove()

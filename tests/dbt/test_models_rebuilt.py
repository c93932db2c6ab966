"""A model that a merge cannot update correctly is rebuilt, or refused if that is forbidden."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import Command, Outcomes, Steps, in_step
from tests.dbt.shop import META, READS, Shop, row

TABLES = [
    "written", "forbidden", "stuck", "stale", "typed", "old", "new", "beside", "small", "eu", "us",
    "around", "rowwise", "rolled", "pathed", "grown",
]  # fmt: skip
FORBIDS = "its config `full_refresh: false` forbids that"


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    return Shop(project, raw, TABLES)


@in_step
def test_a_table_that_another_program_wrote(shop: Shop) -> Steps:
    """`create or replace` keeps properties, so the watermark names its Iceberg snapshot."""
    kinds, spark = ("latest", "history"), shop.project.spark
    shop.raw.append("written", 1, [row(1, 1), row(2, 1)])
    shop.raw.append("written", 2, [row(1, 2, "shut")])

    def models(kind: str = "", **config: Any) -> None:
        for name in kinds:
            shop.model(name, READS % "written", kind or f"deduped_{name}", **config)

    def foreign(statement: str) -> None:
        for name in kinds:
            spark.sql(statement.format(t=f"{shop.project.schema}.{name}"))

    models()
    assert (yield shop.plan_messages(*kinds)) == dict.fromkeys(kinds, "REBUILD to batch 2")
    # for one run, the models are ordinary tables, with rows of the newest batch, too
    models("table", file_format="iceberg")
    yield shop.plan_messages(*kinds)
    models()
    assert statuses((yield shop.plan_proofs(*kinds))) == {"fail"}
    assert (yield shop.plan_messages(*kinds)) == dict.fromkeys(kinds, "REBUILD to batch 2")
    foreign("create or replace table {t} using iceberg as select 1 as id")
    assert statuses((yield shop.plan_proofs(*kinds))) == {"fail"}
    assert (yield shop.plan_messages(*kinds)) == dict.fromkeys(kinds, "REBUILD to batch 2")
    foreign(
        "call lake.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))"
    )
    assert (yield shop.plan_messages(*kinds)) == dict.fromkeys(kinds, "NO NEW BATCH")


@in_step
def test_a_damaged_table_is_refused_where_a_rebuild_is_forbidden(shop: Shop) -> Steps:
    """A build does not merge into rows of an interrupted build or of another program."""
    table, spark = f"{shop.project.schema}.forbidden", shop.project.spark
    shop.raw.append("forbidden", 1, [row(1, 1), row(2, 1)])
    shop.model("forbidden", READS % "forbidden", full_refresh=False)
    yield shop.plan_build("forbidden")
    listed = spark.sql(f"show tblproperties {table}").collect()
    [before] = [one[1] for one in listed if one[0] == "strandline.watermark"]
    shop.raw.append("forbidden", 2, [row(3, 1)])
    assert (yield shop.plan_build("forbidden")) == "MERGE to batch 2"
    spark.sql(f"alter table {table} set tblproperties ('strandline.watermark' = '{before}')")
    for damage in ("select 1", f"delete from {table} where id = 1"):
        spark.sql(damage)
        message = yield shop.plan_build("forbidden")
        assert "something else wrote to it, or its last build was interrupted" in message
        assert FORBIDS in message
        assert "Remove the setting for one build" in message
    shop.raw.append("forbidden", 3, [row(2, 2, "shut")])
    shop.model("forbidden", READS % "forbidden")
    assert (yield shop.plan_build("forbidden")) == "REBUILD to batch 3"
    assert shop.open_ids("forbidden") == {1: "open", 2: "shut", 3: "open"}
    shop.model("forbidden", READS % "forbidden", full_refresh=False)
    shop.raw.append("forbidden", 4, [row(4, 1)])
    assert (yield shop.plan_build("forbidden")) == "MERGE to batch 4"


@in_step
def test_every_reason_for_a_rebuild_is_refused_where_that_is_forbidden(shop: Shop) -> Steps:
    shop.raw.append("stuck", 1, [row(1, 1), row(2, 1)])
    for table in ("typed", "stale"):
        shop.raw.append(table, 1, [row(1, 1), row(2, 1)])

    def models(**changed: dict[str, Any]) -> Command:
        """Writes a model for each reason; returns the command that builds them."""
        for name in ("key", "cursor", "kind", "plain", "stale", "typed"):
            config = {"kind": "deduped_latest", **changed.get(name, {})}
            if config["kind"].startswith("deduped"):
                config["full_refresh"] = False
            source = name if name in TABLES else "stuck"
            shop.model(f"stuck_{name}", READS % source, **config)
        return shop.plan_messages(*(f"stuck_{name}" for name in reasons))

    reasons = {
        "key": "its unique_key or cursor_field changed",
        "cursor": "its unique_key or cursor_field changed",
        "kind": "it was built as deduped_latest",
        "plain": "another materialization built it",
        "stale": "a complete full refresh changed which keys delete_stale hides",
        "typed": "the type of status changed",
    }
    built = yield models(plain={"kind": "table", "file_format": "iceberg"})
    assert FORBIDS not in " ".join(built.values())
    shop.raw.syncs("stale", [{"batch": 1, "mode": "full_refresh"}])
    typed = f"alter table {shop.raw.schema}.typed"
    shop.raw.spark.sql(f"{typed} drop column status")
    shop.raw.spark.sql(f"{typed} add columns (status int)")
    shop.raw.append("typed", 2, [{"id": 1, "cursor": 2, "status": 7}])
    told = yield models(
        key={"unique_key": ["id", "status"]},
        cursor={"cursor_field": "_cq_sync_time"},
        kind={"kind": "deduped_history"},
        stale={"delete_stale": True},
    )
    for name, reason in reasons.items():
        assert reason in told[f"stuck_{name}"]
        assert FORBIDS in told[f"stuck_{name}"]
        assert len(shop.project.rows(f"stuck_{name}")) == 2


@in_step
def test_for_a_key_in_two_tables_the_later_in_the_list_counts(shop: Shop) -> Steps:
    """For any order of the source() calls, and even if the later table's refresh lacks the key."""
    shop.raw.append("old", 1, [row(1, 1, "old"), row(2, 1, "old"), row(3, 1, "old")])
    shop.raw.append("new", 1, [row(1, 1, "new"), row(2, 1, "new")])
    select = (
        "{% set renamed, before = source('shop', 'new'), source('shop', 'old') %}\n"
        "select * from ({{ strandline.union_raw([before, renamed]) }}) as orders"
    )
    shop.model("stg_renamed", select, "ephemeral")
    for kind in ("latest", "history"):
        read = "select * from {{ ref('stg_renamed') }}" if kind == "history" else select
        shop.model(f"renamed_{kind}", read, f"deduped_{kind}", delete_stale=True)

    def shown() -> Generator[Command, Any, dict[int, str]]:
        messages = yield shop.plan_messages("renamed_latest", "renamed_history")
        assert {message.split()[0] for message in messages.values()} <= {"REBUILD", "MERGE"}
        rows = shop.project.rows("renamed_history")
        current = {one["id"]: one["status"] for one in rows if one["is_current"]}
        assert shop.open_ids("renamed_latest") == current
        return current

    assert (yield from shown()) == {1: "new", 2: "new", 3: "old"}
    shop.raw.append("new", 2, [row(1, 2, "new")], generation=2)
    shop.raw.syncs("new", [{"batch": 2, "mode": "full_refresh", "generation": 2}])
    assert (yield from shown()) == {1: "new", 3: "old"}
    shop.raw.append("old", 2, [row(2, 5, "old"), row(4, 1, "old")])
    shop.raw.append("new", 3, [row(3, 1, "now")], generation=2)
    assert (yield from shown()) == {1: "new", 3: "now", 4: "old"}


@in_step
def test_a_join_with_tables_that_are_not_raw(shop: Shop) -> Steps:
    """No batch shows changes of a seed or of another table, so each build is a rebuild."""
    raw, spark = shop.raw, shop.project.spark
    spark.sql(
        f"create table {raw.schema}.rates using iceberg as select 1 as id, 2 as rate, 5 as old"
    )
    shop.project.write(
        "models/others.yml",
        {"sources": [{"name": "others", "schema": raw.schema, "tables": [{"name": "rates"}]}]},
    )
    shop.model("rated", "select * from {{ source('others', 'rates') }}", "ephemeral")
    named = "status,label\nopen,%s\n"
    shop.project.write("seeds/names.csv", named % "Open")
    raw.append("beside", 1, [row(1, 1)])
    joined = (
        f"select o.*, n.label, r.rate from ({READS % 'beside'}) as o "
        "left join {{ ref('names') }} as n on o.status = n.status "
        "left join {{ ref('rated') }} as r on o.id = r.id"
    )
    shop.model("beside", joined)
    assert (yield shop.plan_build("names", "beside")) == "REBUILD to batch 1"
    shop.project.write("seeds/names.csv", named % "Opened")
    yield shop.plan_build("names")
    assert statuses((yield shop.plan_proofs("beside"))) == {"fail"}
    spark.sql(f"update {raw.schema}.rates set rate = 3")
    assert (yield shop.plan_build("beside")) == "REBUILD to batch 1"
    [shown] = shop.project.rows("beside")
    assert (shown["label"], shown["rate"]) == ("Opened", 3)
    # two columns swap their names, which creates no snapshot
    for before, after in (("rate", "new"), ("old", "rate"), ("new", "old")):
        spark.sql(f"alter table {raw.schema}.rates rename column {before} to {after}")
    raw.append("beside", 2, [row(2, 1)])
    assert (yield shop.plan_build("beside")) == "REBUILD to batch 2"
    assert {one["id"]: one["rate"] for one in shop.project.rows("beside")} == {1: 5, 2: None}
    shop.model("beside", joined, full_refresh=False)
    refused = yield shop.plan_build("beside")
    assert "it reads names, rates besides the raw table, whose changes no batch shows" in refused
    assert FORBIDS in refused
    shop.model("beside", joined)
    yield shop.plan_build("beside")


@in_step
def test_types_that_iceberg_stores_as_others(shop: Shop) -> Steps:
    more = (
        "cast(1 as smallint) as small, cast('x' as varchar(3)) as short, "
        "named_struct('smallint', cast(1 as tinyint), 'b', array(cast(1 as smallint))) as inner"
    )
    for kind in ("latest", "history"):
        shop.model(f"small_{kind}", READS.replace("*", f"*, {more}") % "small", f"deduped_{kind}")
    shop.raw.append("small", 1, [row(1, 1)])
    yield shop.plan_build("small_latest", "small_history")
    shop.raw.append("small", 2, [row(1, 2), row(2, 1)])
    both = ("small_latest", "small_history")
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "MERGE to batch 2")


@in_step
def test_a_union_with_a_new_column_of_a_raw_table(shop: Shop) -> Steps:
    """Its SELECT might use the new column, so old rows are recomputed once."""
    both = "source('shop', 'eu'), source('shop', 'us')"
    union = f"select * from ({{{{ strandline.union_raw([{both}]) }}}}) as both"
    names = ("union_latest", "union_history")
    for name in names:
        shop.model(name, union, name.replace("union", "deduped"))
    shop.raw.append("eu", 1, [row(1, 1)])
    shop.raw.append("us", 1, [row(2, 1)])
    yield shop.plan_messages(*names)
    shop.raw.spark.sql(f"alter table {shop.raw.schema}.us add columns (note string)")
    words = []
    for batch in (2, 3):
        shop.raw.append("us", batch, [row(2, batch, note=f"n{batch}")])
        built = yield shop.plan_messages(*names)
        words += sorted({message.split()[0] for message in built.values()})
        notes = {one["id"]: one["note"] for one in shop.project.rows("union_latest")}
        assert notes == {1: None, 2: f"n{batch}"}
    assert words == ["REBUILD", "MERGE"]
    assert set((yield shop.plan_messages(*names)).values()) == {"NO NEW BATCH"}


AROUND = {
    "window": "select *, lead(status) over (partition by id order by cursor) as more from {raw}",
    "others": "select *, max(cursor) over () as more from {raw}",
    "joined": "select o.*, n.more from {raw} as o "
    "left join (select id, count(*) as more from {raw} group by id) as n on o.id = n.id",
    "asked": "with o as (select * from {raw}) select *, (select max(cursor) from o) as more from o",
    "told": "select *, exists (select 1 from {raw} as n where n.cursor > o.cursor) as more "
    "from {raw} as o",
}


@in_step
def test_rows_that_are_computed_from_other_versions(shop: Shop) -> Steps:
    """A merge would not update the rows of old versions, so the table is rebuilt."""
    raw = READS.partition("from ")[2] % "around"
    histories = ("window", "joined")
    models = [f"{name}_{'history' if name in histories else 'latest'}" for name in AROUND]
    for name in models:
        select, _, kind = name.partition("_")
        shop.model(name, AROUND[select].format(raw=raw), f"deduped_{kind}")
    shop.raw.append("around", 1, [row(1, 1), row(2, 1)])
    assert set((yield shop.plan_messages(*models)).values()) == {"REBUILD to batch 1"}
    # a late version of key 1 and a new version of key 2
    shop.raw.append("around", 2, [row(1, 0, "late"), row(2, 2, "shut")])
    assert set((yield shop.plan_messages(*models)).values()) == {"REBUILD to batch 2"}

    def shown(name: str) -> dict[tuple[int, int], object]:
        return {(one["id"], one["cursor"]): one["more"] for one in shop.project.rows(name)}

    assert shown("window_history") == {(1, 0): "open", (1, 1): None, (2, 1): "shut", (2, 2): None}
    assert shown("others_latest") == {(1, 1): 2, (2, 2): 2}
    assert shown("joined_history") == dict.fromkeys([(1, 0), (1, 1), (2, 1), (2, 2)], 2)
    assert shown("asked_latest") == {(1, 1): 2, (2, 2): 2}
    assert shown("told_latest") == {(1, 1): True, (2, 2): False}
    shop.model("others_latest", AROUND["others"].format(raw=raw), full_refresh=False)
    told = yield shop.plan_build("others_latest")
    assert "its SELECT uses `over`, so a row may depend on more than one version" in told
    assert FORBIDS in told
    shop.model("others_latest", AROUND["others"].format(raw=raw))
    yield shop.plan_build("others_latest")


@in_step
def test_rows_that_are_computed_from_their_own_version(shop: Shop) -> Steps:
    """Such models are merged, even with several CTEs or with line breaks in a literal."""
    raw = READS.partition("from ")[2] % "rowwise"
    select = f"""
        with a as (select *, transform(array(id, cursor), x -> x + 1) as parts from {raw}),
        b as (select *, '\\nWindow\\n' as said, coalesce(status, 'none') as known from a)
        select * from (select * from b where status is null or status is not null) as c
    """
    both = ("rowwise_latest", "rowwise_history")
    for name in both:
        shop.model(name, select, name.replace("rowwise", "deduped"))
    shop.raw.append("rowwise", 1, [row(1, 1), row(2, 1)])
    yield shop.plan_messages(*both)
    shop.raw.append("rowwise", 2, [row(2, 2, "shut"), row(3, 1)])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "MERGE to batch 2")


@in_step
def test_a_raw_table_that_was_rolled_back(shop: Shop) -> Steps:
    """Batch numbers continue, so a merge would keep rows that the raw table no longer has."""
    both, raw = ("rolled_latest", "rolled_history"), f"{shop.raw.schema}.rolled"
    for name in both:
        shop.model(name, READS % "rolled", name.replace("rolled", "deduped"))
    shop.raw.append("rolled", 1, [row(1, 1)])
    snapshots = f"select snapshot_id from {raw}.snapshots order by committed_at desc limit 1"
    [[good]] = shop.project.spark.sql(snapshots).collect()
    shop.raw.append("rolled", 2, [row(1, 2, "bad"), row(2, 2, "bad")])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "REBUILD to batch 2")
    shop.project.spark.sql(f"call lake.system.rollback_to_snapshot('{raw}', {good})")
    shop.raw.append("rolled", 3, [row(3, 3)])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "REBUILD to batch 3")
    assert shop.open_ids("rolled_latest") == {1: "open", 3: "open"}
    rewrite = "call lake.system.rewrite_data_files(table => '{}', options => map('{}', 'true'))"
    shop.project.spark.sql(rewrite.format(raw, "rewrite-all"))
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "NO NEW BATCH")
    shop.raw.append("rolled", 4, [row(4, 4)])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "MERGE to batch 4")
    # a tagged snapshot is cut off from the chain of parents once later commits have expired
    shop.project.spark.sql(f"alter table {raw} create tag january")
    for batch in (5, 6):
        shop.raw.append("rolled", batch, [row(batch, batch)])
    [[good]] = shop.project.spark.sql(snapshots).collect()
    expire = f"call lake.system.expire_snapshots(table => '{raw}', "
    shop.project.spark.sql(f"{expire} older_than => timestamp '2999-01-01', retain_last => 1)")
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "MERGE to batch 6")
    # the chain of parents must reach the snapshot that was read, not the first commit
    shop.raw.append("rolled", 7, [row(7, 7, "bad")])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "MERGE to batch 7")
    shop.project.spark.sql(f"call lake.system.rollback_to_snapshot('{raw}', {good})")
    shop.raw.append("rolled", 8, [row(8, 8)])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "REBUILD to batch 8")


@in_step
def test_a_join_with_files_that_are_read_by_path(
    shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> Steps:
    """Changes of files cannot be detected, so each new batch causes a rebuild."""
    files = f"{tmp_path_factory.mktemp('pathed')}/labels"
    write = shop.project.spark.sql("select 1 as id, 'one' as label").write
    write.parquet(files)
    select = f"select o.*, f.label from ({READS % 'pathed'}) as o "
    shop.model("pathed", f"{select} left join parquet.`{files}` as f on o.id = f.id")
    shop.raw.append("pathed", 1, [row(1, 1)])
    assert (yield shop.plan_build("pathed")) == "REBUILD to batch 1"
    shop.project.spark.sql("select 1 as id, 'uno' as label").write.mode("overwrite").parquet(files)
    shop.raw.append("pathed", 2, [row(2, 2)])
    assert (yield shop.plan_build("pathed")) == "REBUILD to batch 2"
    assert {one["id"]: one["label"] for one in shop.project.rows("pathed")} == {1: "uno", 2: None}


@in_step
def test_expressions_of_widened_columns(shop: Shop) -> Steps:
    """Results may change for old rows, so the table is rebuilt once; later batches are merged."""
    spark, table = shop.project.spark, f"{shop.raw.schema}.grown"
    spark.sql(f"alter table {table} add columns (price float, who struct<name: string>)")
    shop.raw.append("grown", 1, [row(1, 1, price=0.1), row(2, 1)])
    given = "{{ source('shop', 'grown') }}"
    hashed = f"select xxhash64(id) as sk, id, cursor, {META} from {given}"
    shop.model("by_hash", hashed, "deduped_history", unique_key="sk")
    shop.model(
        "told",
        f"select id, cursor, p || '' as told, {META} from (select *, price as p from {given})",
    )
    shop.model("whole", f"select id, cursor, to_csv(struct(o.*)) as c, {META} from {given} as o")
    in_json = "to_json(struct(status, price, cursor)) as in_json"
    shop.model("within", f"select id, cursor, {in_json}, {META} from {given}")
    shop.model("turned", f"select id, cursor, -price as turned, {META} from {given}")
    shop.model("filtered", f"select * from {given}", row_filter="price || '' <> '0.1'")
    shown = (
        "select id as number, cursor, price as p, who.name as name, "
        f"replace(status, '\\n') as s, {META} "
    )
    shop.model("shown", shown + f"from {given}", unique_key="number")
    names = ("by_hash", "told", "whole", "within", "turned", "filtered", "shown")
    assert set((yield shop.plan_messages(*names)).values()) == {"REBUILD to batch 1"}
    assert statuses((yield shop.plan_proofs(*names))) == {"pass"}
    changes = (
        "alter column id type bigint",
        "alter column price type double",
        "add columns (more int)",
    )
    for change in (*changes, "add column who.age int"):
        spark.sql(f"alter table {table} {change}")
    shop.raw.append("grown", 2, [row(1, 2, "shut"), row(3, 1)])
    assert set((yield shop.plan_messages(*names)).values()) == {"REBUILD to batch 2"}
    assert {one["id"] for one in shop.project.rows("by_hash")} == {1, 2, 3}
    shop.raw.append("grown", 3, [row(4, 1)])
    assert set((yield shop.plan_messages(*names)).values()) == {"MERGE to batch 3"}


def test_all_models_match_their_raw_tables(shop: Shop, outcomes: Outcomes) -> None:
    """Tests each model once, after its last build."""
    shop.prove()


def statuses(results: Mapping[str, Result]) -> set[str]:
    return {one.status for one in results.values()}

"""SELECTs of models (staged, filtered, joined, renamed) give right results or are refused."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import Command, Outcomes, Steps, in_step
from tests.dbt.shop import META, READS, STAGED, Shop, gone, row

FIRST = "REBUILD to batch 1"
TABLES = [
    "orders", "closed", "filtered", "keyed", "joined", "eu", "us", "moved", "edited", "kept",
    "viewed", "tabled", "sampled", "odd", "capital", "strict", "ages", "tokens", "drafts",
]  # fmt: skip


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    return Shop(project, raw, TABLES)


@in_step
def test_a_filter_before_the_dedupe_is_refused(shop: Shop) -> Steps:
    """Closed and deleted rows would stay forever, so the condition must be in row_filter."""
    shop.raw.append("closed", 1, [row(1, 1), row(2, 1), row(3, 1)])
    shop.model("closed", READS % "closed" + " where status = 'open'")
    shop.model("careless", READS % "closed" + " where status = 'open'", strict=False)
    shop.model("open_orders", READS % "closed", row_filter="status = 'open'")
    shop.model("open_history", READS % "closed", "deduped_history", row_filter="status = 'open'")
    names = ("open_orders", "open_history")
    assert (yield shop.plan_messages(*names, "closed", "careless"))["closed"] == FIRST
    shop.raw.append("closed", 2, [row(1, 2, "closed"), gone(2, 2), row(4, 1)])
    built = yield shop.plan_messages(*names, "closed", "careless")
    assert "its SELECT returns 1 of 3 new versions" in built["closed"]
    assert "Put the condition into row_filter" in built["closed"]
    assert [built[name] for name in ("careless", *names)] == ["MERGE to batch 2"] * 3

    def shown() -> dict[int, str]:
        history = shop.project.rows("open_history")
        current = {one["id"]: one["status"] for one in history if one["is_current"]}
        assert shop.open_ids("open_orders") == current
        return current

    assert shown() == {3: "open", 4: "open"}
    # a late older version does not bring the key back; a newer one does
    shop.raw.append("closed", 3, [row(1, 1, "open"), row(3, 2, None)])
    yield shop.plan_messages(*names)
    assert shown() == {4: "open"}
    shop.raw.append("closed", 4, [row(1, 3, "open")])
    yield shop.plan_messages(*names)
    assert shown() == {1: "open", 4: "open"}


@in_step
def test_a_select_that_leaves_out_versions_is_refused(shop: Shop) -> Steps:
    """Otherwise, an older version that arrives late would be shown although a newer one exists."""
    shop.raw.append("drafts", 1, [row(1, 10, "draft"), row(2, 1, "open")])
    kinds = ("drafts_latest", "drafts_history")
    for name in kinds:
        kind = name.replace("drafts", "deduped")
        shop.model(name, READS % "drafts" + " where status <> 'draft'", kind)
        shop.model(f"{name}_whole", READS % "drafts", kind)
    for message in (yield shop.plan_messages(*kinds)).values():
        assert "its SELECT returns 1 of 2 new versions" in message
    # a filter is also refused if the table was built without it
    whole = tuple(f"{name}_whole" for name in kinds)
    assert (yield shop.plan_messages(*whole)) == dict.fromkeys(whole, FIRST)
    for name in whole:
        kind = "deduped_latest" if "latest" in name else "deduped_history"
        shop.model(name, READS % "drafts" + " where status <> 'draft'", kind)
    for message in (yield shop.plan_messages(*whole)).values():
        assert "its SELECT returns 1 of 2 new versions" in message


@in_step
def test_a_filter_on_the_key_is_allowed_by_strict_false(shop: Shop) -> Steps:
    """`strict: false` allows it, because only the author can know that no row is lost."""
    shop.raw.append("keyed", 1, [row(1, 1), row(200, 1)])
    shop.model("keyed", READS % "keyed" + " where id < 100", strict=False)
    yield shop.plan_build("keyed")
    shop.raw.append("keyed", 2, [gone(200, 2), row(201, 1), row(1, 2, "b")])
    assert (yield shop.plan_build("keyed")) == "MERGE to batch 2"
    assert shop.open_ids("keyed") == {1: "b"}


@in_step
def test_a_join_that_multiplies_is_refused(shop: Shop) -> Steps:
    """A join that returns a version twice would make the key ambiguous."""
    shop.raw.append("joined", 1, [row(1, 1), row(2, 1)])
    shop.model(
        "joined", f"select o.* from ({READS % 'joined'}) as o cross join (values (1), (2)) as v(n)"
    )
    assert "returns 4 rows for 2 versions" in (yield shop.plan_build("joined"))


@in_step
def test_a_filter_with_a_computed_key_is_refused(shop: Shop) -> Steps:
    shop.raw.append("filtered", 1, [row(1, 1), row(2, 1)])
    shop.raw.append("filtered", 2, [row(1, 2, "closed"), gone(2, 2)])
    staged = (
        f"select id * 10 as id, cursor, status, {META} from {{{{ source('shop', 'filtered') }}}}"
    )
    shop.model("filtered", staged + " where status = 'open'")
    # as many rows as there are versions, but not the same
    twice = READS % "filtered" + " cross join (values (1), (2)) as v(n) where status = 'open'"
    shop.model("multiplied", twice)
    built = yield shop.plan_messages("filtered", "multiplied")
    assert "returns 2 of 4 new versions" in built["filtered"]
    assert "returns 4 rows for 2 versions" in built["multiplied"]


@in_step
def test_a_union_of_raw_tables_labels_its_rows(shop: Shop) -> Steps:
    shop.raw.append("eu", 1, [row(1, 1)])
    shop.raw.append("us", 1, [row(2, 1)])
    eu, us = (f"source('shop', '{name}')" for name in ("eu", "us"))
    both = f"{READS % 'eu'} union all {READS % 'us'}"
    shop.model("unlabelled", both)
    labels = "'eu' as _cq_table, 1 as _cq_table_rank"
    shop.model("labelled", f"select *, {labels} from ({both}) as r")
    union = f"select * from ({{{{ strandline.union_raw([{eu}, {us}]) }}}}) as r"
    shop.model("regions", union)
    built = yield shop.plan_messages("unlabelled", "labelled", "regions")
    assert "and each of them numbers its own batches" in built["unlabelled"]
    assert "strandline.union_raw([" in built["unlabelled"]
    assert "returns 0 of 2 new versions" in built["labelled"]
    assert built["regions"].startswith("REBUILD to batch 1 of")
    shop.raw.append("eu", 2, [row(3, 1)])
    yield shop.plan_build("regions")
    shop.raw.append("us", 2, [row(4, 1), gone(2, 2)])
    assert (yield shop.plan_build("regions")).startswith("MERGE to batch 2 of")
    assert shop.open_ids("regions") == dict.fromkeys((1, 3, 4), "open")
    assert (yield shop.plan_build("regions")) == "NO NEW BATCH"
    # for a key in both tables, the one later in the list wins
    shop.raw.append("eu", 3, [row(4, 9, "eu")])
    yield shop.plan_build("regions")
    assert shop.open_ids("regions")[4] == "open"
    turned = f"select * from ({{{{ strandline.union_raw([{us}, {eu}]) }}}}) as r"
    shop.model("regions", turned)
    assert (yield shop.plan_build("regions")).startswith("REBUILD")
    assert shop.open_ids("regions")[4] == "eu"


@in_step
def test_a_changed_source_or_select_causes_a_rebuild(shop: Shop) -> Steps:
    """A model with another source or SELECT is rebuilt, or refused if that is forbidden."""
    shop.raw.append("moved", 1, [row(1, 1, "old")])
    shop.raw.append("edited", 1, [row(1, 1, "new"), row(2, 1, "new")])
    shop.raw.append("kept", 1, [row(1, 1, "x")])
    shop.model("edited", READS % "moved")
    shop.model("kept", READS % "kept", full_refresh=False)
    yield shop.plan_build("edited", "kept")
    shop.model("edited", READS % "edited")
    shop.model("kept", "select *, 1 as one from {{ source('shop', 'kept') }}", full_refresh=False)
    built = yield shop.plan_messages("edited", "kept")
    assert built["edited"] == FIRST
    assert shop.open_ids("edited") == {1: "new", 2: "new"}
    assert "its SELECT, its row_filter or a view that it reads changed" in built["kept"]
    assert "full_refresh: false" in built["kept"]
    shop.model("edited", STAGED % ("upper(status) as status", "edited"))
    assert (yield shop.plan_build("edited")) == FIRST
    assert shop.open_ids("edited") == {1: "NEW", 2: "NEW"}


@in_step
def test_ephemeral_models_over_the_raw_table(shop: Shop) -> Steps:
    """delete_stale, tests and watermark use the raw table; a changed ephemeral SELECT rebuilds."""
    shop.raw.append("viewed", 1, [row(1, 1), row(2, 1)])
    shop.raw.syncs("viewed", [{"batch": 1, "mode": "full_refresh"}])
    renamed = STAGED % ("status as state", "viewed")
    shop.model("stg_viewed", renamed, "ephemeral")
    shop.model("stg_again", "select * from {{ ref('stg_viewed') }}", "ephemeral")
    shop.model("over_staging", "select * from {{ ref('stg_again') }}", delete_stale=True)
    assert (yield shop.plan_build("over_staging")) == FIRST
    table = f"{shop.project.schema}.over_staging"
    listed = shop.project.spark.sql(f"show tblproperties {table}").collect()
    said = {one[0]: one[1] for one in listed}
    [read] = json.loads(said["strandline.watermark"].replace("\u2063", ""))["tables"]
    assert (read["name"], read["batch"]) == (f"{shop.raw.schema}.viewed", 1)
    assert said["strandline.batch"] == "1"
    shop.raw.append("viewed", 2, [row(1, 2)], generation=2)
    shop.raw.syncs("viewed", [{"batch": 2, "mode": "full_refresh", "generation": 2}])
    yield shop.plan_build("over_staging")
    assert [one["id"] for one in shop.project.rows("over_staging")] == [1]
    shop.model("stg_viewed", renamed.replace("status as", "upper(status) as"), "ephemeral")
    assert (yield shop.plan_build("over_staging")) == "REBUILD to batch 2"
    assert [one["state"] for one in shop.project.rows("over_staging")] == ["OPEN"]


@in_step
def test_a_table_between_the_raw_table_and_a_model_is_refused(shop: Shop) -> Steps:
    """The table may leave out tombstones: a deleted row would stay, and the test would pass."""
    shop.raw.append("tabled", 1, [row(1, 1), row(2, 1), gone(2, 2)])
    living = READS % "tabled" + " where not _cq_deleted"
    shop.model("stg_tabled", living, "table", file_format="iceberg")
    shop.model("tabled_latest", READS % "tabled")
    shop.model("over_table", "select * from {{ ref('stg_tabled') }}")
    shop.model("over_latest", "select * from {{ ref('tabled_latest') }}", "deduped_history")
    built = yield shop.plan_messages("stg_tabled", "tabled_latest", "over_table", "over_latest")
    for name in ("over_table", "over_latest"):
        assert "its SELECT reads no raw table by source()" in built[name]
        assert "make it a view or ephemeral" in built[name]
    assert not shop.has("over_table")
    assert not shop.has("over_latest")


@in_step
def test_a_seed_can_replace_the_raw_table(shop: Shop) -> Steps:
    """Useful in a project's own tests. No batch shows changes, so each build is a rebuild."""
    line = "{},{},open,shop,2025-01-01 00:00:00,1,{},7,false,1"
    header = f"id,cursor,status,{META.replace(', ', ',')}"
    shop.model("of_seed", "select * from {{ ref('raw_seed') }}")
    built = []
    for lines in (1, 1, 2):
        written = [line.format(n, n, n) for n in range(lines)]
        shop.project.write("seeds/raw_seed.csv", "\n".join([header, *written, ""]))
        built.append((yield shop.plan_build("raw_seed", "of_seed")))
    assert built == [FIRST] * 3
    assert sorted(shop.open_ids("of_seed")) == [0, 1]


@in_step
def test_sample_is_refused(shop: Shop) -> Steps:
    shop.raw.append("sampled", 1, [row(1, 1)])
    kinds = ("sampled_latest", "sampled_history")
    for name in kinds:
        shop.model(name, READS % "sampled", name.replace("sampled", "deduped"))
    for message in (yield shop.plan_messages(*kinds, flags=("--sample", "1 day"))).values():
        assert "--sample reads only a part of the versions" in message
        assert "Remove --sample, or exclude the model" in message
    assert set((yield shop.plan_messages(*kinds)).values()) == {FIRST}


@in_step
def test_names_that_need_quotes_or_clash(shop: Shop) -> Steps:
    """Columns may have the names of the package's own aliases; struct fields may need quotes."""
    odd = {"at": 1, "since": 2, "place": 3, "newest": 4, "keys": 5}
    shop.raw.spark.sql(
        f"alter table {shop.raw.schema}.odd add columns ({', '.join(f'{n} int' for n in odd)})"
    )
    shop.raw.append("odd", 1, [row(1, 1, **odd)])
    keys = ["id", "at", "since", "place", "newest", "keys"]
    for kind in ("latest", "history"):
        shop.model(f"odd_{kind}", READS % "odd", f"deduped_{kind}", unique_key=keys)
    shop.raw.append("capital", 1, [row(1, 1)])
    shop.model("OrdersLatest", READS % "capital")
    names = ("odd_latest", "odd_history", "OrdersLatest")
    assert (yield shop.plan_messages(*names)) == dict.fromkeys(names, FIRST)
    shop.raw.append("odd", 2, [row(1, 2, "b", **odd)])
    shop.raw.append("capital", 2, [row(1, 2, "b")])
    assert (yield shop.plan_messages(*names)) == dict.fromkeys(names, "MERGE to batch 2")
    wide = "struct<`a-b`: int, `c d`: struct<`e.f`: string>>"
    shop.raw.spark.sql(f"alter table {shop.raw.schema}.odd add columns (wide {wide})")
    # Spark shows the type without quotes, so the column cannot be added: the table is rebuilt
    for batch, word in ((3, "REBUILD"), (4, "MERGE")):
        values = {**odd, "wide": {"a-b": batch, "c d": {"e.f": "x"}}}
        shop.raw.append("odd", batch, [row(1, batch, "b", **values)])
        built = yield shop.plan_messages("odd_latest", "odd_history")
        assert set(built.values()) == {f"{word} to batch {batch}"}
        for kind in ("latest", "history"):
            rows = shop.project.rows(f"odd_{kind}")
            [newest] = [one for one in rows if one["cursor"] == batch]
            assert newest["wide"] == {"a-b": batch, "c d": {"e.f": "x"}}
    assert shop.open_ids("OrdersLatest") == {1: "b"}


@in_step
def test_names_that_spark_would_redact(shop: Shop) -> Steps:
    """Spark redacts properties that contain words such as `url`, `password` or `token`."""
    shop.raw.spark.sql(f"alter table {shop.raw.schema}.tokens add columns (url string)")
    shop.raw.append("tokens", 1, [row(1, 1, url="a"), row(2, 1, "password", url="b")])
    for kind in ("latest", "history"):
        config = {"unique_key": "url", "row_filter": "status <> 'password'"}
        shop.model(f"secret_{kind}", READS % "tokens", f"deduped_{kind}", **config)
    both = ("secret_latest", "secret_history")
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, FIRST)
    shop.raw.append("tokens", 2, [row(1, 2, "shut", url="a")])
    assert (yield shop.plan_messages(*both)) == dict.fromkeys(both, "MERGE to batch 2")
    assert [one["status"] for one in shop.project.rows("secret_latest")] == ["shut"]


@in_step
def test_on_schema_change_fail(shop: Shop) -> Steps:
    shop.raw.append("strict", 1, [row(1, 1)])
    shop.model("strict", READS % "strict", on_schema_change="fail")
    yield shop.plan_build("strict")
    shop.raw.spark.sql(f"alter table {shop.raw.schema}.strict add columns (note string)")
    shop.raw.append("strict", 2, [row(1, 2, note="n")])
    assert "its config says on_schema_change: fail" in (yield shop.plan_build("strict"))
    assert shop.open_ids("strict") == {1: "open"}


MISSING = "missing from the table"
TWICE = "more than once in the table"
DIFFERS = "differs from the raw table"


def _damage(
    shop: Shop, model: str, damages: Mapping[str, str]
) -> Generator[Command, Any, dict[str, set[str]]]:
    """Damages a copy of a model by each statement; returns the problems that its test names."""
    copies = {damage: f"{model}_{number}" for number, damage in enumerate(damages)}
    built = yield shop.plan_messages(*copies.values())
    assert set(built.values()) == {"REBUILD to batch 2"}
    for damage, copy in copies.items():
        shop.project.spark.sql(damage.format(t=f"{shop.project.schema}.{copy}"))
    results = yield shop.plan_proofs(*copies.values())
    assert {one.status for one in results.values()} == {"fail"}
    return {
        damage: {one["problem"] for one in shop.project.failing_rows(results[copy])}
        for damage, copy in copies.items()
    }


@in_step
def test_matches_raw_finds_damage_of_a_latest_table(shop: Shop) -> Steps:
    """The test uses the stored watermark and SELECT, not the rows that remain in the table."""
    damages = {
        "delete from {t} where id = 3": MISSING,
        "delete from {t}": MISSING,
        "update {t} set note = 'forged' where id = 1": DIFFERS,
        "alter table {t} drop column note": "the table has no column note",
    }
    shop.raw.append("orders", 1, [row(1, 1), row(2, 1)])
    shop.raw.append("orders", 2, [row(3, 2)])
    for number in range(len(damages)):
        staged = STAGED % ("upper(status) as status, status as note", "orders")
        shop.model(f"orders_{number}", staged)
    found = yield from _damage(shop, "orders", damages)
    assert found == {damage: {problem} for damage, problem in damages.items()}


@in_step
def test_matches_raw_finds_damage_of_a_history(shop: Shop) -> Steps:
    damages = {
        "delete from {t} where not is_current": MISSING,
        "update {t} set valid_to = valid_to + interval 1 day where not is_current": DIFFERS,
        "update {t} set is_current = true, valid_to = null where id = 1": DIFFERS,
        "insert into {t} select * from {t} where id = 1 and is_current": TWICE,
    }
    shop.raw.append("ages", 1, [row(1, 1, "a"), row(2, 1, "a")])
    shop.raw.append("ages", 2, [row(1, 2, "b"), gone(2, 2)])
    for number in range(len(damages)):
        shop.model(f"ages_{number}", READS % "ages", "deduped_history")
    found = yield from _damage(shop, "ages", damages)
    assert found == {damage: {problem} for damage, problem in damages.items()}


def test_all_models_match_their_raw_tables(shop: Shop, outcomes: Outcomes) -> None:
    """Tests each model once, after its last build."""
    shop.prove()

"""The run-operations: what `loader compact` does, by dbt."""

from __future__ import annotations

import json
import re

import pytest

from loader.lake.ledger import now
from loader.maintenance.retention import Keep, superseded, superseded_sql
from tests.maintenance.shop import ORDERS, Shop

TELL = """
{% macro tell_sql(names, cursor, floor, repeated) -%}
    {{ log("told:" ~ tojson({
        "sql": strandline.superseded_versions("`raw`.`t`", names, cursor, 7, 2, floor, repeated)
    }), info=true) }}
{%- endmacro %}


{% macro tell_superseded(relation, versions, days) -%}
    {%- set raw = strandline.maintained_table(relation, "tell") -%}
    {%- set going = strandline.superseded(raw, ["id"], "at", versions, days, "tell") -%}
    {{ log("told:" ~ tojson(going), info=true) }}
{%- endmacro %}
"""
ALONE = {"alone": True}


def _raw(shop: Shop) -> str:
    return f"{shop.project.schema}.orders"


def _told(log: str) -> dict[str, object]:
    [line] = [line for line in log.splitlines() if line.startswith("told:")]
    found: dict[str, object] = json.loads(line.removeprefix("told:"))
    return found


def _words(sql: object) -> str:
    return re.sub(r"\s+", "", str(sql))


def _properties(shop: Shop) -> dict[str, str]:
    handle = shop.project.lake().handle("orders")
    return {key: value for key, value in dict(handle.properties()).items() if "strandline" in key}


def test_python_and_macros_mean_the_same_rows(lasting_shop: Shop) -> None:
    shop = lasting_shop
    shop.dbt.write("macros/tell.sql", TELL)
    for names, cursor, floor, repeated in (
        (["id"], "at", "cast('2025-01-01' as timestamp)", False),
        (["a`b", "c d"], "x`y", "least(cast('1' as int), cast('2' as int))", True),
        (["id"], None, None, True),
    ):
        log = shop.operation("tell_sql", names=names, cursor=cursor, floor=floor, repeated=repeated)
        wanted = superseded_sql("`raw`.`t`", names, cursor, 7, 2, floor, repeated)
        assert _words(_told(log)["sql"]) == _words(wanted)
    lake = shop.project.lake()
    for keep in (Keep(1), Keep(2), Keep(1, 3)):
        log = shop.operation(
            "tell_superseded", relation=_raw(shop), versions=keep.versions, days=keep.days
        )
        told = _told(log)
        wanted_of_it = superseded(lake, "orders", ("id",), "at", keep, [], now())
        assert (told["batch"], told["note"] or "") == (wanted_of_it.batch, wanted_of_it.note)
        assert _words(told["sql"]) == _words(wanted_of_it.sql)


def test_compacted_by_dbt_as_by_the_loader(shop: Shop) -> None:
    latest, head = shop.latest(), shop.head()
    going = superseded(shop.project.lake(), "orders", ("id",), "at", Keep(1), [], now())
    gone = {tuple(row) for row in shop.project.spark.sql(str(going.sql)).collect()}
    every = set(shop.project.rows("select _cq_batch, _cq_seq from raw.orders"))
    told = shop.operation("compact_raw", relation=_raw(shop), keep_versions=1, dry_run=True)
    assert f"{len(gone)} rows would go" in told
    assert set(shop.project.rows("select _cq_batch, _cq_seq from raw.orders")) == every

    told = shop.operation("compact_raw", relation=_raw(shop), keep_versions=1, **ALONE)
    assert f"rows {len(every)} -> {len(every) - len(gone)}, files" in told
    assert set(shop.project.rows("select _cq_batch, _cq_seq from raw.orders")) == every - gone
    assert shop.latest() == latest
    by_dbt = _properties(shop)
    assert json.loads(by_dbt["strandline.compacted"]) == {"rows": len(gone), "to": 4}
    assert by_dbt["strandline.compacted_to"] == "4"
    shop.compact("--keep-versions", "1", "--select", "shop.orders")
    assert _properties(shop) == by_dbt
    shop.proven(by="batches_accounted")

    shop.operation("expire_snapshots", relation=_raw(shop), days=0, **ALONE)
    assert shop.project.snapshots("orders") == 1
    assert shop.head() == head
    assert shop.project.run().table("shop.orders")["status"] == "nothing new"
    shop.proven()


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("compact_raw", {"keep_versions": 1}, "is a folder (type hadoop)"),
    ("rewrite_files", {}, "Use `loader compact`, which does"),
    ("expire_snapshots", {}, "dbt does not hold the loader's locks"),
    ("prune_state", {}, "say so: alone: true"),
    ("compact_raw", ALONE, "so say which ones stay: keep_versions: 1"),
    ("compact_raw", {"keep_versions": 1, "primary_key": "no", **ALONE}, "column 'no' is not"),
    ("compact_raw", {"keep_versions": 1, "cursor_field": "note", **ALONE}, "no sync by note"),
    ("expire_snapshots", {"relation": "no.such", **ALONE}, "there is no table no.such"),
    ("prune_state", {"keep": 0, **ALONE}, "Keep 1 version of each cursor at least"),
]


@pytest.mark.parametrize(("name", "arguments", "said"), REFUSED)
def test_refused_with_what_to_do(
    lasting_shop: Shop, name: str, arguments: dict[str, object], said: str
) -> None:
    project = lasting_shop.project
    before = project.snapshots("orders"), project.snapshots("_cq_state")
    relation = {} if name == "prune_state" else {"relation": _raw(lasting_shop)}
    assert said in lasting_shop.refused(name, **{**relation, **arguments})
    assert (project.snapshots("orders"), project.snapshots("_cq_state")) == before


def test_tags_outlive_what_expires(shop: Shop) -> None:
    name = shop.project.lake().name("orders")
    [(third,)] = shop.project.rows(
        "select snapshot_id from raw.orders.snapshots where summary['strandline.batch'] = '3'"
    )
    shop.project.spark.sql(f"alter table {name} create tag january as of version {third}")
    told = shop.operation("expire_snapshots", relation=_raw(shop), days=0, dry_run=True)
    assert "expire_snapshots(" in told
    assert ": 1 snapshots would go" in told  # what the tag needs stays with it
    shop.operation("expire_snapshots", relation=_raw(shop), days=0, **ALONE)
    tagged = shop.project.spark.sql(
        f"select max(_cq_batch) as b from {name} version as of 'january'"
    )
    assert tagged.collect()[0]["b"] == 3


def test_a_snapshot_table_is_rewritten_and_still_knows_what_it_covers(shop: Shop) -> None:
    shop.model("latest", "deduped_latest")
    for _ in range(3):
        shop.change()
        shop.project.run()
        shop.dbt.run("run", "--select", "latest")
    rows = sorted(shop.dbt.rows("latest"), key=lambda row: row["id"])
    name = f"{shop.dbt.schema}.latest"
    told = shop.operation("rewrite_files", relation=name, **ALONE)
    assert "-> 1, bytes" in told
    assert sorted(shop.dbt.rows("latest"), key=lambda row: row["id"]) == rows
    assert len(rows) == ORDERS
    result = shop.dbt.run("run", "--select", "latest")["latest"]
    assert result.message == "NO NEW BATCH"
    shop.proven(by="latest_matches_raw")


def test_old_versions_of_cursors_go(shop: Shop) -> None:
    for number in range(12):
        moment = f"2025-01-01 00:{number:02d}:00"
        assert shop.project.loader("state", "set", "shop.orders", moment).code == 0
    newest = shop.project.state("shop.orders")
    schema = {"schema": shop.project.schema}
    assert "7 versions would go" in shop.operation("prune_state", dry_run=True, **schema)
    assert "7 versions went" in shop.operation("prune_state", **schema, **ALONE)
    assert shop.project.rows("select min(version), count(*) from raw._cq_state") == [(8, 10)]
    assert shop.project.state("shop.orders") == newest
    told = shop.operation("rewrite_files", relation=f"{shop.project.schema}._cq_state", **ALONE)
    assert "rows 10 -> 10, files" in told

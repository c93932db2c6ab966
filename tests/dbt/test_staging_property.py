"""Models with staging, a row_filter or several raw tables equal their definition in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.histories import COLUMNS, KEY, Histories, Key, by_key, history, latest
from tests.dbt.rawtables import RawSchema, Row

BATCHES = 4
HISTORIES = 60
# listed in this order: for a key in both, the second table's version counts
TABLES = ("zoo", "ark")
DEFINED: Mapping[str, Callable[..., dict[Key, Row]]] = {"latest": latest, "history": history}
IDENTITY: Mapping[str, tuple[str, ...]] = {
    "latest": (),
    "history": ("_cq_batch", "_cq_seq", "_cq_table"),
}
ROW_FILTER = "note = 'x' or note is null"

STAGED = """
with versions as (select * from {{ source('shop', 'zoo') }}),
delta as (
    select history, k1, k2, cursor, at, payload as note, tags, 'n' as newest, _cq_source_name,
        _cq_sync_time, _cq_batch, _cq_seq, _cq_row_hash, _cq_deleted, _cq_generation
    from versions
)
select * from delta
"""


def model(kind: str, select: str, **config: Any) -> str:
    settings = {
        "materialized": f"deduped_{kind}",
        "unique_key": KEY,
        "meta": {"strandline": {"cursor_field": "at", **config}},
    }
    return "{{ config(" + ", ".join(f"{k}={v!r}" for k, v in settings.items()) + ") }}\n" + select


@pytest.fixture(scope="module")
def written(project: DbtProject, raw: RawSchema) -> None:
    """Writes the models. No manifest is kept: dbt injects ephemeral models into it only once."""
    for table in TABLES:
        raw.create(table, COLUMNS)
    project.write("models/stg_ephemeral.sql", "{{ config(materialized='ephemeral') }}" + STAGED)
    both = ", ".join(f"source('shop', '{table}')" for table in TABLES)
    for kind in DEFINED:
        project.write(
            f"models/filtered_{kind}.sql",
            model(kind, "select * from {{ ref('stg_ephemeral') }}", row_filter=ROW_FILTER),
        )
        project.write(
            f"models/ephemeral_{kind}.sql", model(kind, "select * from {{ ref('stg_ephemeral') }}")
        )
        project.write(
            f"models/union_{kind}.sql",
            model(kind, f"select * from ({{{{ strandline.union_raw([{both}]) }}}}) as both"),
        )
    project.write(
        "models/schema.yml",
        {
            "sources": [
                {"name": "shop", "schema": raw.schema, "tables": [{"name": t} for t in TABLES]}
            ],
            "models": [
                {"name": f"{way}_{kind}", "data_tests": ["strandline.matches_raw"]}
                for way in ("filtered", "ephemeral", "union")
                for kind in DEFINED
            ],
        },
    )


def shown(row: Row) -> bool:
    return row["payload"] in ("x", None)


def raw_rows(project: DbtProject, raw: RawSchema) -> list[Row]:
    """Returns all rows of the raw tables, each with its table and the table's position."""
    return [
        {**row, "_cq_table": f"{raw.schema}.{table}", "_cq_table_rank": place + 1, "_place": place}
        for place, table in enumerate(TABLES)
        for row in project.rows(f"{raw.schema}.{table}")
    ]


def expected(rows_of_raw: list[Row], name: str) -> dict[Key, Row]:
    """Returns what a model must show, from all rows of the raw tables."""
    way, _, kind = name.partition("_")
    versions = [row for row in rows_of_raw if way == "union" or row["_place"] == 0]
    rows = DEFINED[kind](versions, "at")
    found = rows.values() if way != "filtered" else filter(shown, rows.values())
    identity = IDENTITY[kind] if way == "union" else IDENTITY[kind][:2]
    return by_key([stripped(row, way) for row in found], *identity)


def stripped(row: Row, way: str) -> Row:
    row = {name: value for name, value in row.items() if name != "_place"}
    if way == "union":
        return row
    del row["_cq_table"], row["_cq_table_rank"]
    row["note"], row["newest"] = row.pop("payload"), "n"
    return row


@pytest.mark.slow
def test_merged_equals_definition(project: DbtProject, raw: RawSchema, written: None) -> None:
    """Each table receives one or two batches before a build, or none."""
    drawn = {name: Histories.drawn(seed, HISTORIES, BATCHES) for seed, name in enumerate(TABLES)}
    numbers = dict.fromkeys(TABLES, 0)
    pace = Random(7)
    models = [f"{way}_{kind}" for way in ("filtered", "ephemeral", "union") for kind in DEFINED]
    for build, tables in enumerate([TABLES, ("zoo",), ("ark",), TABLES]):
        for table in tables:
            for _ in range(pace.randint(1, 2)):
                number = numbers[table] = numbers[table] + 1
                if number <= BATCHES:
                    raw.append(table, number, drawn[table].batches[number - 1])
        # test_model_queries.py runs the tests after the first build and the first merge
        results = project.run("build" if build > 1 else "run", "--select", *models)
        assert {one.status for one in results.values()} <= {"success", "pass"}, results
        steps = {name: results[name].message.split()[0] for name in models}
        assert steps["union_latest"] == ("MERGE" if build else "REBUILD")
        versions = raw_rows(project, raw)
        for name in models:
            way, _, kind = name.partition("_")
            identity = IDENTITY[kind] if way == "union" else IDENTITY[kind][:2]
            assert by_key(project.rows(name), *identity) == expected(versions, name), name
    before = {name: project.snapshots(name) for name in models}
    results = project.run("run", "--select", *models)
    assert {one.message for one in results.values()} == {"NO NEW BATCH"}
    assert {name: project.snapshots(name) for name in models} == before

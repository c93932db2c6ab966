"""`row_hash_valid` recomputes the loader's row hash in SQL and finds rows that were changed."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from loader.rows.bookkeeping import Stamp, stamp_rows
from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import META_COLUMNS, RawSchema

SOURCE = (
    "select cast(n as {integer}) as id, cast(n as {float}) as f, "
    "cast(n / 3 as decimal(10,2)) as `D`, "
    "cast(n as smallint) as small, n > 1 as b, if(n = 2, null, 'it''s 🌊') as `a name`, "
    "date '2025-01-01' as day, timestamp '2025-01-01 00:00:00.123456' as at, "
    "timestamp_ntz '2025-01-01 00:00:00.123456' as wall, binary('x') as raw_bytes "
    "from (select explode(sequence(1, 3)) as n)"
)
CREATED = (
    "id int, f float, `D` decimal(10,2), small int, b boolean, `a name` string, day date, "
    "at timestamp, wall timestamp_ntz, raw_bytes binary"
)


def _append(raw: RawSchema, table: str, sql: str, batch: int, renamed: str = "") -> None:
    """Appends rows stamped by the loader; column `renamed`, if any, gets the values of `note`."""
    stamp = Stamp("shop", datetime(2025, 1, 1, tzinfo=timezone.utc), batch, 1)
    rows = stamp_rows(raw.spark.sql(sql), stamp)
    if renamed:
        rows = rows.withColumnRenamed("note", renamed)
    columns = raw.spark.table(f"{raw.schema}.{table}").columns
    absent = [name for name in columns if name.lower() not in {n.lower() for n in rows.columns}]
    for name in absent:
        rows = rows.selectExpr("*", f"null as `{name}`")
    rows.select(*(f"`{name}`" for name in columns)).writeTo(f"{raw.schema}.{table}").append()


@pytest.fixture(scope="module")
def results(project: DbtProject, raw: RawSchema) -> dict[str, Result]:
    """A table with widened columns, a new column and its variant; a copy with a changed value."""
    for table in ("right", "changed"):
        name = f"{raw.schema}.{table}"
        raw.spark.sql(f"create table {name} ({CREATED}, {META_COLUMNS}) using iceberg")
        _append(raw, table, SOURCE.format(integer="int", float="float"), 1)
        raw.spark.sql(f"alter table {name} alter column id type bigint")
        raw.spark.sql(f"alter table {name} alter column f type double")
        raw.spark.sql(f"alter table {name} add column note int")
        wide = SOURCE.format(integer="bigint", float="double")
        _append(raw, table, wide.replace("binary(", "n as note, binary("), 2)
        raw.spark.sql(f"alter table {name} add column note__string string")
        said = {"columns": [{"name": "D", "type": "decimal(10,2)"}], "variants": ["note__string"]}
        raw.spark.sql(
            f"alter table {name} set tblproperties "
            f"('strandline.source_schema' = '{json.dumps(said)}')"
        )
        _append(raw, table, wide.replace("binary(", "'n' as note, binary("), 3, "note__string")
    raw.spark.sql(
        f"update {raw.schema}.changed set `a name` = 'its' where id = 1 and _cq_batch = 2"
    )
    raw.create("nested", "id int, tags map<string,int>")
    raw.create("scaled", "id int, amount decimal(10,2)")
    said = {"columns": [{"name": "amount", "type": "decimal(10,1)"}]}
    raw.spark.sql(
        f"alter table {raw.schema}.scaled set tblproperties "
        f"('strandline.source_schema' = '{json.dumps(said)}')"
    )
    tables = [
        {"name": name, "data_tests": [{"strandline.row_hash_valid": {"name": f"hash_{name}"}}]}
        for name in ("right", "changed", "nested", "scaled")
    ]
    project.write(
        "models/sources.yml",
        {
            "sources": [{"name": "shop", "schema": raw.schema, "tables": tables}],
            "models": [
                {
                    "name": f"{name}_latest",
                    "data_tests": [{"strandline.row_hash_valid": {"name": f"hash_{name}_latest"}}],
                }
                for name in ("right", "changed")
            ],
        },
    )
    for name in ("right", "changed"):
        project.write(
            f"models/{name}_latest.sql",
            "{{ config(materialized='deduped_latest', unique_key='number') }}\n"
            f"select *, id as number from {{{{ source('shop', '{name}') }}}}",
        )
    # a build would skip the models of a source whose test fails
    of_sources = project.run("test", "--select", "source:shop")
    return of_sources | project.run("build", "--select", "right_latest", "changed_latest")


def test_a_changed_row_is_named(results: dict[str, Result], project: DbtProject) -> None:
    for suffix in ("", "_latest"):
        right, changed = results[f"hash_right{suffix}"], results[f"hash_changed{suffix}"]
        assert (right.status, right.failures) == ("pass", 0), right.message
        assert (changed.status, changed.failures) == ("fail", 1), changed.message
        [row] = project.failing_rows(changed)
        assert (row["id"], row["_cq_batch"], row["a name"]) == (1, 2, "its")


def test_a_model_stores_the_verdict(
    results: dict[str, Result], project: DbtProject, raw: RawSchema
) -> None:
    """The verdict is about the raw rows, for any SELECT; the test fails until the repair."""
    assert "the build has checked all rows" in results["hash_right_latest"].sql
    assert "_cq_batch > 3" in results["hash_changed_latest"].sql
    models = ("right_latest", "changed_latest")
    again = project.run("build", "--select", *models)
    assert [again[f"hash_{name}"].failures for name in models] == [0, 1]
    raw.spark.sql(
        f"update {raw.schema}.changed set `a name` = 'it''s 🌊' where id = 1 and _cq_batch = 2"
    )
    assert project.run("test", "--select", "changed_latest")["hash_changed_latest"].status == "pass"
    assert (
        project.run("build", "--select", "changed_latest")["hash_changed_latest"].status == "pass"
    )
    mended = project.run("test", "--select", "changed_latest")["hash_changed_latest"]
    assert "the build has checked all rows" in mended.sql


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("nested", "the column tags is nested (map<string,int>)"),
        ("scaled", "the scale of amount in the source differs from the raw table's (decimal(10,2)"),
    ],
)
def test_what_sql_cannot_compute_is_refused(
    table: str, said: str, results: dict[str, Result], raw: RawSchema
) -> None:
    assert results[f"hash_{table}"].status == "error"
    told = " ".join(results[f"hash_{table}"].message.split())
    assert f"row_hash(`{raw.schema}`.`{table}`): {said}" in told
    assert "Remove the test from this table" in told

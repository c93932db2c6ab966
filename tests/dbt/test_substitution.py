"""Names with `${` are refused where Spark would substitute variables; texts stay literals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.spark.session import SUBSTITUTION, sibling
from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

NAME = "t${env:STRANDLINE_MARKER}"
COLUMN = "c${env:STRANDLINE_MARKER}"
COMMENT = '\\\' location "s3a://nowhere" -- ${env:STRANDLINE_MARKER}'
MODEL = """
{{{{ config(materialized='deduped_{kind}', unique_key='id', {more}) }}}}
select * from {{{{ source('shop', '{source}') }}}}
"""
MACRO = "{{ config(materialized='table', file_format='iceberg') }}"
MACRO += "{{ strandline.deduped_latest(source('shop', 'named'), 'id') }}"


@pytest.fixture
def substituting(spark: SparkSession) -> Iterator[None]:
    """Turns variable substitution on, as in a default Spark session."""
    before = spark.conf.get(SUBSTITUTION)
    spark.conf.set(SUBSTITUTION, "true")
    yield
    spark.conf.set(SUBSTITUTION, before or "false")


def test_sessions_of_the_loader_substitute_nothing_in_names(
    spark: SparkSession, substituting: None
) -> None:
    for session in (sibling(spark), sibling(sibling(spark))):
        [row] = session.sql("select 1 as `${env:STRANDLINE_MARKER}`").collect()
        assert row.asDict() == {"${env:STRANDLINE_MARKER}": 1}
    # Settings are still expanded: here, the profile's folder of a catalog that stays empty.
    conf: Any = spark._jsparkSession.sessionState().conf()
    folder = spark._jvm.java.lang.System.getProperty("java.io.tmpdir")  # type: ignore[union-attr]
    assert conf.warehousePath().removeprefix("file:") == folder


@pytest.fixture(scope="module")
def hostile(raw: RawSchema, project: DbtProject) -> DbtProject:
    """Tables whose name, column or comment tries to read an environment variable."""
    for number, (table, column) in enumerate({NAME: "a", "column": COLUMN, "fine": "a"}.items()):
        raw.create(f"`{table}`", f"id int, `{column}` string")
        raw.append(f"`{table}`", 1, [{"id": number, column: "x"}])
    project.write(
        "models/sources.yml",
        {
            "sources": [
                {
                    "name": "shop",
                    "schema": raw.schema,
                    "tables": [
                        {"name": "named", "identifier": NAME, "quoting": {"identifier": True}},
                        {"name": "column"},
                        {"name": "fine"},
                    ],
                }
            ],
            "models": [
                {
                    "name": f"fine_{kind}",
                    "description": COMMENT,
                    "columns": [{"name": "a", "description": COMMENT}],
                }
                for kind in ("latest", "history")
            ],
        },
    )
    for kind in ("latest", "history"):
        for source in ("named", "column", "fine"):
            docs = "persist_docs={'relation': true, 'columns': true}"
            text = MODEL.format(kind=kind, source=source, more=docs)
            project.write(f"models/{source}_{kind}.sql", text)
    project.write("models/macro.sql", MACRO)
    return project


def test_the_package_refuses_such_a_name_where_spark_would_replace_it(
    hostile: DbtProject, raw: RawSchema, spark: SparkSession, substituting: None
) -> None:
    def run() -> set[str]:
        built = hostile.run("run", "--exclude", "package:strandline")
        refused = {name for name, one in built.items() if one.status == "error"}
        setting = 'Set `spark.sql.variable.substitute: "false"` in the target\'s'
        for name in refused:
            assert setting in built[name].message, built[name].message
        return refused

    named = {"named_latest", "named_history", "macro"}
    assert run() == named
    # with `select *`, the column's name is only needed in a merge
    column = ("column_latest", "column_history")
    for name in column:
        assert COLUMN in sibling(spark).table(f"{hostile.schema}.{name}").columns
    raw.append("column", 2, [{"id": 1, COLUMN: "y"}])
    assert run() == {*named, *column}
    # Literals need no setting: any comment is stored as it is.
    for kind in ("latest", "history"):
        rows = sibling(spark).sql(f"describe extended {hostile.schema}.fine_{kind}").collect()
        told = {row["col_name"]: row for row in rows}
        assert told["Comment"]["data_type"] == told["a"]["comment"] == COMMENT


def test_with_the_shipped_setting_such_a_table_is_built(hostile: DbtProject) -> None:
    built = hostile.run("run", "--exclude", "package:strandline")
    assert {one.status for one in built.values()} == {"success"}, built

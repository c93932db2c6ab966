"""The model cq_duplicates counts what is new, and says the same as if it had counted everything."""

from __future__ import annotations

import random
from typing import Any

from tests.dbt.dbtproject import DbtProject
from tests.dbt.provings import COLUMNS, KEY
from tests.dbt.rawtables import RawSchema, Row, sync_time

TABLES = ("by_cursor", "by_key", "by_text", "compacted", "replaced")


def some_rows(chance: random.Random) -> list[Row]:
    """Returns rows of few keys, days and values, so that many repeat one another."""
    rows: list[Row] = []
    for _ in range(chance.randint(0, 6)):
        key = chance.choice((None, 1, 2, 3, 4))
        at = None if chance.random() < 0.2 else sync_time(chance.randint(1, 3))
        rows.append({"id": key, "at": at, "payload": chance.choice("ab")})
    return rows


def test_counts_follow_what_is_new(project: DbtProject, raw: RawSchema) -> None:
    """Whatever a batch holds; and all is counted after a rewrite, or if a table was replaced."""
    chance = random.Random(7)
    settings = {"by_key": {"primary_key": "id"}, "by_text": {**KEY, "cursor_field": "payload"}}
    for table in TABLES:
        raw.create(table, COLUMNS)
    tables = [
        {"name": table, "config": {"meta": {"strandline": settings.get(table, KEY)}}}
        for table in TABLES
    ]
    source = {"name": "shop", "schema": raw.schema, "tables": tables}
    project.write("models/sources.yml", {"sources": [source]})
    manifest = project.parse()

    def counted(*flags: str) -> tuple[dict[str, dict[str, Any]], str]:
        results = project.run("run", "--select", "cq_duplicates", *flags, manifest=manifest)
        assert results["cq_duplicates"].status == "success", results
        found = {one["table_name"]: one for one in project.rows("cq_duplicates")}
        return found, results["cq_duplicates"].sql

    for batch in (1, 2, 3):
        for table in TABLES:
            # the first batch of one of them is empty, the last of another
            rows = [] if (batch, table) in ((1, "by_key"), (3, "by_text")) else some_rows(chance)
            raw.append(table, batch, rows)
        if batch == 3:
            raw.spark.sql(
                f"call lake.system.rewrite_data_files(table => '{raw.schema}.compacted', "
                "options => map('rewrite-all', 'true'))"
            )
            raw.spark.sql(f"drop table {raw.schema}.replaced")
            raw.create("replaced", COLUMNS)
            raw.append("replaced", 1, some_rows(chance))
        followed, sql = counted()
        if batch > 1:
            assert "earlier._cq_batch" in sql
            assert f"_cq_batch > {batch - 1}" in sql
        assert counted("--full-refresh")[0] == followed
        assert counted()[0] == followed  # nothing new
        assert sum(one["raw_rows"] for one in followed.values()) > 0
    assert any(one["redelivered_rows"] for one in followed.values())
    assert any(one["conflicting_rows"] for one in followed.values())

"""The optional model `cq_duplicates` counts duplicates and conflicts of each raw table."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.dbt.checked_tables import COLUMNS, KEY
from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema, Row, sync_time

TABLES = ("by_cursor", "by_key", "by_text", "replaced", "empty")
KEYED = {"unique_key": "id"}


def some_rows(chance: random.Random) -> list[Row]:
    """Returns rows of few keys, days and values, so that many are duplicates."""
    rows: list[Row] = []
    for _ in range(chance.randint(4, 12)):
        key = chance.choice((None, 1, 2, 3, 4))
        at = None if chance.random() < 0.2 else sync_time(chance.randint(1, 3))
        rows.append({"id": key, "at": at, "payload": chance.choice("ab")})
    return rows


def count_duplicates(batches: list[list[Row]], cursor: str | None) -> dict[str, Any]:
    """Returns the expected counts, by comparing each row with the previous one of its key."""
    found: Counter[str] = Counter()
    before: dict[tuple[Any, ...], tuple[Row, int]] = {}
    for batch, rows in enumerate(batches, start=1):
        for row in rows:
            place = (row["id"], row[cursor] if cursor else None)
            known = before.get(place)
            if known is not None:
                same = all(row[name] == known[0][name] for name in ("id", "at", "payload"))
                kind = "redelivered_rows" if known[1] < batch else "in_batch_duplicates"
                if same:
                    found[kind] += 1
                elif cursor and row[cursor] is not None:
                    found["conflicting_rows"] += 1
            before[place] = (row, batch)
    everything = [row for rows in batches for row in rows]
    repeated = found["redelivered_rows"] + found["in_batch_duplicates"]
    return {
        "raw_rows": len(everything),
        "raw_keys": len({row["id"] for row in everything}),
        "redelivered_rows": found["redelivered_rows"],
        "in_batch_duplicates": found["in_batch_duplicates"],
        "conflicting_rows": found["conflicting_rows"],
        "versions": len(everything) - repeated,
        "last_batch": max((n for n, rows in enumerate(batches, start=1) if rows), default=None),
    }


def test_counts_equal_their_definition(spark: SparkSession, raw: RawSchema, tmp_path: Path) -> None:
    """Includes empty batches, an empty table, and a table that was dropped and created again."""
    project = DbtProject(
        spark,
        tmp_path,
        schema="analytics_counts",
        raw_schema=raw.schema,
        settings={
            "vars": {"strandline__raw_schema": raw.schema},
            "models": {"strandline": {"cq_duplicates": {"+enabled": True}}},
        },
    )
    chance = random.Random(7)
    settings = {"by_key": KEYED, "by_text": {**KEY, "cursor_field": "payload"}}
    batches: dict[str, list[list[Row]]] = {table: [] for table in TABLES}
    for table in TABLES:
        raw.create(table, COLUMNS)
    tables = [
        {"name": table, "config": {"meta": {"strandline": settings.get(table, KEY)}}}
        for table in TABLES
    ]
    source = {"name": "shop", "schema": raw.schema, "tables": tables}
    project.write("models/sources.yml", {"sources": [source]})
    for batch in (1, 2, 3):
        for table in TABLES[:-1]:
            # the first batch of one of them is empty, the last of another
            rows = [] if (batch, table) in ((1, "by_key"), (3, "by_text")) else some_rows(chance)
            batches[table].append(rows)
            raw.append(table, batch, rows)
    raw.spark.sql(f"drop table {raw.schema}.replaced")
    raw.create("replaced", COLUMNS)
    batches["replaced"] = [some_rows(chance)]
    raw.append("replaced", 1, batches["replaced"][0])
    results = project.run("run", "--select", "cq_duplicates")
    assert results["cq_duplicates"].status == "success", results
    found = {one["table_name"]: one for one in project.rows("cq_duplicates")}
    cursors = {"by_key": None, "by_text": "payload"}
    expected = {t: count_duplicates(batches[t], cursors.get(t, "at")) for t in TABLES}
    kept = {t: {name: one[name] for name in expected[t]} for t, one in found.items()}
    assert kept == expected
    assert any(one["redelivered_rows"] for one in expected.values())
    assert any(one["in_batch_duplicates"] for one in expected.values())
    assert any(one["conflicting_rows"] for one in expected.values())

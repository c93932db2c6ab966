"""Named cases of the latest version per key, each built batch by batch and by a rebuild.

All cases share one table, with the case's name in the key, so a few builds test them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject, as_json
from tests.dbt.rawtables import RawSchema, Row

COLUMNS = (
    "scenario string, k1 string, k2 int, cursor int, payload string, tags map<string,int>, "
    "parts array<int>, pair struct<a:int,b:string>"
)
KEY = ["scenario", "k1", "k2"]
TEXT = "quote ' double \" backslash \\ tab \t new\nline emoji 🌊 `tick` {{ jinja }}"


def row(k1: str | None, cursor: int | None, payload: str | None = "x", **more: Any) -> Row:
    return {"k1": k1, "k2": 1, "cursor": cursor, "payload": payload, **more}


def gone(k1: str, cursor: int | None, **more: Any) -> Row:
    return row(k1, cursor, None, _deleted=True, **more)


@dataclass(frozen=True)
class Scenario:
    """The batches of a raw table, and the latest table that is expected after them.

    Args:
        batches: rows in emission order.
        latest: (k1, payload) of the rows that are expected, or whole rows.
        cursor: whether the model has a cursor field.
    """

    batches: Sequence[Sequence[Row]]
    latest: Sequence[tuple[Any, Any]]
    cursor: bool = True


SCENARIOS = {
    "redelivered": Scenario([[row("a", 1)], [row("a", 1)], [row("a", 1)]], [("a", "x")]),
    "tie_later_batch_wins": Scenario([[row("a", 1, "old")], [row("a", 1, "new")]], [("a", "new")]),
    "tie_later_in_batch_wins": Scenario([[row("a", 1, "old"), row("a", 1, "new")]], [("a", "new")]),
    "late_older_loses": Scenario([[row("a", 5, "new")], [row("a", 3, "old")]], [("a", "new")]),
    "reversed_in_batch": Scenario(
        [[row("a", 3, "3"), row("a", 2, "2"), row("a", 1, "1")]], [("a", "3")]
    ),
    "reversed_across_batches": Scenario(
        [[row("a", 3, "3")], [row("a", 2, "2")], [row("a", 1, "1")]], [("a", "3")]
    ),
    "null_cursor_first": Scenario([[row("a", None, "null")], [row("a", 1, "one")]], [("a", "one")]),
    "null_cursor_last": Scenario([[row("a", 1, "one")], [row("a", None, "null")]], [("a", "one")]),
    "all_cursors_null": Scenario([[row("a", None, "1")], [row("a", None, "2")]], [("a", "2")]),
    "no_cursor": Scenario([[row("a", 9, "1")], [row("a", 1, "2")]], [("a", "2")], cursor=False),
    "composite_key_with_nulls": Scenario(
        [
            [
                row("a", 1, "a1"),
                row("a", 1, "a-", k2=None),
                row(None, 1, "-1"),
                row(None, 1, "--", k2=None),
            ],
            [row("a", 2, "a-2", k2=None), row(None, 2, "--2", k2=None)],
            [row(None, 3, "-13")],
        ],
        [("a", "a1"), ("a", "a-2"), (None, "-13"), (None, "--2")],
    ),
    "null_key_thrice": Scenario(
        [[row(None, 1, "1")], [row(None, 1, "2")], [row(None, 1, "3")]], [(None, "3")]
    ),
    "null_payload_stays": Scenario(
        [[row("a", 1)], [row("a", 2, None), row("b", 1, None)]], [("a", None), ("b", None)]
    ),
    "insert_and_delete_in_batch": Scenario(
        [[row("b", 1)], [row("a", 1), gone("a", 2)]], [("b", "x")]
    ),
    "delete_of_unknown": Scenario([[row("b", 1)], [gone("a", 1)]], [("b", "x")]),
    "delete_twice": Scenario(
        [[row("a", 1), row("b", 1)], [gone("a", 2)], [gone("a", 3)]], [("b", "x")]
    ),
    "deleted_then_recreated": Scenario(
        [[row("a", 1, "1")], [gone("a", 2)], [row("a", 3, "3")]], [("a", "3")]
    ),
    "late_version_of_deleted": Scenario(
        [[row("a", 1, "1")], [gone("a", 5)], [row("a", 3, "3")]], []
    ),
    "late_delete_loses": Scenario([[row("a", 5, "5")], [gone("a", 3)]], [("a", "5")]),
    "deletes_without_cursor": Scenario(
        [[row("a", None)], [gone("a", None)], [row("a", None, "2")]], [("a", "2")], cursor=False
    ),
    "odd_text": Scenario([[row(TEXT, 1, TEXT)], [row(TEXT, 2, TEXT + "2")]], [(TEXT, TEXT + "2")]),
    "nested_columns": Scenario(
        [
            [
                row("a", 1, tags={"n": 1}, parts=[1, 2], pair={"a": 1, "b": "x"}),
                row("b", 1, tags={"m": 1}),
            ],
            [row("a", 2, tags={"n": 2}, parts=None, pair={"a": None, "b": "y"})],
        ],
        [("a", "x"), ("b", "x")],
    ),
    "higher_generation_overrules_cursor": Scenario(
        [[row("a", 9, "old")], [row("a", 1, "new", _generation=2)], [row("a", 9, "late")]],
        [("a", "new")],
    ),
}


VARIANTS = {"cursor": "'cursor'", "without": "none"}


@pytest.fixture(scope="module")
def snapshots(project: DbtProject, raw: RawSchema) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of the tables built batch by batch, and of the rebuilt ones."""
    raw.create("scenarios", COLUMNS)
    source = "source('shop', 'scenarios')"
    for variant, cursor in VARIANTS.items():
        project.write(
            f"models/merged_{variant}.sql",
            f"{{{{ config(materialized='deduped_latest', unique_key={KEY}, "
            f"meta={{'strandline': {{'cursor_field': {cursor}}}}}) }}}}\n"
            f"select * from {{{{ {source} }}}}",
        )
        project.write(
            f"models/rebuilt_{variant}.sql",
            "{{ config(materialized='table', file_format='iceberg') }}\n"
            f"{{{{ strandline.deduped_latest({source}, {KEY}, {cursor}) }}}}",
        )
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": "scenarios"}]}]},
    )
    manifest = project.parse()
    for batch in range(1, 1 + max(len(one.batches) for one in SCENARIOS.values())):
        raw.append("scenarios", batch, rows_of(batch))
        results = project.run("run", "--select", "merged_*", manifest=manifest)
        step = "REBUILD" if batch == 1 else "MERGE"
        assert {one.message for one in results.values()} == {f"{step} to batch {batch}"}
    results = project.run("run", "--select", "rebuilt_*", manifest=manifest)
    assert {one.status for one in results.values()} == {"success"}, results
    return {
        f"{kind}_{variant}": project.rows(f"{kind}_{variant}")
        for variant in VARIANTS
        for kind in ("merged", "rebuilt")
    }


def rows_of(batch: int) -> list[Row]:
    return [
        {**one, "scenario": name}
        for name, scenario in SCENARIOS.items()
        if len(scenario.batches) >= batch
        for one in scenario.batches[batch - 1]
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_latest(name: str, snapshots: dict[str, list[dict[str, Any]]]) -> None:
    """The rows are as expected, and whole rows are equal between merge and rebuild."""
    variant = "cursor" if SCENARIOS[name].cursor else "without"
    merged, rebuilt = (
        sorted((one for one in snapshots[kind] if one["scenario"] == name), key=as_json)
        for kind in (f"merged_{variant}", f"rebuilt_{variant}")
    )
    found = [(one["k1"], one["payload"]) for one in merged]
    assert sorted(found, key=as_json) == sorted(SCENARIOS[name].latest, key=as_json)
    assert merged == rebuilt

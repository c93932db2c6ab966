"""Incremental = full rebuild = argmax, after every prefix of random histories.

Many histories share one table: the history's number is part of the key, so that one dbt run
advances them all. A batch of the table holds one batch of every history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema, Row

HISTORIES = 30
BATCHES = 5
EXAMPLES = 3

COLUMNS = "history int, k1 string, k2 int, cursor int, payload string, tags map<string,int>"
KEY = ["history", "k1", "k2"]


@dataclass(frozen=True)
class Change:
    """One row of a batch; few values, so that keys meet and cursors tie."""

    k1: str | None
    k2: int | None
    cursor: int | None
    payload: str | None
    deleted: bool
    generation: int


# One draw a change: hypothesis has a budget of choices, and thirty histories are one example.
CHANGES = [
    Change(*values)
    for values in product(
        ["a", "b", None],
        [1, None],
        [None, 1, 2, 3],
        [None, "x", "quote ' \\ and\nline 🌊"],
        [False, False, True],
        [1, 1, 1, 1, 2],
    )
]
changes = st.sampled_from(CHANGES)
histories = st.lists(st.lists(changes, max_size=3), min_size=BATCHES, max_size=BATCHES)


def batch_rows(drawn: list[list[list[Change]]], batch: int) -> list[Row]:
    """All histories' rows of a batch, as they are emitted."""
    return [
        {
            "history": history,
            "k1": change.k1,
            "k2": change.k2,
            "cursor": change.cursor,
            "payload": change.payload,
            "tags": {"n": change.cursor or 0} if change.payload else None,
            "_deleted": change.deleted,
            "_generation": change.generation,
        }
        for history, batches in enumerate(drawn)
        for change in batches[batch - 1]
    ]


def argmax(rows: Iterable[Row], with_cursor: bool) -> dict[tuple[Any, ...], Row]:
    """The newest version per key, tombstones removed: the definition, without SQL."""
    newest: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        if key not in newest or order(row, with_cursor) > order(newest[key], with_cursor):
            newest[key] = row
    return {key: row for key, row in newest.items() if not row["_cq_deleted"]}


def order(row: Row, with_cursor: bool) -> tuple[Any, ...]:
    cursor = row["cursor"] if with_cursor else None
    return (
        row["_cq_generation"],
        cursor is not None,
        cursor or 0,
        row["_cq_batch"],
        row["_cq_seq"],
    )


def by_key(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    keyed: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        assert key not in keyed, f"two rows of {key}"
        keyed[key] = row
    return keyed


def model(kind: str, cursor: str) -> str:
    field = "'cursor'" if cursor == "cursor" else "none"
    source = "source('shop', 'histories')"
    if kind == "merged":
        return (
            f"{{{{ config(materialized='deduped_latest', primary_key={KEY}, "
            f"cursor_field={field}) }}}}\n"
            f"select * from {{{{ {source} }}}}"
        )
    return (
        "{{ config(materialized='table', file_format='iceberg') }}\n"
        f"{{{{ strandline.deduped_latest({source}, {KEY}, {field}) }}}}"
    )


VARIANTS = ("cursor", "without")


@dataclass
class Probe:
    """The project with its one manifest; kept out of what hypothesis prints of an example."""

    project: DbtProject = field(repr=False)
    raw: RawSchema = field(repr=False)
    manifest: Any = field(repr=False)

    def build(self, models: list[str], *flags: str) -> dict[str, str]:
        results = self.project.run("run", "--select", *models, *flags, manifest=self.manifest)
        assert {one.status for one in results.values()} == {"success"}, results
        return {name: one.message for name, one in results.items()}


@pytest.fixture(scope="module")
def probe(project: DbtProject, raw: RawSchema) -> Probe:
    for cursor in VARIANTS:
        for kind in ("merged", "rebuilt"):
            project.write(f"models/{kind}_{cursor}.sql", model(kind, cursor))
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": "histories"}]}]},
    )
    return Probe(project, raw, project.parse())


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    drawn=st.lists(histories, min_size=HISTORIES, max_size=HISTORIES),
    stops=st.sets(st.integers(1, BATCHES - 1), min_size=2),
)
def test_merged_is_rebuilt_is_argmax(
    probe: Probe, drawn: list[list[list[Change]]], stops: set[int]
) -> None:
    """After each build, of one new batch or of several, and building again changes nothing."""
    project, raw = probe.project, probe.raw
    raw.spark.sql(f"drop table if exists {raw.schema}.histories")
    raw.create("histories", COLUMNS)
    merged = [f"merged_{cursor}" for cursor in VARIANTS]
    rebuilt = [f"rebuilt_{cursor}" for cursor in VARIANTS]
    flags = ["--full-refresh"]
    for batch in range(1, BATCHES + 1):
        rows = batch_rows(drawn, batch)
        raw.append("histories", batch, rows)
        if batch not in stops and batch != BATCHES:
            continue
        note(f"up to batch {batch}")
        messages = probe.build([*merged, *rebuilt], *flags)
        if rows:
            step = "BUILD" if flags else "MERGE"
            assert {messages[name].split()[0] for name in merged} == {step}
        flags = []
        versions = project.rows(f"{raw.schema}.histories")
        for cursor in VARIANTS:
            wanted = argmax(versions, cursor == "cursor")
            assert by_key(project.rows(f"rebuilt_{cursor}")) == wanted
            assert by_key(project.rows(f"merged_{cursor}")) == wanted
    before = {name: project.snapshots(name) for name in merged}
    probe.build(merged)
    assert {name: project.snapshots(name) for name in merged} == before

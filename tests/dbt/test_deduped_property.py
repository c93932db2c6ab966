"""Merged tables equal full rebuilds and a definition in Python, after random batches.

By default, a fixed example tests everything and a random one tests merges. STRANDLINE_EXAMPLES=5
runs five hundred histories.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.histories import COLUMNS, CURSORS, KEY, Histories, by_key, history, latest
from tests.dbt.rawtables import RawSchema

HISTORIES = 100
BATCHES = 5
SHORT = 2
EXAMPLES = int(os.environ.get("STRANDLINE_EXAMPLES", str(SHORT)))
AS_OF = (2, 4)
SOURCE = "source('shop', 'histories')"
KINDS = {"latest": latest, "history": history}
IDENTITY: dict[str, tuple[str, ...]] = {"latest": (), "history": ("_cq_batch", "_cq_seq")}


def name(way: str, kind: str, cursor: str | None) -> str:
    return f"{way}_{kind}_by_{cursor or 'arrival'}"


def materialized(kind: str, cursor: str | None) -> str:
    return (
        f"{{{{ config(materialized='deduped_{kind}', unique_key={KEY}, "
        f"meta={{'strandline': {{'cursor_field': {cursor!r}}}}}) }}}}\n"
        f"select * from {{{{ {SOURCE} }}}}"
    ).replace("None", "none")


def from_macro(kind: str, cursor: str | None, as_of: int | None = None) -> str:
    return f"{{{{ strandline.deduped_{kind}({SOURCE}, {KEY}, {cursor!r}, {as_of}) }}}}".replace(
        "None", "none"
    )


class Probe:
    """The project and its only manifest."""

    def __init__(self, project: DbtProject, raw: RawSchema, manifest: Any) -> None:
        self.project, self.raw, self.manifest = project, raw, manifest

    def __repr__(self) -> str:
        return "Probe()"  # hypothesis prints an example whole, and the manifest has 50,000 lines

    def build(self, models: list[str], *flags: str) -> dict[str, str]:
        results = self.project.run("run", "--select", *models, *flags, manifest=self.manifest)
        assert {one.status for one in results.values()} == {"success"}, results
        return {name: one.message for name, one in results.items()}

    def selected(self, models: list[str]) -> dict[str, list[dict[str, Any]]]:
        """Returns the rows of the SELECTs that the macros write, without creating tables."""
        results = self.project.run("compile", "--select", *models, manifest=self.manifest)
        return {name: self.project.failing_rows(results[name]) for name in models}


@pytest.fixture(scope="module")
def shuffled(spark: SparkSession) -> Iterator[None]:
    """Uses several partitions instead of one, because no result may depend on the order of rows."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.fixture(scope="module")
def probe(project: DbtProject, raw: RawSchema, shuffled: None) -> Probe:
    for kind in KINDS:
        for cursor in CURSORS:
            project.write(f"models/{name('merged', kind, cursor)}.sql", materialized(kind, cursor))
            project.write(f"models/{name('rebuilt', kind, cursor)}.sql", from_macro(kind, cursor))
        for batch in AS_OF:
            project.write(
                f"models/{name(f'as_of_{batch}', kind, 'at')}.sql", from_macro(kind, "at", batch)
            )
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": "histories"}]}]},
    )
    return Probe(project, raw, project.parse())


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES - 1,  # in addition to the fixed one
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(1, 2**31))
@example(seed=0)
def test_merged_equals_rebuilt_equals_definition(probe: Probe, seed: int) -> None:
    """Compares after each build of one or more new batches; another build changes nothing.

    The histories of a seed are independent of each other, so a difference names one of them.
    """
    print(f"seed {seed}")
    project, raw = probe.project, probe.raw
    drawn = Histories.drawn(seed, HISTORIES, BATCHES)
    whole = seed == 0 or EXAMPLES > SHORT
    stops = {BATCHES, *Random(seed).sample(range(1, BATCHES), 2 if whole else 1)}
    raw.spark.sql(f"drop table if exists {raw.schema}.histories")
    raw.create("histories", COLUMNS)
    merged = {name("merged", kind, cursor): (kind, cursor) for kind in KINDS for cursor in CURSORS}
    flags = ["--full-refresh"]
    for batch, rows in enumerate(drawn.batches, start=1):
        raw.append("histories", batch, rows)
        if batch not in stops:
            continue
        messages = probe.build([*merged], *flags)
        step = "REBUILD" if flags else "MERGE"
        assert {messages[model].split()[0] for model in merged} == {step}
        flags = []
        versions = project.rows(f"{raw.schema}.histories")
        for model, (kind, cursor) in merged.items():
            assert by_key(project.rows(model), *IDENTITY[kind]) == KINDS[kind](versions, cursor)
    if not whole:
        return
    before = {model: project.snapshots(model) for model in merged}
    probe.build([*merged])
    assert {model: project.snapshots(model) for model in merged} == before

    rebuilt = {name("rebuilt", kind, cursor): (kind, cursor) for kind, cursor in merged.values()}
    as_of = {name(f"as_of_{batch}", kind, "at"): (kind, batch) for kind in KINDS for batch in AS_OF}
    selected = probe.selected([*rebuilt, *as_of])
    for model, (kind, cursor) in rebuilt.items():
        assert by_key(selected[model], *IDENTITY[kind]) == KINDS[kind](versions, cursor)
    for model, (kind, batch) in as_of.items():
        then = [row for row in versions if row["_cq_batch"] <= batch]
        assert by_key(selected[model], *IDENTITY[kind]) == KINDS[kind](then, "at")

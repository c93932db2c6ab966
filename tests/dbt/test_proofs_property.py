"""Random batches, some with faults: proofs that follow them say what proofs of everything say."""

from __future__ import annotations

import os
import random
from datetime import date, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.provings import RAW_TESTS
from tests.dbt.rawtables import RawSchema, Row, sync_time

STEPS = int(os.environ.get("STRANDLINE_STEPS", "3"))
SEED = int(os.environ.get("STRANDLINE_SEED", "1"))
CURSORS = {
    "timestamp": sync_time,
    "date": lambda day: date(2025, 1, 1) + timedelta(days=day),
    "bigint": lambda day: day * 10_000_000_000,
    "string": lambda day: f"{day:03}",
}
TIMES = ("timestamp", "date")


class Stream:
    """A table that gets random batches: mostly right, as the loader would append them."""

    def __init__(self, name: str, cursor: str, chance: random.Random, *, keyed: bool) -> None:
        self.name, self.cursor, self.chance, self.keyed = name, cursor, chance, keyed
        self.batch = 0
        self.newest: dict[int | None, int] = {}
        self.ledger: list[dict[str, Any]] = []

    def row(self, key: int | None, day: int | None, payload: str, **more: Any) -> Row:
        at = None if day is None else CURSORS[self.cursor](day)
        return {"id": key, "at": at, "payload": payload, **more}

    def rows(self) -> list[Row]:
        """Returns the next batch: new versions of some keys, and now and then what is wrong."""
        self.batch += 1
        day, rows = 2 * self.batch, []
        for key in self.chance.sample([None, 1, 2, 3, 4, 5, 6], self.chance.randint(0, 3)):
            deleted = self.chance.random() < 0.1
            rows.append(self.row(key, day, f"v{day}", _deleted=deleted))
            self.newest[key] = day
        if self.chance.random() < 0.25 and self.newest:
            key = self.chance.choice(list(self.newest))
            known = self.newest[key]
            older = self.chance.choice((known, known, known - 1, 1))
            wrong = [
                self.row(key, known, "other"),
                self.row(key, known, f"v{known}"),
                self.row(key, older, f"v{older}"),
                self.row(key, older, "other", _generation=2),
                self.row(key, None, "x"),
                self.row(key, 30 if self.cursor == "date" else 900, "ahead"),
            ]
            rows += [self.chance.choice(wrong) for _ in range(self.chance.randint(1, 2))]
        return rows


@pytest.fixture(scope="module")
def projects(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, DbtProject]:
    """One project whose proofs follow, and one that proves everything, over the same tables."""
    made = {}
    for kind, record in (("following", True), ("whole", False)):
        variables = {
            "strandline__raw_schema": raw.schema,
            "strandline__record_proofs": record,
            "strandline__proved_again_within": 5,
        }
        made[kind] = DbtProject(
            spark,
            tmp_path_factory.mktemp(kind),
            schema=f"analytics_proofs_{kind}",
            raw_schema=raw.schema,
            settings={"vars": variables},
        )
    return made


def test_they_say_the_same(projects: dict[str, DbtProject], raw: RawSchema) -> None:
    """STRANDLINE_STEPS and STRANDLINE_SEED make it longer and different."""
    chance = random.Random(SEED)
    streams = []
    for number, cursor in enumerate(CURSORS):
        stream = Stream(f"t{number}", cursor, random.Random(chance.random()), keyed=number != 3)
        raw.create(stream.name, f"id int, at {cursor}, payload string")
        streams.append(stream)
    tables = []
    for stream in streams:
        tests = [one for one in RAW_TESTS if stream.keyed or one not in KEYED]
        if stream.cursor not in TIMES:
            tests.remove("no_future_cursor")
        settings = {"cursor_field": "at"} | ({"primary_key": "id"} if stream.keyed else {})
        tables.append(
            {
                "name": stream.name,
                "config": {"meta": {"strandline": settings}},
                "data_tests": [f"strandline.{test}" for test in tests],
            }
        )
    manifests = {}
    for kind, project in projects.items():
        source = {"name": "shop", "schema": raw.schema, "tables": tables}
        project.write("models/sources.yml", {"sources": [source]})
        manifests[kind] = project.parse()
    told: list[set[str]] = []
    for step in range(STEPS):
        for stream in streams:
            raw.append(stream.name, stream.batch + 1, stream.rows())
            low = chance.choice((2 * stream.batch - 2, 2 * stream.batch - 3))
            text = CURSORS[stream.cursor](low)
            stream.ledger.append(
                {
                    "batch": stream.batch,
                    "cursor_field": "at",
                    "cursor_low": f"{text:%Y-%m-%d %H:%M:%S}"
                    if stream.cursor == "timestamp"
                    else str(text),
                }
            )
            # now and then a crashed sync's row comes with the next one
            if chance.random() < 0.8 or step == STEPS - 1:
                raw.syncs(stream.name, stream.ledger)
                stream.ledger = []
        red = {}
        for kind, project in projects.items():
            results = project.run("test", "--select", "source:shop", manifest=manifests[kind])
            statuses = {name: one.status for name, one in results.items()}
            assert set(statuses.values()) <= {"pass", "fail", "warn"}, results
            red[kind] = {name for name, status in statuses.items() if status != "pass"}
        assert red["following"] == red["whole"], (SEED, step)
        told.append(red["whole"])
    records = projects["following"].rows("_cq_proofs")
    assert any(one["reason"] is None for one in records)
    assert any(told), "no fault in any batch: choose another seed"


KEYED = ("no_cursor_regression", "cursor_conflict", "redelivered_at_boundary")

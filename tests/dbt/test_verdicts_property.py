"""On random batches, some with faults, tests of new batches agree with tests of all rows."""

from __future__ import annotations

import os
import random
from datetime import date, timedelta
from typing import Any

import pytest

from tests.dbt.checked_tables import ROW_TESTS
from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import RawSchema, Row, sync_time

STEPS = int(os.environ.get("STRANDLINE_STEPS", "3"))
SEED = int(os.environ.get("STRANDLINE_SEED", "1"))
CURSORS = {
    "timestamp": lambda day: sync_time(day - 100),
    "date": lambda day: date(2025, 1, 1) + timedelta(days=day - 100),
    "bigint": lambda day: day * 10_000_000_000,
    "string": lambda day: f"{day:03}",
}
TESTS = ("matches_raw", "unique_key", *ROW_TESTS)
EVERYTHING = ("--vars", "{strandline__prove_all: true}")


class Stream:
    """A table that receives random batches, mostly such as the loader would append."""

    def __init__(self, name: str, cursor: str, chance: random.Random) -> None:
        self.name, self.cursor, self.chance = name, cursor, chance
        self.batch = 0
        self.newest: dict[int | None, int] = {}

    def row(self, key: int | None, day: int | None, payload: str, **more: Any) -> Row:
        at = None if day is None else CURSORS[self.cursor](day)
        return {"id": key, "at": at, "payload": payload, **more}

    def rows(self) -> list[Row]:
        """Returns the next batch: new versions of some keys, and sometimes faults."""
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
                self.row(key, 900, "ahead"),
            ]
            rows += [self.chance.choice(wrong) for _ in range(self.chance.randint(1, 2))]
        return rows


def red(results: dict[str, Result]) -> set[str]:
    """Returns the tests that warned or failed; no test or model may have ended with an error."""
    statuses = {one.status for one in results.values()}
    assert statuses <= {"success", "pass", "fail", "warn"}, results
    return {name for name, one in results.items() if one.status in ("fail", "warn")}


@pytest.mark.slow
def test_incremental_and_full_tests_agree(project: DbtProject, raw: RawSchema) -> None:
    """STRANDLINE_STEPS sets the number of batches, STRANDLINE_SEED the random rows."""
    chance = random.Random(SEED)
    streams = []
    tables, models = [], []
    for number, cursor in enumerate(CURSORS):
        stream = Stream(f"t{number}", cursor, random.Random(chance.random()))
        raw.create(stream.name, f"id int, at {cursor}, payload string")
        streams.append(stream)
        settings = {"unique_key": "id", "cursor_field": "at"}
        tables.append({"name": stream.name, "config": {"meta": {"strandline": settings}}})
        for kind, tests in (("latest", TESTS), ("history", TESTS[:2])):
            name = f"{stream.name}_{kind}"
            project.write(
                f"models/{name}.sql",
                f"{{{{ config(materialized='deduped_{kind}', unique_key='id', "
                "meta={'strandline': {'cursor_field': 'at'}}) }}\n"
                f"select * from {{{{ source('shop', '{stream.name}') }}}}",
            )
            models.append({"name": name, "data_tests": [f"strandline.{test}" for test in tests]})
    source = {"name": "shop", "schema": raw.schema, "tables": tables}
    project.write("models/schema.yml", {"sources": [source], "models": models})
    manifest = project.parse()
    names = [model["name"] for model in models]
    found: list[set[str]] = []
    for step in range(STEPS):
        for stream in streams:
            raw.append(stream.name, stream.batch + 1, stream.rows())
        built = project.run("build", "--select", *names, manifest=manifest)
        followed = project.run("test", "--select", *names, manifest=manifest)
        whole = project.run("test", "--select", *names, *EVERYTHING, manifest=manifest)
        assert red(built) == red(followed) == red(whole), (SEED, step)
        few = ("_cq_batch > ", "the build has checked all rows")
        narrow = [one for one in followed.values() if any(text in one.sql for text in few)]
        assert len(narrow) == len(followed) == len(streams) * 7
        assert not [one for one in whole.values() if any(text in one.sql for text in few)]
        found.append(red(whole))
    assert any(found), "no fault in any batch: choose another seed"
    assert not [name for name in set().union(*found) if "matches_raw" in name]

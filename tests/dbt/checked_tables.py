"""A raw table with a latest table, a history and their tests, built batch by batch."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.icebergrows import IcebergRows
from tests.dbt.rawtables import RawSchema, Row, row_hash, sync_time
from tests.dbt.scenarios import Command

COLUMNS = "id int, at timestamp, payload string"
KEY = {"unique_key": "id", "cursor_field": "at"}
ROW_TESTS = ("no_cursor_ties", "no_duplicates", "cursor_plausible")
TURNS = 30
HIDDEN = "\u2063"
"""The package writes it between the characters of a property, so that Spark redacts nothing."""


def row(key: int | None, day: int | None, payload: str = "a", **more: Any) -> Row:
    """Returns a row whose cursor is midnight of a day."""
    return {"id": key, "at": None if day is None else sync_time(day), "payload": payload, **more}


class CheckedTable:
    """One raw table, its models, and their tests.

    Args:
        tests: the generic tests of each model, by its kind, `latest` or `history`; a mapping gives
            a test's arguments and config.
        columns: the source's columns.
        select: the models' SELECT; `{source}` is the source.
        key: their `unique_key` and `cursor_field`.
    """

    def __init__(
        self,
        project: DbtProject,
        raw: RawSchema,
        table: str,
        tests: Mapping[str, Sequence[Any]],
        *,
        columns: str = COLUMNS,
        select: str = "select * from {source}",
        key: Mapping[str, Any] = KEY,
    ) -> None:
        self.project, self.raw, self.table = project, raw, table
        self.spark = project.spark
        raw.create(table, columns)
        self.batch = 0
        self.tests = dict(tests)
        self.models = {kind: f"{table}_{kind}" for kind in tests}
        self.select = select.format(source=f"{{{{ source('shop', '{table}') }}}}")
        self.key = dict(key)
        self.meta: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.write()

    def write(self) -> None:
        """Writes source, models and tests as they are configured now."""
        for kind, name in self.models.items():
            ours = {k: v for k, v in self.key.items() if k != "unique_key"}
            settings = {
                "materialized": f"deduped_{kind}",
                "unique_key": self.key["unique_key"],
                "meta": {"strandline": ours | self.config},
            }
            given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
            text = f"{{{{ config({given}) }}}}\n{self.select}"
            self.project.write(f"models/{name}.sql", text)
        source = {
            "name": self.table,
            "config": {"meta": {"strandline": {**self.key, **self.meta}}},
        }
        models = [
            {"name": name, "data_tests": [named(one, name) for one in self.tests[kind]]}
            for kind, name in self.models.items()
        ]
        self.project.write(
            f"models/{self.table}.yml",
            {
                "sources": [{"name": "shop", "schema": self.raw.schema, "tables": [source]}],
                "models": models,
            },
        )

    def append(self, *rows: Row, low: int | None = None, generation: int = 1) -> int:
        """Appends the next batch as a sync does, with its ledger row; returns its number.

        Args:
            low: the day at which its window began; by default the earliest day of its rows.
        """
        self.batch += 1
        self._commit(
            [{**one, "_cq_batch": self.batch, "_cq_generation": generation} for one in rows]
        )
        days = [one["at"] for one in rows if one.get("at") is not None]
        began = sync_time(low) if low is not None else min(days, default=None)
        entry = {
            "batch": self.batch,
            "cursor_field": "at",
            "cursor_type": "timestamp",
            "cursor_low": f"{began:%Y-%m-%d %H:%M:%S}" if began and self.batch > 1 else None,
            "rows_appended": len(rows),
            "generation": generation,
        }
        self.raw.syncs(self.table, [entry])
        return self.batch

    def slip_in(self, *rows: Mapping[str, Any]) -> None:
        """Appends rows of any batch in a commit that looks like the loader's next batch."""
        self.batch += 1
        self._commit(rows)

    def _commit(self, rows: Sequence[Mapping[str, Any]]) -> None:
        target = IcebergRows(self.spark, self.name)
        stamped = [
            {
                "_cq_source_name": "shop",
                "_cq_sync_time": sync_time(one["_cq_batch"] + 100),
                "_cq_seq": place,
                "_cq_row_hash": row_hash(one),
                "_cq_deleted": bool(one.get("_deleted", False)),
                "_cq_generation": 1,
                **one,
            }
            for place, one in enumerate(rows)
        ]
        values = [[one.get(name) for name in target.columns] for one in stamped]
        target.append(values, {"strandline.batch": str(self.batch)})

    def forge(self, kind: str, *changes: str) -> None:
        """Changes a model's table and its watermark, as if the model's own build had done so."""
        for change in changes:
            self.spark.sql(change.format(self.built(kind)))
        properties = self.properties(kind)
        mark = json.loads(properties["strandline.watermark"])
        mark["snapshot"] = properties["current-snapshot-id"]
        self.set(kind, "strandline.watermark", HIDDEN.join(json.dumps(mark)))

    def built(self, kind: str) -> str:
        return f"{self.project.schema}.{self.models[kind]}"

    def properties(self, kind: str) -> dict[str, str]:
        """Returns the decoded properties of a model's table."""
        found = self.spark.sql(f"show tblproperties {self.built(kind)}").collect()
        return {one[0]: one[1].replace(HIDDEN, "") for one in found}

    def set(self, kind: str, name: str, value: str) -> None:
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        self.spark.sql(f"alter table {self.built(kind)} set tblproperties ('{name}' = '{text}')")

    def await_turn(self, *key: int | str, builds: int) -> None:
        """Sets the models' turn so that the last of the given number of builds checks the key."""
        texts = ", ".join(f"'{part}'" for part in key)
        [found] = self.spark.sql(f"select pmod(xxhash64({texts}), {TURNS}) as bucket").collect()
        for kind in self.models:
            self.set(kind, "strandline.turn", str((found.bucket + 1 - builds) % TURNS))

    def hold_day(self, kind: str) -> None:
        """Records that the model's daily check was done today; near midnight, it waits first."""
        now = datetime.now(UTC)
        until_midnight = timedelta(days=1) - timedelta(hours=now.hour, minutes=now.minute)
        if until_midnight <= timedelta(minutes=1):
            time.sleep(60)
            now = datetime.now(UTC)
        self.set(kind, "strandline.day", f"{now:%Y-%m-%d}")

    @property
    def name(self) -> str:
        return f"{self.raw.schema}.{self.table}"

    def plan_build(self, *options: str) -> Command:
        """Returns a build of models and tests for a scenario to yield; its answer is the tests."""
        return Command(("build", *options), tuple(self.models.values()), self._of_build)

    def plan_proof(self, *options: str) -> Command:
        """Returns a run of the tests for a scenario to yield."""
        return Command(("test", *options), tuple(self.models.values()), self._own)

    def _of_build(self, results: Mapping[str, Result]) -> dict[str, Result]:
        for name in self.models.values():
            assert results[name].status == "success", results[name].message
        return self._own(results)

    def _own(self, results: Mapping[str, Result]) -> dict[str, Result]:
        return {
            name.removesuffix(f"_{model}") + ("_of_history" if kind == "history" else ""): one
            for kind, model in self.models.items()
            for name, one in results.items()
            if one.tested == model and name != model
        }

    def checks(self) -> list[str]:
        """Returns the SQL of the checks that dbt's newest command ran on this object's tables.

        A build runs all checks of a model in one statement.
        """
        own = re.compile(rf"\b{self.table}(_latest|_history)?\b")
        return [
            check
            for asked in self.project.asked
            if own.search(asked)
            for check in asked.split(" as failures\nunion all\n")
            if "collect_set" in check
        ]


def named(test: Any, model: str) -> dict[str, Any]:
    """Returns a test with a unique name."""
    [(kind, more)] = test.items() if isinstance(test, dict) else [(test, {})]
    name = more.get("name", kind)
    return {f"strandline.{kind}": {**more, "name": f"{name}_{model}"}}


def red(results: Mapping[str, Result]) -> set[str]:
    """Returns the tests that warned or failed; none may have ended with an error."""
    assert results
    assert {one.status for one in results.values()} <= {"pass", "warn", "fail"}, results
    return {name for name, one in results.items() if one.status != "pass"}


def days(first: int, last: int, keys: Sequence[int] = (1, 2, 3)) -> list[Row]:
    return [row(key, day, f"v{day}") for day in range(first, last + 1) for key in keys]

"""A raw table with a snapshot, a history and all their proofs, built batch by batch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.icebergrows import IcebergRows
from tests.dbt.rawtables import RawSchema, Row, row_hash, sync_time
from tests.dbt.scenarios import Command

COLUMNS = "id int, at timestamp, payload string"
KEY = {"primary_key": "id", "cursor_field": "at"}
RAW_TESTS = [
    "cursor_conflict",
    "exact_redelivery",
    "duplicate_in_batch",
    "redelivered_at_boundary",
    "no_cursor_regression",
    "cursor_not_null",
    "no_future_cursor",
]


def proved_again(
    spark: SparkSession, raw: RawSchema, folder: Path, builds: int | None
) -> DbtProject:
    """Returns a project in which everything is proved again within so many builds.

    Args:
        builds: None leaves it to the package.
    """
    variables: dict[str, Any] = {"strandline__raw_schema": raw.schema}
    if builds is not None:
        variables["strandline__proved_again_within"] = builds
    schema = raw.schema.replace("raw_", "analytics_", 1)
    return DbtProject(
        spark, folder, schema=schema, raw_schema=raw.schema, settings={"vars": variables}
    )


def row(key: int | None, day: int | None, payload: str = "a", **more: Any) -> Row:
    """Returns a row whose cursor is midnight of a day."""
    return {"id": key, "at": None if day is None else sync_time(day), "payload": payload, **more}


class Proving:
    """One raw table, its models, and all their tests.

    Args:
        models: the kinds of models, `latest` and `history`.
        select: what the models select, of `{source}`.
        tests: generic tests of the raw table.
    """

    def __init__(
        self,
        project: DbtProject,
        raw: RawSchema,
        table: str,
        models: Sequence[str] = ("latest", "history"),
        tests: Sequence[Any] = RAW_TESTS,
        select: str = "select * from {source}",
    ) -> None:
        self.project, self.raw, self.table = project, raw, table
        self.spark = project.spark
        raw.create(table, COLUMNS)
        self.batch = 0
        self.models = {kind: f"{table}_{kind}" for kind in models}
        source = f"{{{{ source('shop', '{table}') }}}}"
        for kind, name in self.models.items():
            project.write(
                f"models/{name}.sql",
                f"{{{{ config(materialized='deduped_{kind}', primary_key='id', "
                f"cursor_field='at') }}}}\n{select.format(source=source)}",
            )
        self.tests = [f"strandline.{one}" if isinstance(one, str) else one for one in tests]
        self.meta: dict[str, Any] = dict(KEY)
        self.write()

    def write(self) -> None:
        """Writes sources and tests as they are configured now."""
        current = {"strandline.unique_key": {"arguments": {"row_condition": "is_current"}}}
        tests = {
            "latest": ["strandline.unique_key", "strandline.latest_matches_raw"],
            "history": [current, "strandline.history_matches_raw"],
        }
        source = {
            "name": self.table,
            "config": {"meta": {"strandline": self.meta}},
            "data_tests": self.tests,
        }
        self.project.write(
            f"models/{self.table}.yml",
            {
                "sources": [{"name": "shop", "schema": self.raw.schema, "tables": [source]}],
                "models": [
                    {"name": name, "data_tests": tests[kind]} for kind, name in self.models.items()
                ],
            },
        )

    def append(self, *rows: Row, mode: str | None = None, low: int | None = None) -> int:
        """Appends the next batch as a sync does, with its ledger row; returns its number.

        Args:
            low: the day at which its window began; by default that of its first row.
        """
        self.batch += 1
        days = [one["at"] for one in rows if one["at"] is not None]
        sync = {"strandline.sync": json.dumps({"mode": mode})} if mode else {}
        self._commit([{**one, "_cq_batch": self.batch} for one in rows], sync)
        began = sync_time(low) if low is not None else min(days, default=None)
        entry = {
            "batch": self.batch,
            "cursor_field": "at",
            "cursor_type": "timestamp",
            "cursor_low": f"{began:%Y-%m-%d %H:%M:%S}" if began and self.batch > 1 else None,
            "rows_appended": len(rows),
            "mode": mode or "incremental",
        }
        self.raw.syncs(self.table, [entry])
        return self.batch

    def append_at_once(self, rows: Sequence[int]) -> None:
        """Appends a batch for each number, in one commit as if those of all but one had expired.

        Args:
            rows: how many rows each has, says the ledger; in raw it has one.
        """
        first = self.batch + 1
        self.batch += len(rows)
        batches = range(first, self.batch + 1)
        self._commit([{**row(n, 1), "_cq_batch": n} for n in batches], {})
        entries = zip(batches, rows, strict=True)
        self.raw.syncs(self.table, [{"batch": n, "rows_appended": told} for n, told in entries])

    def slip_in(self, *rows: Mapping[str, Any]) -> None:
        """Appends rows of any batch in a commit that looks like the loader's next batch."""
        self.batch += 1
        self._commit(rows, {})

    def _commit(self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, str]) -> None:
        target = IcebergRows(self.spark, self.name)
        stamped = [
            {
                "_cq_source_name": "shop",
                "_cq_sync_time": sync_time(one["_cq_batch"]),
                "_cq_seq": place,
                "_cq_row_hash": row_hash(one),
                "_cq_deleted": False,
                "_cq_generation": 1,
                **one,
            }
            for place, one in enumerate(rows)
        ]
        values = [[one.get(name) for name in target.columns] for one in stamped]
        target.append(values, {"strandline.batch": str(self.batch), **summary})

    def forge(self, kind: str, *changes: str) -> None:
        """Changes a model's table, so that it seems that its own build did."""
        name = f"{self.project.schema}.{self.models[kind]}"
        for change in changes:
            self.spark.sql(change.format(name))
        assert self.project.operation("confirm_watermark", name=name)

    @property
    def name(self) -> str:
        return f"{self.raw.schema}.{self.table}"

    def prove(self, *more: str) -> dict[str, Result]:
        """Runs the tests, all or those that `--select` names; returns the results by test."""
        select = [] if "--select" in more else ["--select", *self.chosen]
        return self._own(self.project.run("test", *select, *more))

    def plan_proof(self, *options: str, select: str = "") -> Command:
        """Returns :meth:`prove` for a scenario to yield."""
        nodes = (select,) if select else tuple(self.chosen)
        return Command(("test", *options), nodes, self._own)

    def _own(self, results: Mapping[str, Result]) -> dict[str, Result]:
        """Returns our tests, and hooks that failed, which are of no table."""
        own = {self.table, *self.models.values(), ""}
        return {self.short(name): one for name, one in results.items() if one.tested in own}

    def merge(self, *more: str) -> None:
        """Builds the models, without their tests."""
        command = self.plan_merge(*more)
        command.read(self.project.run("run", "--select", *command.nodes, *more))

    def plan_merge(self, *more: str) -> Command:
        """Returns :meth:`merge` for a scenario to yield."""

        def read(results: Mapping[str, Result]) -> None:
            names = {*self.models.values(), *(name for name in results if not results[name].tested)}
            assert {results[name].status for name in names} == {"success"}, results

        return Command(("run", *more), tuple(self.models.values()), read)

    @property
    def asked(self) -> list[str]:
        """The statements of dbt's newest command that name one of our tables or tests."""
        others = {file.stem for file in (self.project.folder / "models").glob("*.yml")}
        alike = {other for other in others if re.match(rf"{self.table}(?![a-z0-9])", other)}
        assert alike <= {self.table}, "statements about tables of such names look alike"
        own = re.compile(rf"[._`]{self.table}(?![a-z0-9])")
        return [asked for asked in self.project.asked if own.search(asked)]

    @property
    def chosen(self) -> list[str]:
        return [*self.models.values(), f"source:shop.{self.table}"]

    def short(self, name: str) -> str:
        """Returns a test's generic name, with its model if there are several of it."""
        for test in (*RAW_TESTS, "latest_matches_raw", "history_matches_raw"):
            if test in name:
                return test
        if "unique_key" in name:
            return f"unique_key_{'history' if 'history' in name else 'latest'}"
        return name

    def records(self) -> dict[str, dict[str, Any]]:
        """Returns the newest record by test."""
        found: dict[str, dict[str, Any]] = {}
        for one in sorted(self.project.rows("_cq_proofs"), key=lambda one: one["proved_at"]):
            if one["raw_table"] == self.name:
                found[self.short(one["proof"].split(".")[2])] = one
        return found

    def reason(self, test: str) -> str | None:
        """Returns why a test proved everything when it was last recorded."""
        said: str | None = self.records()[test]["reason"]
        return said


def red(results: Mapping[str, Result]) -> set[str]:
    """Returns the tests that did not pass; none may have broken off."""
    assert {one.status for one in results.values()} <= {"pass", "warn", "fail"}, results
    return {name for name, one in results.items() if one.status != "pass"}


def days(first: int, last: int, keys: Sequence[int] = (1, 2, 3)) -> list[Row]:
    return [row(key, day, f"v{day}") for day in range(first, last + 1) for key in keys]

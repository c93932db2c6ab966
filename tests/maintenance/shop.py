"""A shop whose orders change: its database, its loader project and its dbt project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbt.cli.main import dbtRunner

from loader.lake.commits import Commit, newest_commit
from tests.dbt.dbtproject import DbtProject, Result
from tests.services import Database
from tests.sync.project import Project, Ran

ORDERS = 20
CHANGED = 5
KEY = {"unique_key": "id", "cursor_field": "at"}
ON_RAW = ("no_cursor_ties", "no_duplicates")
TESTS = (*ON_RAW, "inclusive_cursor", "state_consistent", "batches_complete", "matches_raw")
MODEL = """
{{{{ config(
    materialized='{kind}', unique_key='id', meta={{'strandline': {{'cursor_field': 'at'}}}}
) }}}}
select * from {{{{ source('shop', 'orders') }}}}
"""


class Parsed(DbtProject):
    """A dbt project that is parsed again only after a file was written, because parsing is slow."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._manifest: Any = None
        self._written: list[str] = []
        self._own = 0
        super().__init__(*given, **named)

    def write(self, path: str, content: str | Mapping[str, Any]) -> None:
        self._manifest = None
        self._written.append(path)
        super().write(path, content)

    def keep(self) -> None:
        """Marks the files written so far as part of the project, which :meth:`restore` keeps."""
        self._own = len(self._written)

    def restore(self) -> None:
        """Removes the files that were written since :meth:`keep`."""
        for path in self._written[self._own :]:
            (self.folder / path).unlink(missing_ok=True)
            self._manifest = None
        del self._written[self._own :]

    def run(self, *command: str, manifest: Any = None) -> dict[str, Result]:
        return super().run(*command, manifest=manifest or self.manifest())

    def manifest(self) -> Any:
        """Returns the project, parsed from its current files."""
        if self._manifest is None:
            self._manifest = self.parse()
        return self._manifest


@dataclass
class Shop:
    """A database of orders, a loader project, a dbt project.

    Attributes:
        version: how often the orders changed.
    """

    project: Project
    database: Database
    folder: Path
    version: int = 0
    _dbt: Parsed | None = field(default=None, repr=False)

    def open(self, **options: Any) -> None:
        """Creates the orders and syncs them. Their cursors are times on 1 January 2025."""
        self.database.execute(
            "create table orders (id int primary key, note text, at timestamp, tags int[])",
            "insert into orders select n, 'n' || n, timestamp '2025-01-01' + n * interval '1 ms' "
            f"from generate_series(1, {ORDERS}) n",
        )
        table = {"cursor_field": "at", **options}
        self.project.jdbc(self.database, ["orders"], table_options={"orders": table})
        self.project.run()

    def change(self) -> None:
        """Updates the next five orders. After four calls, all orders were updated."""
        self.version += 1
        first = self.version * CHANGED % ORDERS
        self.database.execute(
            f"update orders set note = 'v{self.version}', at = timestamp '2025-01-01' "
            f"+ {self.version} * interval '1 minute' + id * interval '1 ms' "
            f"where id > {first} and id <= {first + CHANGED}"
        )

    def compact(self, *arguments: str) -> Ran:
        """Runs `loader compact`, which must succeed."""
        ran = self.project.loader("compact", *arguments)
        assert ran.code == 0, ran.text
        return ran

    def freed(self, ran: Ran, table: str = "shop.orders") -> dict[str, Any]:
        """Returns a table's line of the report."""
        kinds = ("compacted", "preview")
        return next(e for e in ran.events if e["event"] in kinds and e["table"] == table)

    def versions(self) -> list[tuple[Any, ...]]:
        """Returns key, batch and note of each version in the raw table."""
        return self.project.rows("select id, _cq_batch, note from raw.orders order by 1, 2")

    def latest(self) -> list[tuple[Any, ...]]:
        """Returns the newest version of each key in the raw table."""
        return self.project.rows(
            "select id, max_by(note, struct(_cq_generation, at, _cq_batch, _cq_seq)) "
            "from raw.orders group by id order by id"
        )

    def head(self) -> Commit:
        """Returns the commit of the newest batch."""
        return newest_commit(self.project.lake(), "orders")

    @property
    def dbt(self) -> Parsed:
        """The dbt project with tests of the raw table; :meth:`model` adds models."""
        if self._dbt is None:
            name = self.project.schema
            self._dbt = Parsed(
                self.project.spark, self.folder, schema=f"mart_{name}", raw_schema=name
            )
            table = {
                "name": "orders",
                "config": {"meta": {"strandline": KEY}},
                "data_tests": [f"strandline.{test}" for test in ON_RAW],
            }
            source = {"name": "shop", "schema": name, "tables": [table]}
            self._dbt.write("models/shop.yml", {"sources": [source]})
            self._dbt.keep()
        return self._dbt

    def model(self, name: str, kind: str) -> None:
        """Adds a model of the orders with this materialization, and builds it."""
        self.dbt.write(f"models/{name}.sql", MODEL.format(kind=kind))
        tested = {"name": name, "data_tests": ["strandline.matches_raw"]}
        self.dbt.write(f"models/{name}.yml", {"models": [tested]})
        results = self.dbt.run("run", "--select", name)
        assert {one.status for one in results.values()} == {"success"}, results

    def run_tests(self, *failing: str, by: str = "") -> dict[str, list[dict[str, Any]]]:
        """Runs dbt tests, of which exactly `failing` must fail. Returns their failing rows.

        Args:
            by: the tests to run, separated by spaces; by default all tests.
        """
        chosen = ["--select", *(f"test_name:{name}" for name in by.split())] if by else []
        # The package's models are not built; the tests of ledger and state need only their tables.
        results = self.dbt.run("test", *chosen, "--exclude", "cq_freshness+")
        assert len(results) >= len(by.split()), results
        found = {
            next(test for test in TESTS if test in name): one
            for name, one in results.items()
            if one.status not in ("pass", "warn")
        }
        assert set(found) == set(failing), results
        return {test: self.dbt.failing_rows(one) for test, one in found.items()}

    def operation(self, name: str, **arguments: Any) -> str:
        """Runs a run-operation that must succeed; returns what it logged."""
        ended, log = self._operate(name, arguments)
        assert ended, log
        return log

    def refused(self, name: str, **arguments: Any) -> str:
        """Runs a run-operation that must fail; returns its message."""
        ended, log = self._operate(name, arguments)
        assert not ended, log
        return log

    def _operate(self, name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        manifest, folder = self.dbt.manifest(), str(self.dbt.folder)
        reported: list[str] = []
        runner = dbtRunner(manifest, callbacks=[lambda event: reported.append(event.info.msg)])
        outcome = runner.invoke(
            [
                *("run-operation", name, "--args", json.dumps(arguments)),
                *("--project-dir", folder, "--profiles-dir", folder),
                *("--log-path", f"{folder}/logs", "--target-path", f"{folder}/target", "--quiet"),
                "--no-write-json",
            ]
        )
        if outcome.exception is not None:
            raise outcome.exception
        return outcome.success, "\n".join(reported)

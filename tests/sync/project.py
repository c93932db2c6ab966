"""A loader project for one test, whose commands run in the process of the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from loader.cli import main
from loader.lake.lake import Lake
from tests.services import Database

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """The result of a command.

    Attributes:
        code: the exit code.
        events: the JSON lines of the output.
        text: the whole output.
    """

    code: int
    events: list[dict[str, Any]]
    text: str

    def table(self, name: str) -> dict[str, Any]:
        """Returns a table's line of the summary."""
        return next(e for e in self.events if e["event"] == "table" and e["table"] == name)

    @property
    def errors(self) -> list[str]:
        """Returns each error as "where: what. remedy"."""
        return [
            f"{e['where']}: {e['what']}. {e['remedy']}"
            for e in self.events
            if e["event"] == "error"
        ]

    @property
    def warnings(self) -> list[str]:
        """Returns the texts of all warnings."""
        return [e["text"] for e in self.events if e["event"] == "warning"]


@dataclass
class Project:
    """A folder with a loader.yml whose raw tables are in their own namespace.

    Attributes:
        lakes: destinations other than `lake`, each with the options in which it differs from it.
    """

    folder: Path
    spark: SparkSession
    schema: str
    sources: list[dict[str, Any]] = field(default_factory=list)
    lakes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def jdbc(self, database: Database, tables: list[str], name: str = "shop", **spec: Any) -> None:
        """Adds a source that reads a database."""
        own = {"url": database.url, "user": database.user, "password": database.password, **spec}
        self.add(name, "jdbc", tables, own)

    def add(self, name: str, path: str, tables: list[str], own: Mapping[str, Any]) -> None:
        """Adds a source document."""
        self.sources = [source for source in self.sources if source["name"] != name]
        self.sources.append(
            {
                "name": name,
                "path": path,
                "tables": tables,
                "destinations": ["lake"],
                "spec": dict(own),
            }
        )
        self.write()

    def write(self) -> None:
        """Writes loader.yml."""
        lake = {"schema": self.schema, "profiles_dir": str(ROOT / "profiles")}
        documents = [{"kind": "source", "spec": source} for source in self.sources]
        for name, own in {"lake": {}, **self.lakes}.items():
            spec = {"name": name, "path": "spark", "spec": {**lake, **own}}
            documents.append({"kind": "destination", "spec": spec})
        (self.folder / "loader.yml").write_text(yaml.safe_dump_all(documents, sort_keys=False))

    def loader(self, *arguments: str, options: tuple[str, ...] = ()) -> Ran:
        """Runs a command as a user would."""
        config = str(self.folder / "loader.yml")
        result = CliRunner().invoke(
            main, ["-c", config, "--log-format", "json", *options, *arguments]
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        lines = [line for line in result.output.splitlines() if line.startswith("{")]
        # If dbt has run, its JSON lines have no `event`.
        events = [event for event in map(json.loads, lines) if "event" in event]
        return Ran(result.exit_code, events, result.output)

    def run(self, *arguments: str) -> Ran:
        """Runs `loader run`, which must succeed."""
        ran = self.loader("run", *arguments)
        assert ran.code == 0, ran.text
        return ran

    def lake(self) -> Lake:
        """Returns the project's lake."""
        return Lake(self.spark, self.schema)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a query in which `raw` is the project's namespace."""
        return [
            tuple(row) for row in self.spark.sql(sql.replace("raw.", f"{self.schema}.")).collect()
        ]

    def state(self, table: str) -> dict[str, Any]:
        """Returns the newest state value of a table, without the table's id."""
        [(value,)] = self.rows(
            f"select max_by(value, version) from raw._cq_state where key = '{table}'"
        )
        found: dict[str, Any] = json.loads(value)
        del found["table_id"]
        return found

    def snapshots(self, table: str) -> int:
        """Counts a table's Iceberg snapshots, staged ones included."""
        return len(self.rows(f"select snapshot_id from raw.{table}.snapshots"))

"""Runs dbt, in this process, on a project in its own folder that installs the package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dbt.adapters.factory import FACTORY
from dbt.cli.main import dbtRunner
from dbt_common.tests import enable_test_caching
from pyspark.sql import SparkSession

# Macros are parsed once per process instead of once per project.
enable_test_caching()

PACKAGE = Path(__file__).resolve().parents[2]
SESSION = {
    "type": "spark",
    "method": "session",
    "host": "NA",
    "threads": 2,
    "server_side_parameters": {"spark.sql.catalogImplementation": "in-memory"},
}

ALIKE = {
    *("run", "test", "build", "seed", "--select", "--exclude", "--exclude-resource-type"),
    *("--full-refresh", "--no-populate-cache"),
}
"""Commands and options for which dbt parses a project in the same way, so they share a manifest."""


@dataclass(frozen=True)
class Result:
    """dbt's result for one node.

    Args:
        name: the model's or test's name.
        status: success, error, pass, fail, warn or skipped.
        message: dbt's message, or the adapter's.
        failures: number of failing rows of a test.
        sql: the compiled statement.
        seconds: how long it took.
        tested: the model or source table to which a generic test is attached.
        stored: the table of a test's failing rows, with `store_failures`.
    """

    name: str
    status: str
    message: str
    failures: int | None
    sql: str
    seconds: float
    tested: str
    stored: str | None


class DbtProject:
    """Writes files, installs the package by a local path, runs commands.

    A command reuses the manifest of the previous one until a file changes: parsing a project takes
    half of the Python time of a small command.

    Args:
        spark: the session that dbt will find.
        folder: where the project lives; nothing is written elsewhere.
        schema: the schema of its target.
        raw_schema: the schema that the package's variables name.
        settings: more entries for ``dbt_project.yml``.
        output: the target, without its schema; by default the suite's own session.

    Attributes:
        artifacts: whether dbt writes manifest.json and its other artifacts, for `retry` and
            `--state`. Writing them takes most of the time of a small command.
    """

    artifacts = False
    _known: tuple[Any, Any] = (None, None)

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        *,
        schema: str,
        raw_schema: str,
        name: str = "probe",
        settings: Mapping[str, Any] | None = None,
        output: Mapping[str, Any] | None = None,
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.schema = schema
        self.raw_schema = raw_schema
        more = dict(settings or {})
        self.write(
            "dbt_project.yml",
            {
                "name": name,
                "version": "1.0.0",
                "profile": f"{name}_profile",
                # Small tables would always be rebuilt, but it is merges that can go wrong.
                "vars": {
                    "strandline__rebuild_up_to_rows": 0,
                    **more.pop("vars", {"strandline__raw_schema": raw_schema}),
                },
                "flags": {"send_anonymous_usage_stats": False},
                "dispatch": [
                    {"macro_namespace": "dbt", "search_order": [name, "strandline", "dbt"]}
                ],
                **more,
            },
        )
        self.write("packages.yml", {"packages": [{"local": str(PACKAGE)}]})
        self.write(
            "profiles.yml",
            {
                f"{name}_profile": {
                    "target": "dev",
                    "outputs": {"dev": {**(output or SESSION), "schema": schema}},
                }
            },
        )

    def write(self, path: str, content: str | Mapping[str, Any]) -> None:
        """Writes a file of the project; a mapping as YAML."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
        file.write_text(text)

    def install(self) -> None:
        """``dbt deps``: links the package."""
        self._invoke("deps")

    def run(self, *command: str, manifest: Any = None) -> dict[str, Result]:
        """Runs a dbt command; returns the results by node name, or raises what dbt raised."""
        self._ensure_installed()
        if manifest is None and not self.artifacts and _alike(command):
            outcome = self._read_once(*command)
        else:
            outcome = self._invoke(*command, manifest=manifest)
        return {result.name: result for result in map(_result, outcome.result.results)}

    def parse(self) -> Any:
        """Returns the manifest, for further runs: parsing takes longer than a run."""
        self._ensure_installed()
        return self._invoke("parse").result

    def document(self) -> None:
        """``dbt docs generate``: writes target/catalog.json."""
        if not self._invoke("docs", "generate").success:
            raise AssertionError("dbt docs generate failed")

    def operation(self, name: str, /, **arguments: Any) -> bool:
        """Runs a run-operation; returns whether it succeeded."""
        self._ensure_installed()
        return bool(self._invoke("run-operation", name, "--args", json.dumps(arguments)).success)

    def rows(self, relation: str) -> list[dict[str, Any]]:
        """Returns the rows of a table in the target schema, or of a name with a schema."""
        name = relation if "." in relation else f"{self.schema}.{relation}"
        return [row.asDict(recursive=True) for row in self.spark.table(name).collect()]

    def failing_rows(self, result: Result) -> list[dict[str, Any]]:
        """Returns the failing rows of a test, as stored in a table or by the test's SQL."""
        found = self.spark.table(result.stored) if result.stored else self.spark.sql(result.sql)
        return [row.asDict(recursive=True) for row in found.collect()]

    def snapshots(self, table: str) -> list[int]:
        """Returns the Iceberg snapshots of a table in the target schema."""
        frame = self.spark.sql(f"select snapshot_id from {self.schema}.{table}.snapshots")
        return [row[0] for row in frame.collect()]

    def _ensure_installed(self) -> None:
        if not (self.folder / "dbt_packages").exists():
            self.install()

    def _read_once(self, *command: str) -> Any:
        """Runs a command with the manifest of the previous one, if no file has changed since."""
        files, (known, manifest) = self._files(), self._known
        self._known = (None, None)
        outcome = self._invoke(*command, manifest=manifest if files == known else None)
        [adapter] = FACTORY.adapters.values()
        read: Any = adapter.get_macro_resolver()
        kinds = {node.config.materialized for node in read.nodes.values()}
        # dbt injects an ephemeral model into a manifest only once.
        if "ephemeral" not in kinds:
            self._known = (files, read)
        return outcome

    def _files(self) -> set[tuple[Path, int, int]]:
        """Returns the project's own files, with their times and sizes."""
        made = ("target", "logs", "dbt_packages")
        tops = [one for one in self.folder.iterdir() if one.name not in made]
        files = [file for top in tops for file in (top, *top.rglob("*")) if file.is_file()]
        return {(file, (of := file.stat()).st_mtime_ns, of.st_size) for file in files}

    def _invoke(self, *command: str, manifest: Any = None) -> Any:
        folder = str(self.folder)
        places = ["--project-dir", folder, "--log-path", f"{folder}/logs", "--quiet"]
        # dbt checks the log file's size for each line, which takes a quarter of its own time.
        places += ["--log-level-file", "none"]
        if command[0] != "deps":
            places += ["--target-path", f"{folder}/target"]
            places += [] if self.artifacts else ["--no-write-json"]
        self.asked: list[str] = []
        runner = dbtRunner(manifest=manifest, callbacks=[self._record_statement])
        outcome = runner.invoke([*command, "--profiles-dir", folder, *places])
        if outcome.exception is not None:
            raise outcome.exception
        return outcome

    def _record_statement(self, event: Any) -> None:
        """Collects the SQL statements of the newest invocation."""
        if event.info.name == "SQLQuery":
            self.asked.append(event.data.sql)


def _alike(command: Sequence[str]) -> bool:
    return {word for word in command if word.startswith("-")} | {command[0]} <= ALIKE


def _result(run: Any) -> Result:
    return Result(
        name=run.node.name,
        status=str(run.status),
        message=run.message or "",
        failures=run.failures,
        sql=getattr(run.node, "compiled_code", None) or "",
        seconds=run.execution_time,
        tested=_tested(run.node),
        stored=run.node.relation_name if getattr(run.node, "should_store_failures", 0) else None,
    )


def _tested(node: Any) -> str:
    depends = getattr(node, "depends_on", None)
    known = getattr(node, "attached_node", None) or next(iter(getattr(depends, "nodes", ())), "")
    return str(known).rpartition(".")[2]


def as_json(value: Any) -> str:
    """Returns a value as canonical JSON, to compare rows that hold maps and lists."""
    return json.dumps(value, default=str, sort_keys=True)

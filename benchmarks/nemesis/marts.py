"""The dbt project: each table's latest table and history, their definitions, and the tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.nemesis.findings import Violation, same_rows
from benchmarks.nemesis.tables import Shape
from tests.dbt.dbtproject import DbtProject, as_json
from tests.sync.project import Project

# Without no_cursor_ties: schedules contain updates that do not change the cursor, which are ties.
# The tests of ledger and state are the package's own.
_PROOFS = ["strandline.unique_key", "strandline.matches_raw"]
_MODEL = """
{{{{ config(
    materialized='{kind}',
    unique_key={key},
    meta={{'strandline': {{'cursor_field': '{cursor}'}}}},
) }}}}
select * from {{{{ source('shop', '{table}') }}}}
"""
_DEFINITION = """
{{{{ config(materialized='table', file_format='iceberg') }}}}
{{{{ strandline.{macro}(source('shop', '{table}'), unique_key={key}, cursor_field='{cursor}') }}}}
"""


class Marts:
    """Builds tables in this process, and compares them.

    Attributes:
        project: the dbt project, whose folder a worker's dbt also uses.
    """

    def __init__(self, project: Project, folder: Path, shapes: Mapping[str, Shape]) -> None:
        self.schema = f"mart_{project.schema}"
        self.tables = tuple(shapes)
        self.project = DbtProject(
            project.spark, folder, schema=self.schema, raw_schema=project.schema, name="nemesis"
        )
        tables = []
        for table, shape in shapes.items():
            key = list(shape.key)
            meta = {"strandline": {"unique_key": key, "cursor_field": shape.cursor}}
            tables.append({"name": table, "config": {"meta": meta}})
            given = {"key": key, "cursor": shape.cursor, "table": table}
            for suffix, kind in (("latest", "deduped_latest"), ("history", "deduped_history")):
                model = _MODEL.format(kind=kind, **given)
                self.project.write(f"models/built/{table}_{suffix}.sql", model)
                definition = _DEFINITION.format(macro=kind, **given)
                self.project.write(f"models/defined/{table}_{suffix}_defined.sql", definition)
        source = {"name": "shop", "schema": project.schema, "tables": tables}
        models = [
            {"name": f"{table}_{suffix}", "data_tests": _PROOFS}
            for table in shapes
            for suffix in ("latest", "history")
        ]
        self.project.write("models/shop.yml", {"sources": [source], "models": models})
        self.manifest: Any = None

    def build(self) -> None:
        """Merges new batches into latest tables and histories."""
        self._good("run", "--select", "path:models/built")

    def compare(self) -> None:
        """Merges new batches, and compares the tables with their definitions.

        Raises:
            Violation: if a table differs from its definition.
        """
        self.build()
        self._good("run", "--select", "path:models/defined")
        for table in self.tables:
            for suffix in ("latest", "history"):
                name = f"{table}_{suffix}"
                same_rows(name, self._rows(name), self._rows(f"{name}_defined"))

    def prove(self) -> None:
        """Runs the package's tests.

        Raises:
            Violation: if a test fails.
        """
        own = ("test_name:batches_complete", "test_name:state_consistent")
        windows = "test_name:inclusive_cursor"
        self._good("test", "--select", "path:models/built", *own, windows)

    def arguments(self) -> list[str]:
        """Returns the arguments for a build by dbt in another process."""
        folder = str(self.project.folder)
        return [
            "run",
            "--select",
            "path:models/built",
            *("--profiles-dir", folder, "--project-dir", folder, "--quiet"),
            *("--target-path", f"{folder}/target-elsewhere", "--log-path", f"{folder}/logs"),
        ]

    def _good(self, *command: str) -> None:
        if self.manifest is None:
            self.manifest = self.project.parse()
        results = self.project.run(*command, manifest=self.manifest)
        bad = {n: r.message[:600] for n, r in results.items() if r.status in ("fail", "error")}
        if bad:
            raise Violation(f"dbt {command[0]}: {bad}")

    def _rows(self, name: str) -> list[str]:
        return [as_json(row) for row in self.project.rows(name)]

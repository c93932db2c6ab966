"""The dbt project: a snapshot and a history of each table, their definitions, and the proofs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.nemesis.findings import Violation, same_rows
from benchmarks.nemesis.tables import Shape
from tests.dbt.dbtproject import DbtProject, as_json
from tests.sync.project import Project

# Not no_cursor_ties: an update that leaves its cursor alone is one, and schedules have such. Those
# of ledger and state are the package's own.
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
    """Builds and compares, in this process.

    Attributes:
        project: what `dbt` is run with; its folder serves a worker's dbt as well.
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
        """Snapshots and histories, merged."""
        self._good("run", "--select", "path:models/built")

    def compare(self) -> None:
        """Merges, defines anew, and compares.

        Raises:
            Violation: where a table is not what its definition says.
        """
        self.build()
        self._good("run", "--select", "path:models/defined")
        for table in self.tables:
            for suffix in ("latest", "history"):
                name = f"{table}_{suffix}"
                same_rows(name, self._rows(name), self._rows(f"{name}_defined"))

    def prove(self) -> None:
        """Runs the package's proofs.

        Raises:
            Violation: where one of them fails.
        """
        own = ("test_name:batches_complete", "test_name:state_consistent")
        windows = "test_name:inclusive_cursor"
        self._good("test", "--select", "path:models/built", *own, windows)

    def arguments(self) -> list[str]:
        """What a dbt in another process is called with, for a build."""
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

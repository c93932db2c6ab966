"""A project with one raw table per test case, to which the cases add models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import RawSchema, Row
from tests.dbt.scenarios import Command

COLUMNS = "id int, cursor int, status string"
META = (
    "_cq_source_name, _cq_sync_time, _cq_batch, _cq_seq, _cq_row_hash, _cq_deleted, _cq_generation"
)
STAGED = f"select id, cursor, %s, {META} from {{{{ source('shop', '%s') }}}}"
OURS = ("cursor_field", "row_filter", "delete_stale", "as_of", "strict")
READS = "select * from {{ source('shop', '%s') }}"


def row(key: int, cursor: int, status: str | None = "open", **more: Any) -> Row:
    return {"id": key, "cursor": cursor, "status": status, **more}


def gone(key: int, cursor: int) -> Row:
    """Returns a tombstone, which has only a key and a cursor."""
    return {"id": key, "cursor": cursor, "status": None, "_deleted": True}


class Shop:
    """One raw table per case, and the models that the cases add.

    Attributes:
        unproven: models that were built since the last call of :meth:`prove`.
    """

    def __init__(self, project: DbtProject, raw: RawSchema, tables: Sequence[str]) -> None:
        self.project, self.raw = project, raw
        self.unproven: set[str] = set()
        for table in tables:
            raw.create(table, COLUMNS)
        self.project.write(
            "models/sources.yml",
            {
                "sources": [
                    {"name": "shop", "schema": raw.schema, "tables": [{"name": t} for t in tables]}
                ]
            },
        )

    def model(self, name: str, select: str, kind: str = "deduped_latest", **config: Any) -> None:
        """Writes a model and, for a deduped one, its `matches_raw` test."""
        settings: dict[str, Any] = {"materialized": kind}
        ours: dict[str, Any] = {}
        proof = []
        if kind.startswith("deduped"):
            settings |= {"unique_key": "id"}
            ours |= {"cursor_field": "cursor"}
            proof = ["strandline.matches_raw"]
        for key, value in config.items():
            (ours if key in OURS else settings)[key] = value
        if ours:
            settings["meta"] = {"strandline": ours}
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        self.project.write(f"models/{name}.sql", f"{{{{ config({given}) }}}}\n{select}")
        self.project.write(f"models/{name}.yml", {"models": [{"name": name, "data_tests": proof}]})

    def run(self, *command: str) -> dict[str, Result]:
        return self.project.run(*command)

    def build(self, *models: str, flags: tuple[str, ...] = ()) -> str:
        """Builds models and seeds; returns dbt's message for the last one."""
        return self.messages(*models, flags=flags)[models[-1]]

    def messages(self, *models: str, flags: tuple[str, ...] = ()) -> dict[str, str]:
        """Builds models and seeds by one command; returns dbt's message for each."""
        return self._execute(self.plan_messages(*models, flags=flags))

    def plan_build(self, *models: str, flags: tuple[str, ...] = ()) -> Command:
        """Returns :meth:`build` for a scenario to yield."""
        command = self.plan_messages(*models, flags=flags)
        return replace(command, read=lambda results: command.read(results)[models[-1]])

    def plan_messages(self, *models: str, flags: tuple[str, ...] = ()) -> Command:
        """Returns :meth:`messages` for a scenario to yield."""

        def read(results: Mapping[str, Result]) -> dict[str, str]:
            for name in models:
                built = results[name].status == "success"
                (self.unproven.add if built else self.unproven.discard)(name)
            return {name: re.sub(r"\s+", " ", results[name].message) for name in models}

        return Command(("build", "--exclude-resource-type", "test", *flags), models, read)

    def _execute(self, command: Command) -> Any:
        command_name, *options = command.words
        return command.read(self.run(command_name, "--select", *command.nodes, *options))

    def prove(self) -> None:
        """Runs the tests of the models built since the last call; all must pass."""
        models, self.unproven = sorted(self.unproven), set()
        if not models:
            return
        results = self.run("test", "--select", *models)
        wrong = {name: one.message for name, one in results.items() if one.status != "pass"}
        assert wrong == {}

    def open_ids(self, model: str) -> dict[int, str]:
        return {one["id"]: one["status"] for one in self.project.rows(model)}

    def has(self, model: str) -> bool:
        """Returns whether a model was built."""
        return self.project.spark.catalog.tableExists(f"{self.project.schema}.{model}")

    def proof(self, model: str) -> Result:
        """Runs a model's test."""
        return self.proofs(model)[model]

    def proofs(self, *models: str) -> dict[str, Result]:
        """Runs the tests of models that may be damaged; returns the results by model."""
        found: dict[str, Result] = self._execute(self.plan_proofs(*models))
        return found

    def plan_proofs(self, *models: str) -> Command:
        """Returns :meth:`proofs` for a scenario to yield."""

        def read(results: Mapping[str, Result]) -> dict[str, Result]:
            self.unproven -= set(models)
            found = [(one.tested, one) for one in results.values() if one.tested in models]
            assert len(found) == len(models), "a model has no proof, or several"
            return dict(found)

        return Command(("test",), models, read)

"""A small connector (tests/services/connector.py) as a source of a project."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.sync.project import ROOT, Project, Ran

CONNECTOR = str(ROOT / "tests" / "services" / "connector.py")
TIME = {"type": ["null", "string"], "format": "date-time"}
ITEM = {
    "id": {"type": "integer"},
    "name": {"type": ["null", "string"]},
    "updated_at": TIME,
}


def at(second: int) -> str:
    """Returns a time."""
    return f"2025-01-01T00:{second // 60:02}:{second % 60:02}+00:00"


def items(*seconds: int, name: str = "") -> list[dict[str, Any]]:
    """Returns records whose ids and times are these seconds."""
    return [{"id": n, "name": name or f"item {n}", "updated_at": at(n)} for n in seconds]


class Program:
    """The source `api` of a project."""

    path = "airbyte"
    script = CONNECTOR

    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project
        self.data = folder / "data.json"
        self.catalog = folder / "catalog.json"
        self.streams: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def stream(
        self,
        name: str,
        rows: Sequence[dict[str, Any]] = (),
        properties: Mapping[str, Any] = ITEM,
        key: Sequence[str] = ("id",),
        cursor: str | None = "updated_at",
        **more: Any,
    ) -> None:
        """Adds a stream, or replaces one."""
        self.rows[name] = [*rows]
        self.streams[name] = {
            "name": name,
            "json_schema": {"type": "object", "properties": dict(properties)},
            "supported_sync_modes": ["full_refresh", *(["incremental"] if cursor else [])],
            **({"source_defined_cursor": True, "default_cursor_field": [cursor]} if cursor else {}),
            **({"source_defined_primary_key": [[part] for part in key]} if key else {}),
            **more,
        }

    def configure(self, *tables: str, config: Mapping[str, Any] | None = None, **own: Any) -> None:
        """Writes the connector's files and the project's spec."""
        self.write()
        settings = {"data": str(self.data), "catalog": str(self.catalog), **(config or {})}
        spec = {"command": [sys.executable, self.script], "config": settings, **own}
        self.project.add("api", self.path, list(tables) or ["*"], spec)

    def write(self) -> None:
        """Writes what the connector sends."""
        self.data.write_text(json.dumps(self.rows))
        self.catalog.write_text(json.dumps({"streams": list(self.streams.values())}))

    def run(self, *arguments: str) -> Ran:
        """Writes what the connector sends, and syncs it; this must succeed."""
        self.write()
        return self.project.run(*arguments)

    def calls(self, verb: str = "read") -> list[dict[str, Any]]:
        """Returns the recorded calls of the connector with a verb."""
        path = self.data.with_suffix(".calls")
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call["verb"] == verb]

    def raw(self, table: str, columns: str = "id") -> list[tuple[Any, ...]]:
        """Returns a raw table's rows with their batch, in order."""
        return self.project.rows(
            f"select {columns}, _cq_batch from raw.{table} order by _cq_batch, _cq_seq"
        )


class Tap(Program):
    """The same as a Singer tap (tests/services/tap.py)."""

    path = "singer"
    script = str(ROOT / "tests" / "services" / "tap.py")

    def stream(
        self,
        name: str,
        rows: Sequence[dict[str, Any]] = (),
        properties: Mapping[str, Any] = ITEM,
        key: Sequence[str] = ("id",),
        cursor: str | None = "updated_at",
        **more: Any,
    ) -> None:
        self.rows[name] = [*rows]
        self.streams[name] = {
            "tap_stream_id": name,
            "stream": name,
            "schema": {"type": "object", "properties": dict(properties)},
            "key_properties": [*key],
            **({"replication_key": cursor} if cursor else {}),
            "metadata": [{"breadcrumb": [], "metadata": {"inclusion": "available"}}],
            **more,
        }

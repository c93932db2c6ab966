"""Commands report tables written by `loader serve` that they cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loader.connectors.cloudquery.ingest import CloudQueryIngest
from loader.spec.spec import load_spec
from loader.sync.ingest import Ingest
from loader.sync.run_context import Watch
from tests.connectors.cloudquery.test_ingest import Bridge
from tests.connectors.cloudquery.test_ingest_locks import session
from tests.sync.project import Project

COMMANDS = (
    ("status",),
    ("compact",),
    ("state", "list"),
    ("state", "rebuild"),
    ("codegen", "--output", "models"),
)


def _damage(table: Path) -> None:
    folder = table / "metadata"
    newest = folder / f"v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"
    newest.write_bytes(newest.read_bytes()[:200])


def _list_tables(project: Project) -> list[str]:
    return sorted(e["table"] for e in project.loader("status").events if e["event"] == "status")


def test_served_tables_that_cannot_be_read(project: Project, warehouse: Path) -> None:
    """The errors name them, and do not report them as removed or missing."""
    # a second lake, with a target that this process cannot use as well
    project.lakes["other"] = {"schema": f"other_{project.schema}", "target": "cluster"}
    project.write()
    bridge: Any = Bridge(
        session(project.folder, 1, "orders", "lines"),
        session(project.folder, 2, "parts", source="depot"),
    )
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
    assert bridge.errors == [None, None]
    assert _list_tables(project) == ["depot.parts", "shop.lines", "shop.orders"]
    models = ("codegen", "--output", str(project.folder / "models"))
    assert project.loader(*models).code == 0

    # the warehouse was moved, and contains only served tables
    here, there = warehouse / project.schema, warehouse / f"moved_{project.schema}"
    here.rename(there)
    moved = Project(project.folder, project.spark, there.name)
    moved.write()
    for command in COMMANDS:
        [error] = moved.loader(*command).errors
        assert "its warehouse was copied or moved" in error, command
        assert str(there / "lines") in error
        assert str(here / "lines") in error
    there.rename(here)

    # some tables are damaged: the others are listed, and none is reported as removed
    project.write()
    for table in ("lines", "parts"):
        _damage(here / table)
    shown = project.loader("status")
    assert shown.code == 0
    assert "shop.orders" in [e["table"] for e in shown.events if e["event"] == "status"]
    for command in (("status",), models):
        warnings = project.loader(*command).warnings
        for table in ("lines", "parts"):
            [text] = [text for text in warnings if f"{project.schema}.{table}: " in text]
            assert "its metadata cannot be read" in text
            assert "If another program pushed it, it is skipped" in text
        assert not [text for text in warnings if "no longer a table" in text]

    # all tables are damaged
    _damage(here / "orders")
    for command in COMMANDS:
        [error] = project.loader(*command).errors
        assert "its metadata cannot be read" in error, command

"""`loader state prune`, `export` and `import`, within a backend and between backends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from loader.cli import main
from loader.cli import state as state_command
from loader.cli.system_table_upkeep import SharedBackend
from loader.errors import TableError
from loader.lake.locks import lock_table
from loader.sync.pipeline import Pipeline
from tests.services import Postgres
from tests.sync.original import Original
from tests.sync.project import Project, Ran


@pytest.fixture(scope="module")
def original(
    spark: SparkSession,
    warehouse: Path,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Original]:
    """A table whose state has six versions."""
    folder = tmp_path_factory.mktemp("commands")
    project = Project(folder, spark, "raw_commands")
    with postgres.database("commands") as database:
        database.execute(
            "create table orders (id int primary key, version bigint)",
            "insert into orders values (1, 5), (2, 6)",
        )
        options = {"orders": {"cursor_field": "version"}}
        project.jdbc(database, ["orders"], table_options=options)
        project.run()
        for cursor in (1, 2, 3, 4, 6):
            assert project.loader("state", "set", "shop.orders", str(cursor)).code == 0
        original = Original(project, database, warehouse, folder / "copy")
        yield original
        original.remove()


@pytest.fixture
def shop(original: Original, tmp_path: Path) -> Project:
    """Restores the project for one test."""
    return original.again(tmp_path)


def _use_local_backend(project: Project) -> None:
    project.sources[0] |= {"backend": "local"}
    project.write()


def _versions(project: Project) -> list[tuple[int, str]]:
    shown = project.loader("state", "show", "shop.orders")
    return [(e["version"], json.loads(e["value"])["cursor"]) for e in shown.events]


def _export(project: Project, file: Path) -> list[dict[str, object]]:
    assert project.loader("state", "export", str(file)).code == 0
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _import(project: Project, file: Path, lines: list[dict[str, object]], *options: str) -> Ran:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return project.loader("state", "import", str(file), *options)


def test_prune_keeps_the_newest_versions(shop: Project) -> None:
    shop.spark.sql(
        f"insert into {shop.schema}._cq_state select 'other.t', value, version, updated_at "
        f"from {shop.schema}._cq_state"
    )
    assert shop.loader("state", "prune").events == []
    pruned = shop.loader("state", "prune", "--keep", "2")
    assert [(e["table"], e["versions"]) for e in pruned.events] == [("shop.orders", 4)]
    assert _versions(shop) == [(6, "6"), (5, "4")]
    assert shop.rows("select count(*) from raw._cq_state where key = 'other.t'") == [(6,)]
    assert shop.loader("state", "prune", "--keep", "1").code == 0
    assert _versions(shop) == [(6, "6")]
    assert shop.loader("state", "prune", "--keep", "0").code == 2
    assert shop.run().table("shop.orders")["status"] == "nothing new"
    assert shop.loader("state", "set", "shop.orders", "5").code == 0
    # the run has stored version 7, because version 6, set by hand, lacks what the next run needs
    assert _versions(shop) == [(8, "5"), (7, "6"), (6, "6")]


def test_an_export_that_fails_leaves_the_one_before(
    shop: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cursors.jsonl"
    assert len(_export(shop, file)) == 6
    before, all_of_them = file.read_text("utf-8"), state_command.list_backends

    def one_is_down(pipeline: Pipeline) -> Iterator[SharedBackend]:
        yield from all_of_them(pipeline)
        raise TableError("the state store does not answer", where="source depot")

    monkeypatch.setattr(state_command, "list_backends", one_is_down)
    assert shop.loader("state", "set", "shop.orders", "5").code == 0
    assert shop.loader("state", "export", str(file)).code == 1
    assert file.read_text("utf-8") == before


def test_an_export_moves_to_another_backend_unchanged(shop: Project, tmp_path: Path) -> None:
    file = tmp_path / "état.jsonl"
    lines = _export(shop, file)
    assert [(line["key"], line["version"]) for line in lines] == [
        ("shop.orders", version) for version in range(1, 7)
    ]
    config = str(shop.folder / "loader.yml")
    printed = CliRunner().invoke(main, ["-c", config, "state", "export"])
    assert printed.stdout == file.read_text("utf-8")

    _use_local_backend(shop)
    done = shop.loader("state", "import", str(file))
    assert done.code == 0, done.text
    assert [(e["table"], e["versions_added"], e["version"]) for e in done.events] == [
        ("shop.orders", 6, 6)
    ]
    assert _export(shop, tmp_path / "again.jsonl") == lines
    again = shop.loader("state", "import", str(file))
    assert (again.code, [e["versions_added"] for e in again.events]) == (0, [0])
    assert shop.run().table("shop.orders")["status"] == "nothing new"


def test_a_renamed_source_keeps_its_cursors(shop: Project, tmp_path: Path) -> None:
    file = tmp_path / "state.jsonl"
    shop.sources[0] |= {"name": "store", "formerly": ["shop"]}
    shop.write()
    exported = _export(shop, file)
    assert {line["key"] for line in exported} == {"shop.orders"}
    refused = _import(shop, tmp_path / "older.jsonl", exported[:5])
    assert "the backend has version 6, the file 5, and they differ" in refused.errors[0]
    shop.rows(
        """insert into raw._cq_state (key, value, version) values
        ('shop.orders', '{"batch": 9, "format": 99}', 7)"""
    )
    refused = shop.loader("state", "set", "store.orders", "4")
    assert (refused.code, "newer" in refused.errors[0]) == (1, True)
    shop.rows("delete from raw._cq_state where version = 7")

    # Before the next sync, a state command finds the table by both names of the source.
    for name, cursor in (("store.orders", "4"), ("shop.orders", "5"), ("orders", "6")):
        changed = shop.loader("state", "set", name, cursor)
        assert changed.code == 0, changed.text
    states = [(e["table"], e["cursor"]) for e in shop.loader("state", "list").events]
    assert states == [("shop.orders", "6"), ("store.orders", "6")]

    # An import keeps the names of an export, and the run uses the newer name.
    both = _export(shop, tmp_path / "both.jsonl")
    _use_local_backend(shop)
    assert [e["versions_added"] for e in _import(shop, file, exported).events] == [6]
    added = {e["table"]: e["versions_added"] for e in _import(shop, file, both).events}
    assert added["store.orders"] == 3
    assert shop.run().table("store.orders")["status"] == "nothing new"


def test_a_former_name_of_two_sources_is_the_one_that_has_the_table(
    shop: Project, tmp_path: Path
) -> None:
    other = {"name": "people", "formerly": ["shop"], "tables": ["users"]}
    shop.sources[0] |= {"name": "sales", "formerly": ["shop"]}
    shop.sources.insert(0, shop.sources[0] | other)
    shop.write()
    assert shop.loader("state", "set", "shop.orders", "5").code == 0
    states = [(e["table"], e["cursor"]) for e in shop.loader("state", "list").events]
    assert ("sales.orders", "5") in states
    refused = shop.loader("state", "set", "shop.items", "5")
    assert (refused.code, "with a source of the spec" in refused.errors[0]) == (2, True)


def test_an_import_replaces_newer_versions_only_with_force(shop: Project, tmp_path: Path) -> None:
    file = tmp_path / "state.jsonl"
    older = _export(shop, file)[:5]
    refused = _import(shop, file, older)
    assert refused.code == 1
    assert "the backend has version 6, the file 5, and they differ" in refused.errors[0]
    assert len(_versions(shop)) == 6
    assert _import(shop, file, older, "--force").code == 0
    assert _versions(shop)[:2] == [(7, "4"), (6, "6")]
    newer = [{**older[0], "version": 20}]
    assert _import(shop, file, newer).code == 0
    assert _versions(shop)[0] == (8, "6")  # the next number: no gap


def test_an_import_takes_all_or_nothing(shop: Project, tmp_path: Path) -> None:
    file = tmp_path / "state.jsonl"
    good = _export(shop, file)
    fresh = {**good[0], "key": "shop.fresh"}
    foreign = "line 2: this line was not written by `loader state export`"
    for bad, code, reported in (
        ({**good[0], "key": "shop.x", "value": '{"since": 3}'}, 1, "line 2: the stored state"),
        ({**good[0], "key": "shop.x", "value": "2025-01-01"}, 1, "line 2: the stored state"),
        ({**good[0], "key": "nowhere.x"}, 2, "'nowhere.x' is not `source.table`"),
        ({**good[0], "key": "shop.../../x"}, 2, "'../../x' contains '/', which a table"),
        ({**good[0], "key": "shop..."}, 2, "'..' is not a valid name"),
        ({**good[0], "key": "shop._cq_state"}, 2, "'_cq_state' is one of the loader's own tables"),
        ({**good[0], "key": "shop._cq_syncs"}, 2, "'_cq_syncs' is one of the loader's own tables"),
        ({"key": "shop.x"}, 2, foreign),
        ({**good[0], "version": "six"}, 2, foreign),
        ({**good[0], "value": {"batch": 1}}, 2, foreign),
        ({**good[0], "updated_at": "yesterday"}, 2, foreign),
        (good[2], 1, "the backend has version 6, the file 3, and they differ"),
    ):
        refused = _import(shop, file, [fresh, bad])
        assert (refused.code, len(refused.errors)) == (code, 1), refused.text
        assert reported in refused.errors[0]
    assert [e["table"] for e in shop.loader("state", "list").events] == ["shop.orders"]
    for command in ("set", "reset", "show"):
        refused = shop.loader("state", command, "shop.../x", *(["1"] if command == "set" else []))
        assert (refused.code, "'../x' contains '/'" in refused.text) == (2, True)
    with lock_table(shop.lake(), "fresh", timeout=0):
        busy = _import(shop, file, [fresh])
    assert busy.errors[0].startswith("table shop.fresh: a run is syncing this table.")
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(fresh).encode())  # as Windows' Notepad saves it
    done = shop.loader("state", "import", str(file))
    assert done.code == 0, done.text
    assert (
        "shop.fresh: the spec does not contain this table, so no run uses its cursor" in done.text
    )
    assert [e["table"] for e in shop.loader("state", "list").events] == [
        "shop.fresh",
        "shop.orders",
    ]


def test_the_safest_of_two_values_of_one_version_is_used(shop: Project) -> None:
    shop.spark.sql(
        f"""
        insert into {shop.schema}._cq_state
        select key, replace(value, '"cursor": "6"', '"cursor": "5"'), version, updated_at
        from {shop.schema}._cq_state where version = 6
        """
    )
    [warning, listed] = shop.loader("state", "list").events
    assert "2 different values of version 6: the safest value is used" in warning["text"]
    assert listed["cursor"] == "5"
    ran = shop.run()
    assert any("the safest value is used (batch 1, cursor 5)" in text for text in ran.warnings)
    assert ran.table("shop.orders")["status"] == "nothing new"
    assert _versions(shop)[0] == (7, "6")

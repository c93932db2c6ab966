"""Runs whose state is outside the lake's schema: in a database, Redis, files or another schema."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from loader.errors import SpecError
from loader.spec import entry_points
from loader.spec.spec import load_spec
from loader.state.opening import open_state
from tests.services import Database, Redis
from tests.sync.project import Project


def keep_in(project: Project, path: str, connection_string: str, *, source: int = 0) -> None:
    """Adds a destination for state to the spec, and lets a source use it."""
    project.sources[source]["backend_options"] = {"connection": "@@plugins.store.connection"}
    project.write()
    file = project.folder / "loader.yml"
    store = {"name": "store", "path": path, "spec": {"connection_string": connection_string}}
    file.write_text(
        file.read_text() + "---\n" + yaml.safe_dump({"kind": "destination", "spec": store})
    )


@pytest.fixture
def shop(project: Project, postgres_database: Database) -> Project:
    postgres_database.execute(
        "create table orders (id int primary key, version bigint)",
        "insert into orders values (1, 5), (2, 6)",
    )
    project.jdbc(
        postgres_database, ["orders"], table_options={"orders": {"cursor_field": "version"}}
    )
    return project


def _libpq(database: Database) -> str:
    place = f"127.0.0.1:{database.server.port}/{database.name}"
    return f"postgresql://{database.user}:{database.password}@{place}"


@pytest.mark.parametrize(
    "backend", ["sqlite", "postgresql", "postgresql key=value", "redis", "local"]
)
def test_a_source_is_synced_with_its_state_in_another_store(
    shop: Project, postgres_database: Database, redis_server: Redis, backend: str
) -> None:
    if backend == "local":
        shop.sources[0]["backend"] = "local"
        shop.write()
    else:
        database = postgres_database
        connection = {
            "sqlite": "./db.sqlite",  # as in CloudQuery's documentation
            "postgresql": _libpq(database),
            "postgresql key=value": f"host=127.0.0.1 port={database.server.port} "
            f"user={database.user} password={database.password} dbname={database.name}",
            "redis": redis_server.url,
        }
        keep_in(shop, backend.partition(" ")[0], connection[backend])
    assert shop.run().table("shop.orders")["appended"] == 2
    assert not shop.lake().exists("_cq_state")
    postgres_database.execute("insert into orders values (3, 7)")
    assert shop.run().table("shop.orders")["appended"] == 1
    assert shop.run().table("shop.orders")["status"] == "nothing new"
    [listed] = shop.loader("state", "list").events
    assert (listed["cursor"], listed["batch"], listed["version"]) == ("7", 2, 2)
    assert shop.loader("state", "set", "shop.orders", "5").code == 0
    assert shop.run().table("shop.orders")["redelivered"] == 3
    if backend == "local":
        [file] = (shop.folder / ".cq" / "state").glob("*.json")
        assert file.name.startswith("shop.orders-")
        assert json.loads(file.read_text())["key"] == "shop.orders"
    if backend == "sqlite":
        assert (shop.folder / "db.sqlite").exists()
    if backend == "redis":
        redis_server.client().flushall()


@pytest.mark.parametrize("is_told_apart", [True, False])
def test_two_lakes_that_share_a_store_skip_nothing(
    shop: Project, postgres_database: Database, is_told_apart: bool
) -> None:
    """Both lakes are at batch 1 when the cursor of one replaces the other's.

    This happens if the first runs of both lakes overlap, or if their stores are merged. States of
    older loaders lack the table's id and cannot be distinguished.
    """
    keep_in(shop, "sqlite", "cursors.sqlite")
    shop.run()
    (shop.folder / "cursors.sqlite").unlink()
    postgres_database.execute("insert into orders values (3, 7)")
    first, shop.schema = shop.schema, f"{shop.schema}_second"
    keep_in(shop, "sqlite", "cursors.sqlite")
    assert shop.run().table("shop.orders")["appended"] == 3
    shop.schema = first
    keep_in(shop, "sqlite", "cursors.sqlite")
    if not is_told_apart:
        with closing(sqlite3.connect(shop.folder / "cursors.sqlite")) as store, store:
            store.execute("update _cq_state set value = json_remove(value, '$.table_id')")
    ran = shop.run()
    assert ran.table("shop.orders")["appended"] == (1 if is_told_apart else 0)
    warnings = [text for text in ran.warnings if "belongs to another raw table" in text]
    assert len(warnings) == (1 if is_told_apart else 0)
    assert shop.run().table("shop.orders")["status"] == "nothing new"


def test_a_cursor_set_in_a_shared_store_belongs_to_this_lake(
    shop: Project, postgres_database: Database
) -> None:
    """Even if the other lake has written the newest state."""
    keep_in(shop, "sqlite", "cursors.sqlite")
    shop.run()
    (shop.folder / "cursors.sqlite").unlink()
    postgres_database.execute("insert into orders values (3, 7)")
    first, second = shop.schema, f"{shop.schema}_second"
    shop.schema = second
    keep_in(shop, "sqlite", "cursors.sqlite")
    shop.run()
    postgres_database.execute("insert into orders values (4, 8)")
    shop.run()  # its batch is ahead of the first lake's
    shop.schema = first
    keep_in(shop, "sqlite", "cursors.sqlite")
    assert shop.loader("state", "set", "shop.orders", "5").code == 0
    ran = shop.run()
    table = ran.table("shop.orders")
    assert (table["appended"], table["redelivered"]) == (2, 2)
    assert not [text for text in ran.warnings if "another raw table" in text]
    # `state rebuild` also writes the state of this lake, not of the other one.
    shop.schema = second
    keep_in(shop, "sqlite", "cursors.sqlite")
    shop.run()
    shop.schema = first
    keep_in(shop, "sqlite", "cursors.sqlite")
    [rebuilt] = shop.loader("state", "rebuild").events
    assert rebuilt["states_added"] == 1
    assert not [text for text in shop.run().warnings if "another raw table" in text]


def test_a_state_store_that_is_down_fails_its_source_only(
    shop: Project, postgres_database: Database, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.csv").write_text("id,at\n1,2025-01-01\n")
    options = {"notes": {"path": "notes.csv", "cursor_field": "at", "primary_key": "id"}}
    own = {"path": "files", "format": "csv", "table_options": options}
    shop.add("files", "file", ["notes"], own)
    down = _libpq(postgres_database).replace(postgres_database.password, "hunter22")
    keep_in(shop, "postgresql", down)
    checked = shop.loader("check")
    assert checked.code == 1
    [error] = checked.errors
    assert "password authentication failed" in error
    ran = shop.loader("run")
    assert ran.code == 1
    assert ran.table("files.notes")["status"] == "synced"
    assert ran.table("shop.orders")["status"] == "failed"
    [error] = ran.errors
    assert "password authentication failed" in error
    assert "state table _cq_state at postgresql+psycopg://" in error
    assert "Check `connection_string`" in error
    [(status, reported)] = shop.rows(
        "select status, error from raw._cq_syncs where source_name = 'shop'"
    )
    assert (status, reported.count("password authentication failed")) == ("failed", 1)
    assert not shop.lake().exists("orders")  # nothing is read that cannot be recorded
    debug = shop.loader("run", options=("--debug",))
    for text in (checked.text, ran.text, reported, debug.text):
        assert "hunter22" not in text
        assert postgres_database.password not in text


def test_a_state_that_was_lost_after_its_data_is_recovered(
    shop: Project, redis_server: Redis, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loader.sync import publish

    keep_in(shop, "redis", redis_server.url)
    shop.run()
    postgres_database.execute("insert into orders values (3, 7)")
    publish_batch = publish.publish_batch

    def then_gone(*arguments: Any) -> Any:
        commit = publish_batch(*arguments)
        redis_server.stop()
        return commit

    with monkeypatch.context() as patch:
        patch.setattr(publish, "publish_batch", then_gone)
        ran = shop.loader("run")
    assert ran.code == 1
    assert "Redis" in ran.errors[0]
    redis_server.start()
    again = shop.run()
    assert any("rolled forward to batch 2" in warning for warning in again.warnings)
    assert shop.rows("select count(*), count(distinct id) from raw.orders") == [(3, 3)]
    [listed] = shop.loader("state", "list").events
    assert (listed["cursor"], listed["batch"]) == ("7", 2)
    # all of Redis is lost: the state is recovered from the raw table
    redis_server.client().flushall()
    assert shop.run().table("shop.orders")["status"] == "nothing new"
    assert len(shop.loader("state", "show", "shop.orders").events) == 1
    redis_server.client().flushall()


def test_state_in_another_schema_of_the_lake(shop: Project) -> None:
    keep_in(shop, "spark", "")
    file = shop.folder / "loader.yml"
    documents = list(yaml.safe_load_all(file.read_text()))
    documents[-1]["spec"]["spec"] = {
        **documents[-2]["spec"]["spec"],
        "schema": f"{shop.schema}_ops",
    }
    file.write_text(yaml.safe_dump_all(documents))
    shop.run()
    assert not shop.lake().exists("_cq_state")
    assert shop.spark.table(f"{shop.schema}_ops._cq_state").count() == 1
    documents[-1]["spec"]["spec"]["target"] = "cluster"
    file.write_text(yaml.safe_dump_all(documents))
    refused = shop.loader("run")
    assert refused.code == 2
    assert "store has a different profile or target than the tables" in refused.errors[0]


SPEC = """
kind: source
spec:
  name: shop
  path: jdbc
  tables: [orders]
  destinations: [lake]
  backend_options: {connection: "@@plugins.store.connection"}
---
kind: destination
spec: {name: lake, path: spark}
---
kind: destination
spec: {name: store, path: PATH, spec: {connection_string: "CONNECTION"}}
"""


def _open_backend(folder: Path, path: str, connection: str) -> Any:
    file = folder / "loader.yml"
    file.write_text(SPEC.replace("PATH", path).replace("CONNECTION", connection))
    spec = load_spec(file)
    return open_state(spec, spec.sources[0], lambda destination: pytest.fail("no lake"))


@pytest.mark.parametrize(
    ("path", "module", "connection", "package"),
    [
        ("sqlite", "sqlalchemy", "x.db", "strandline[sqlite]"),
        ("postgresql", "sqlalchemy", "postgresql://h/d", "strandline[postgresql]"),
        ("postgresql", "psycopg", "postgresql://h/d", "strandline[postgresql]"),
        ("postgresql", "psycopg", "host=h", "strandline[postgresql]"),
        ("redis", "redis", "redis://h", "strandline[redis]"),
    ],
)
def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    module: str,
    connection: str,
    package: str,
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("loader.state.sql", "loader.state.redis"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecError) as raised:
        _open_backend(tmp_path, path, connection)
    assert raised.value.remedy == f"pip install '{package}'"
    assert module in raised.value.what


@pytest.mark.parametrize(
    ("path", "connection", "reported"),
    [
        ("sqlite", ":memory:", "an in-memory SQLite database loses its cursors"),
        ("sqlite", "sqlite://", "an in-memory SQLite database loses its cursors"),
        ("postgresql", "oracel://u:hunter22@h/d", "Can't load plugin"),
        ("postgresql", "p://u:hunter22@h:port/d", "the port is not a number"),
        ("redis", "http://:hunter22@h", "not a URL that the Redis client can read"),
        ("redis", "redis://:hunter22@h:port", "not a URL that the Redis client can read"),
        ("redis", "redis://:hunter22/x@h", "write `/` as %2F"),
    ],
)
def test_a_wrong_connection_string_is_reported_without_its_password(
    tmp_path: Path, path: str, connection: str, reported: str
) -> None:
    with pytest.raises(SpecError, match=reported) as raised:
        _open_backend(tmp_path, path, connection)
    assert raised.value.where.endswith("spec.connection_string")
    assert "hunter22" not in str(raised.value)


PLUGIN = """
from pydantic import BaseModel
from loader.state.local import LocalState

class Options(BaseModel):
    folder: str

class Mine(LocalState):
    options_model = Options
    def __init__(self, options, place):
        super().__init__(place.folder / options.folder / place.table)
"""


def test_a_package_may_provide_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_state.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = EntryPoint("mine", "their_state:Mine", "strandline.state")
    monkeypatch.setattr(entry_points, "entry_points", lambda group: [theirs])
    file = tmp_path / "loader.yml"
    good = SPEC.replace("PATH", "mine").replace('connection_string: "CONNECTION"', "folder: kept")
    file.write_text(good)
    spec = load_spec(file)
    backend = open_state(spec, spec.sources[0], lambda destination: pytest.fail("no lake"))
    assert backend.where == f"state folder {tmp_path / 'kept' / '_cq_state'}"

    file.write_text(good.replace("folder:", "foldr:"))
    spec = load_spec(file)
    with pytest.raises(SpecError, match=r"document 3 \(destination store\), spec.spec.folder"):
        open_state(spec, spec.sources[0], lambda destination: pytest.fail("no lake"))

    file.write_text(good.replace("path: mine", "path: mnie"))
    with pytest.raises(SpecError, match=r"or 'mine', not 'mnie'. Did you mean `mine`\?"):
        load_spec(file)

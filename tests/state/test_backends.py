"""Every state backend passes the suite for backends, `StateBackendContract`, on real servers."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.errors import StateError
from loader.lake.lake import Lake
from loader.spec.plugins import StateStoreOptions
from loader.state import StateBackend, StateRow, StoreLocation, TableState, lake_table
from loader.state.lake_table import LakeState
from loader.state.local import LocalState
from loader.state.redis import RedisState
from loader.state.sql import SqlState
from loader.testing.state_backend import Plant, StateBackendContract, at
from tests.dbt.icebergrows import IcebergRows
from tests.services import Database, MariaDb, Redis

Reopened = Callable[[], StateBackend]


def sql(url: str, table: str = "_cq_state", folder: Path = Path("/")) -> SqlState:
    return SqlState(StateStoreOptions(connection_string=url), StoreLocation(table, folder, "spec"))


def redis(url: str, table: str = "_cq_state") -> RedisState:
    return RedisState(
        StateStoreOptions(connection_string=url), StoreLocation(table, Path("/"), "spec")
    )


class _Prepared(StateBackendContract):
    @pytest.fixture
    def backend(self, reopened: Reopened) -> StateBackend:
        made = reopened()
        made.prepare()
        return made


class TestLakeTable(_Prepared):
    rounds = 3

    @pytest.fixture
    def reopened(self, spark: SparkSession) -> Reopened:
        lake = Lake(spark, f"state_{uuid.uuid4().hex[:8]}")
        return lambda: LakeState(lake.for_thread(), "_cq_state")

    @pytest.fixture
    def plant(self, backend: LakeState) -> Plant:
        def store(key: str, value: str, version: int | None) -> None:
            lake = backend.lake
            IcebergRows(lake.spark, lake.name("_cq_state")).append([(key, value, version, None)])

        return store

    @pytest.fixture(params=["damaged", "of another shape"])
    def broken(
        self, request: pytest.FixtureRequest, backend: LakeState, warehouse: Path
    ) -> StateBackend:
        lake = backend.lake
        if request.param == "of another shape":
            lake.create("others", "id bigint")
            return LakeState(lake, "others")
        backend.write("shop.a", TableState())
        for path in (warehouse / lake.schema / "_cq_state").rglob("snap-*"):
            path.unlink()
        return backend

    def test_spark_reads_the_same_from_a_state_of_many_files(
        self, backend: LakeState, plant: Plant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend.append([StateRow("legacy", at(1).to_json(), 0), StateRow("plain", "{}", 1)])
        backend.append([StateRow("plain", at(2).to_json(), 2, "2025-01-01 00:00:00.5")])
        plant("legacy", at(2).to_json(), None)
        plant("twice", at(2, "9").to_json(), 7)
        plant("twice", at(2, "8").to_json(), 7)
        keys = ["legacy", "plain", "twice", "none"]
        read = [sorted(map(str, backend.latest(key))) for key in keys]
        assert [len(rows) for rows in read] == [2, 1, 2, 0]
        monkeypatch.setattr(lake_table, "_FEW", 0)
        assert [sorted(map(str, backend.latest(key))) for key in keys] == read
        with pytest.raises(StateError, match="version 0 of legacy already exists"):
            backend.append([StateRow("legacy", at(3).to_json(), 0)])


class TestLocalFiles(_Prepared):
    rounds = 50

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Reopened:
        return lambda: LocalState(tmp_path / ".cq" / "state")

    @pytest.fixture
    def plant(self, backend: LocalState) -> Plant:
        def store(key: str, value: str, version: int | None) -> None:
            path = backend._find_path(key)
            held = json.loads(path.read_text("utf-8")) if path.exists() else {"versions": []}
            held["key"] = key
            held["versions"].append({"value": value, "version": version, "updated_at": None})
            path.write_text(json.dumps(held), "utf-8")

        return store

    @pytest.fixture(params=["a file", "below a file", "unwritable"])
    def broken(self, request: pytest.FixtureRequest, tmp_path: Path) -> StateBackend:
        (tmp_path / "file").touch()
        places = {"a file": "file", "below a file": "file/x", "unwritable": "/proc/state"}
        return LocalState(tmp_path / places[request.param])


class _Sql(_Prepared):
    @pytest.fixture
    def plant(self, backend: SqlState) -> Plant:
        # A table as older CloudQuery versions create it, without a primary key.
        with backend.engine.begin() as connection:
            quote = connection.dialect.identifier_preparer.quote
            connection.exec_driver_sql("drop table _cq_state")
            connection.exec_driver_sql(
                f"create table _cq_state ({quote('key')} varchar(1000), value text, version bigint)"
            )

        def store(key: str, value: str, version: int | None) -> None:
            with backend.engine.begin() as connection:
                values = {"key": key, "value": value, "version": version}
                connection.execute(backend._table.insert().values(values))

        return store


class _WithoutKey(_Sql):
    """Adds tests of state tables that another tool created."""

    def test_writers_race_on_a_table_without_a_primary_key(
        self, backend: SqlState, plant: Plant, reopened: Reopened
    ) -> None:
        self.test_the_second_writer_of_a_version_is_refused(backend, reopened)

    def test_a_table_without_versions_is_refused(self, reopened: Reopened) -> None:
        state = reopened()
        assert isinstance(state, SqlState)
        with state.engine.begin() as connection:
            connection.exec_driver_sql("create table _cq_state (key text, value text)")
        with pytest.raises(StateError, match="the table has no column version"):
            state.prepare()
        with pytest.raises(StateError, match="the table has no column version"):
            state.read("shop.orders")


class TestSqlite(_WithoutKey):
    rounds = 50

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Reopened:
        return lambda: sql("db.sqlite", folder=tmp_path)

    @pytest.mark.parametrize(
        "row",
        [
            ("shop.a", "{}", "v", None),
            ("shop.a", "{}", float("inf"), None),
            ("shop.a", "{}", 1, "yesterday"),
            ("shop.a", "{}", 1, 5),
            (None, "{}", 1, None),
        ],
    )
    def test_a_row_of_wrong_kinds_is_refused_for_its_own_table_only(
        self, reopened: Reopened, row: tuple[object, ...]
    ) -> None:
        """SQLite stores any value in any column."""
        state = reopened()
        assert isinstance(state, SqlState)
        with state.engine.begin() as connection:
            connection.exec_driver_sql("create table _cq_state (key, value, version, updated_at)")
            connection.exec_driver_sql("insert into _cq_state values (?, ?, ?, ?)", row)
        state.write("shop.b", at(2))
        _assert_refused(state, "shop.a" if row[0] else "None")

    @pytest.fixture(params=["no folder", "not a database", "read-only"])
    def broken(self, request: pytest.FixtureRequest, tmp_path: Path) -> StateBackend:
        if request.param == "no folder":
            return sql("sqlite:///nowhere/db.sqlite", folder=tmp_path)
        path = tmp_path / "db.sqlite"
        if request.param == "not a database":
            path.write_text("This is a letter, " * 100)
            return sql(f"sqlite:///{path}")
        sqlite3.connect(path).execute("create table t (x)").connection.close()
        return sql(f"sqlite:///file:{path}?mode=ro&uri=true")


class TestPostgres(_WithoutKey):
    rounds = 50

    @pytest.fixture
    def reopened(self, postgres_database: Database) -> Reopened:
        return lambda: sql(_url(postgres_database))

    @pytest.fixture(params=["down", "wrong password", "no database", "not allowed"])
    def broken(
        self, request: pytest.FixtureRequest, postgres_database: Database
    ) -> Iterator[StateBackend]:
        url = _url(postgres_database)
        port = str(postgres_database.server.port)
        role = f"guest_{postgres_database.name}"
        broken = {
            "down": url.replace(port, "1"),
            "wrong password": url.replace(postgres_database.password, "hunter22"),
            "no database": url + "x",
            "not allowed": url.replace(postgres_database.user, role),
        }
        postgres_database.execute(
            f"create role {role} login password '{postgres_database.password}'"
        )
        yield sql(broken[request.param])
        postgres_database.execute(f"drop role {role}")


class TestMariaDb(_Sql):
    """Any SQLAlchemy URL: here a database that ignores case and trailing spaces."""

    @pytest.fixture
    def reopened(self, mariadb_database: Database) -> Reopened:
        return lambda: sql(_url(mariadb_database, "mysql+pymysql") + "?ssl_disabled=true")

    @pytest.fixture
    def broken(self, mariadb: MariaDb) -> StateBackend:
        return sql(f"mysql+pymysql://u:hunter22@127.0.0.1:{mariadb.port}/x")


class TestRedis(_Prepared):
    rounds = 50

    @pytest.fixture
    def table(self, redis_server: Redis) -> str:
        return redis_server.name()

    @pytest.fixture
    def reopened(self, redis_server: Redis, table: str) -> Reopened:
        return lambda: redis(redis_server.url, table)

    @pytest.fixture
    def plant(self, backend: RedisState, table: str) -> Plant:
        def store(key: str, value: str, version: int | None) -> None:
            held = json.dumps({"value": value, "version": version})
            backend.client.zadd(f"{table}:{key}", {held: version or 0})
            backend.client.sadd(table, key)

        return store

    @pytest.mark.parametrize(
        "member",
        [
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"value": "{}", "version": Infinity}',
            b'{"value": "{}", "version": [1]}',
        ],
    )
    def test_a_foreign_member_is_refused_for_its_own_table_only(
        self, backend: RedisState, table: str, member: bytes
    ) -> None:
        backend.client.zadd(f"{table}:shop.a", {member: 1})
        backend.client.sadd(table, "shop.a")
        backend.client.sadd(table, b"\xff")
        backend.write("shop.b", at(2))
        _assert_refused(backend, "shop.a")

    @pytest.fixture(params=["down", "wrong password", "read-only", "another type"])
    def broken(
        self, request: pytest.FixtureRequest, redis_server: Redis, table: str
    ) -> Iterator[StateBackend]:
        client = redis_server.client()
        if request.param == "down":
            yield redis("redis://:hunter22@127.0.0.1:1/0")
        elif request.param == "wrong password":
            yield redis(redis_server.url.replace("tide", "hunter22"))
        elif request.param == "another type":
            client.set(table, "a cache's")
            yield redis(redis_server.url, table)
        else:
            client.acl_setuser(
                "guest",
                enabled=True,
                passwords=["+hunter22"],
                keys=["*"],
                categories=["+@read", "+@connection"],
            )
            yield redis(f"redis://guest:hunter22@127.0.0.1:{redis_server.port}/0", table)
            client.acl_deluser("guest")


def _assert_refused(backend: StateBackend, key: str) -> None:
    """Asserts that a key's rows are refused, and that the state of shop.b can still change."""
    with contextlib.suppress(StateError):
        backend.rows()
    found = backend.latest_by_key([key, "shop.b"])
    if key != "None":
        assert isinstance(found[key], StateError), found[key]
    backend.write("shop.b", at(3))
    assert backend.read("shop.b") == at(3)
    with contextlib.suppress(StateError):
        backend.floors(1)


def _url(database: Database, driver: str = "postgresql") -> str:
    server = f"127.0.0.1:{database.server.port}"
    return f"{driver}://{database.user}:{database.password}@{server}/{database.name}"

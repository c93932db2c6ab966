"""A state backend in a database table (SQLite, PostgreSQL), accessed with SQLAlchemy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from loader.errors import SpecError, StateError
from loader.spec.plugins import StateStoreOptions
from loader.spec.redaction import Redactor, excerpt
from loader.state import StateBackend, StateRow, StoreLocation, build_second_writer_error
from loader.state.value import format_time, parse_time

_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_REQUIRED_COLUMNS = ("key", "value", "version")


class SqlState(StateBackend):
    """A state backend in a table with the columns ``key, value, version, updated_at``.

    If the loader creates the table, its primary key is (key, version), so a version cannot be
    written twice. A table that another tool created may lack this key, have null versions, or lack
    `updated_at`. The loader uses such a table without altering it. If a version has several rows,
    the loader chooses one row when it reads the state.

    Each operation opens a new connection, because a sync may take hours, and servers and firewalls
    close idle connections.
    """

    options_model = StateStoreOptions

    def __init__(self, options: StateStoreOptions, location: StoreLocation) -> None:
        super().__init__(options, location)
        self.engine = _create_engine(options.connection_string, location)
        hidden = Redactor().redact(self.engine.url.render_as_string(hide_password=True))
        self.where = f"state table {location.table} at {hidden}"

    @cached_property
    def _table(self) -> sa.Table:
        # In MySQL, an indexed text column needs a length. MySQL's default types are
        # case-insensitive, reject emoji, and drop fractions of a second.
        mysql_ = ("mysql", "mariadb")
        key = sa.Text().with_variant(sa.String(700, collation="utf8mb4_bin"), *mysql_)
        value = sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), *mysql_)
        at = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *mysql_)
        return sa.Table(
            self.location.table,
            sa.MetaData(),
            sa.Column("key", key, primary_key=True),
            sa.Column("value", value, nullable=False),
            sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("updated_at", at),
        )

    def prepare(self) -> None:
        with self._connect() as connection:
            if self._read_columns(connection) is not None:
                return
        try:
            with self.engine.begin() as connection:
                self._table.create(connection, checkfirst=False)
        except SQLAlchemyError as problem:
            with self._connect() as connection:
                # If there are columns now, another process has created the table.
                if self._read_columns(connection) is None:
                    raise self._translate_error(problem) from problem

    def rows(self, key: str | None = None) -> list[StateRow]:
        return self._query(None if key is None else self._key_is(key))

    def latest(self, key: str) -> list[StateRow]:
        t = self._table.alias()
        highest = sa.select(sa.func.max(sa.func.coalesce(t.c.version, 0))).where(t.c.key == key)
        return self._query(self._key_is(key) & (self._version_or_zero == highest.scalar_subquery()))

    def append(self, rows: Sequence[StateRow]) -> None:
        try:
            self._append(rows)
        except StateError as error:
            # If two sessions write the same version, InnoDB aborts one of them. The retry finds the
            # other writer's row.
            if not _is_deadlock(error.__cause__):
                raise
            self._append(rows)

    def _append(self, rows: Sequence[StateRow]) -> None:
        try:
            with self._connect() as connection:
                columns = self._read_columns(connection) or set()
                for row in rows:
                    if connection.dialect.name == "postgresql":
                        # If the table has no primary key, two concurrent writers could each miss
                        # the other's row.
                        lock = sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(row.key, 0))
                        connection.execute(sa.select(lock))
                    if connection.execute(self._insert(row, columns)).rowcount == 0:
                        raise build_second_writer_error(row, self.where)
        except StateError as error:
            if isinstance(error.__cause__, IntegrityError) and rows:
                raise build_second_writer_error(rows[0], self.where) from error.__cause__
            raise

    def prune(self, floors: Mapping[str, int]) -> None:
        with self._connect() as connection:
            for key, floor in floors.items():
                old = self._key_is(key) & (self._version_or_zero < floor)
                connection.execute(sa.delete(self._table).where(old))

    def _insert(self, row: StateRow, columns: set[str]) -> sa.Insert:
        t = self._table
        values: dict[str, Any] = {"key": row.key, "value": row.value, "version": row.version}
        if "updated_at" in columns:
            values["updated_at"] = parse_time(row.updated_at)
        exists = sa.exists().where(self._key_is(row.key) & (self._version_or_zero == row.version))
        new_row = sa.select(*(sa.literal(v, t.c[n].type) for n, v in values.items())).where(~exists)
        insert = sa.insert(t).from_select(list(values), new_row)
        return insert.execution_options(preserve_rowcount=True)

    def _key_is(self, key: str) -> sa.ColumnElement[bool]:
        return self._table.c.key == key

    @property
    def _version_or_zero(self) -> sa.ColumnElement[int]:
        return sa.func.coalesce(self._table.c.version, 0)

    def _query(self, condition: sa.ColumnElement[bool] | None) -> list[StateRow]:
        with self._connect() as connection:
            columns = self._read_columns(connection)
            if columns is None:
                return []
            t = self._table
            at = t.c.updated_at if "updated_at" in columns else sa.null().label("updated_at")
            query = sa.select(t.c.key, t.c.value, self._version_or_zero.label("version"), at)
            query = query if condition is None else query.where(condition)
            try:
                rows = [
                    StateRow(str(r.key), r.value, int(r.version), _format_time(r.updated_at))
                    for r in connection.execute(query)
                ]
            except (ValueError, TypeError, OverflowError) as problem:  # SQLite columns are untyped
                raise StateError(
                    f"a row was not written by this loader ({excerpt(str(problem), 100)})",
                    where=self.where,
                    remedy="Correct or delete it, or set `backend_options.table_name` to a name "
                    "that nothing else uses",
                ) from None
        # The rows are sorted in Python, because a database may use a different collation.
        return sorted(rows, key=lambda row: (row.key, -row.version))

    def _read_columns(self, connection: sa.Connection) -> set[str] | None:
        inspector = sa.inspect(connection)
        if not inspector.has_table(self.location.table):
            return None
        columns = {column["name"] for column in inspector.get_columns(self.location.table)}
        missing = [name for name in _REQUIRED_COLUMNS if name not in columns]
        if missing:
            raise StateError(
                f"the table has no column {missing[0]}",
                where=self.where,
                remedy="Set `backend_options.table_name` to a name that nothing else uses, or add "
                "the column (version: a bigint)",
            )
        return columns

    @contextmanager
    def _connect(self) -> Iterator[sa.Connection]:
        try:
            with self.engine.begin() as connection:
                yield connection
        except SQLAlchemyError as problem:
            raise self._translate_error(problem) from problem

    def _translate_error(self, problem: SQLAlchemyError) -> StateError:
        # Uses the driver's message. SQLAlchemy's own message contains the statement and its values.
        lines = str(getattr(problem, "orig", None) or problem).strip().splitlines()
        # In libpq's messages, the first line contains the host and port, and the second line
        # contains the server's answer.
        what = " ".join(line.strip() for line in lines[:2]) or type(problem).__name__
        return StateError(
            excerpt(what, 500).rstrip(". "),
            where=self.where,
            remedy="Check `connection_string`, that the database runs, and that its user may "
            "create, read and write the table; then run again",
        )


def _is_deadlock(problem: BaseException | None) -> bool:
    origin = getattr(problem, "orig", None)
    code = next(iter(getattr(origin, "args", ())), None)
    return code == 1213 or getattr(origin, "sqlstate", None) == "40P01"


def _format_time(value: object) -> str | None:
    if isinstance(value, dt.datetime):
        return format_time(value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc))
    return None if value is None else str(value)


def _create_engine(text: str, location: StoreLocation) -> sa.Engine:
    """Creates an engine from a connection string in CloudQuery, libpq or SQLAlchemy format.

    Raises:
        SpecError: if the string is in a different format or specifies an in-memory SQLite database.
        ModuleNotFoundError: if the database's driver is not installed.
    """
    arguments: dict[str, Any] = {}
    try:
        if "://" not in text and "=" in text:  # libpq's key=value format
            import psycopg

            url = URL.create("postgresql+psycopg")
            arguments["creator"] = lambda: psycopg.connect(text)
        elif "://" not in text:  # a file, as in CloudQuery's SQLite destination
            url = URL.create("sqlite", database=text.removeprefix("file:"))
        else:
            url = sa.make_url(text)
            url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
        if url.get_backend_name() == "sqlite":
            url = _resolve_file(url, location)
            arguments["connect_args"] = {"timeout": 30}
        return sa.create_engine(url, poolclass=NullPool, hide_parameters=True, **arguments)
    except (ArgumentError, NoSuchModuleError) as problem:
        what = Redactor().redact(str(problem).splitlines()[0]).replace(text, "***")
    except ValueError:
        what = "the port is not a number"
    raise SpecError(
        what.rstrip("."),
        where=f"{location.where}.connection_string",
        remedy="Write it as postgresql://user:password@host/database, or as the path of an "
        "SQLite file",
    )


def _resolve_file(url: URL, location: StoreLocation) -> URL:
    if not url.database or ":memory:" in url.database or "mode=memory" in str(url.query):
        raise SpecError(
            "an in-memory SQLite database loses its cursors when the process exits",
            where=f"{location.where}.connection_string",
            remedy="Write the path of a file",
        )
    if url.database.startswith("file:"):
        return url
    path = Path(location.folder) / url.database
    return url.set(database=str(path))

"""A copy's database computes the checksums itself only if they would equal Spark's."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from loader.audit.copied_table import CopiedTable
from tests.audit.conftest import Row, Shop
from tests.services import Database
from tests.services.server import PASSWORD, USER

ROWS = 40
UTC = dt.timezone.utc
MOMENTS = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    dt.datetime(2025, 3, 30, 1, 30, 0, 1, tzinfo=UTC),  # an hour that Europe's summer time skips
    dt.datetime(2025, 11, 2, 5, 30, tzinfo=UTC),  # an hour that New York has twice
]
UUIDS = [uuid.UUID(int=n << 100) for n in (1, 2**27)]

# By column: its types in the source, PostgreSQL and MariaDB, its values, and a different value.
COLUMNS: dict[str, tuple[str, str, str, Sequence[Any], Any]] = {
    "flag": ("boolean", "boolean", "tinyint(1)", [True, False], None),
    "paid": ("boolean", "smallint", "tinyint", [1, 0], 2),
    "pieces": ("smallint", "bigint", "int", [-32768, 0, 7], 8),
    "weight": ("bigint", "numeric", "decimal(30, 4)", [2**62, 0, -1], Decimal("0.5")),
    "price": (
        *("numeric(10, 2)", "numeric(38, 9)", "decimal(38, 9)"),
        [Decimal("12.30"), Decimal("0.00"), Decimal("-99999999.99")],
        Decimal("12.304"),
    ),
    "rate": (
        *("numeric", "numeric(20, 4)", "decimal(20, 4)"),
        [Decimal("1.5000"), Decimal("7"), Decimal("-0.25")],
        Decimal("1.5001"),
    ),
    "total": ("numeric(12, 3)", "bigint", "bigint", [Decimal("5.000"), Decimal("-7")], 6),
    "day": ("date", "date", "date", [dt.date(1, 1, 1), dt.date(2024, 2, 29)], dt.date(2024, 3, 1)),
    "at": ("timestamptz", "timestamptz", "datetime(6)", MOMENTS, MOMENTS[0].replace(year=1970)),
    "wall": ("timestamp", "timestamptz", "datetime(6)", MOMENTS, MOMENTS[1].replace(hour=2)),
    "code": (
        *('varchar(40) collate "C"', 'text collate "POSIX"', "varchar(40) charset latin1"),
        ["", " ", "it's", "back\\slash", "é ß", "\x01", "a\x1fb"],
        "É ß",
    ),
    "name": ("text", "text", "text", ["Ärger", "x" * 3000], "Arger"),
    "padded": ("char(6)", "text", "char(6)", ["", "ab", "ünïcöd"], "ab c"),
    "uid": ("uuid", "text", "varchar(36)", UUIDS, str(uuid.UUID(int=7))),
    "data": ("bytea", "bytea", "blob", [b"", b"\0\xff\\'", b"x" * 300], b"\0"),
    "clock": ("time", "time", "time(6)", [dt.time(0, 0, 0, 500000), dt.time(23, 59)], dt.time(1)),
}


def _value(column: str, row: int) -> Any:
    """Returns a value, or null in every seventh row."""
    if (row + len(column)) % 7 == 0:
        return None
    values = COLUMNS[column][3]
    return values[row % len(values)]


def _fill(database: Database, types: Sequence[str], walls: Sequence[str]) -> None:
    """Creates and fills a table.

    Args:
        walls: the columns whose type has no time zone.
    """
    columns = ", ".join(f"{name} {type_}" for name, type_ in zip(COLUMNS, types, strict=True))
    database.execute(f"create table items (id varchar(20), {columns}, primary key (id))")
    places = ", ".join(["%s"] * (len(COLUMNS) + 1))
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for row in range(ROWS):
            values = [_value(name, row) for name in COLUMNS]
            values = [
                value.replace(tzinfo=None) if name in walls and value is not None else value
                for name, value in zip(COLUMNS, values, strict=True)
            ]
            values = [str(v) if type(v) in (int, uuid.UUID) else v for v in values]
            cursor.execute(f"insert into items values ({places})", [f"n° {row}", *values])
        connection.commit()


@pytest.fixture
def items(shop: Shop) -> Shop:
    """The shop with a table of items whose columns repeat a few values and nulls."""
    _fill(shop.database, [types[0] for types in COLUMNS.values()], ["wall"])
    return shop


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for each comparison whether the copy's database computes the checksums."""
    looks: list[bool] = []
    find = CopiedTable.find_contents

    def find_and_record(self: CopiedTable, *arguments: Any) -> Any:
        found = find(self, *arguments)
        looks.append(found is not None)
        return found

    monkeypatch.setattr(CopiedTable, "find_contents", find_and_record)
    return looks


@pytest.fixture
def latin(shop: Shop) -> Iterator[Database]:
    """A PostgreSQL database whose encoding differs from the source's."""
    with _create(shop, "LATIN1") as database:
        yield database


@contextlib.contextmanager
def _create(shop: Shop, encoding: str) -> Iterator[Database]:
    name = encoding.lower()
    shop.database.execute(
        f"create database {name} encoding '{encoding}' locale 'C' template template0"
    )
    yield Database(shop.database.server, name)
    shop.database.execute(f"drop database {name} with (force)")


def _url(kind: str, database: Database) -> str:
    return f"{kind}://{USER}:{PASSWORD}@127.0.0.1:{database.server.port}/{database.name}"


def _audit(shop: Shop, url: str) -> dict[str, Any]:
    return shop.audit("items", "--copy-url", url, "--grace", "0", table="items")


def _change(database: Database, walls: Sequence[str]) -> None:
    """Changes one value in each column, each in a different row."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for row, (name, (*_, value)) in enumerate(COLUMNS.items()):
            value = value.replace(tzinfo=None) if name in walls and value is not None else value
            cursor.execute(f"update items set {name} = %s where id = %s", [value, f"n° {row}"])
        connection.commit()


def _differing() -> dict[str, int]:
    return {name: 1 for row, name in enumerate(COLUMNS) if _value(name, row) != COLUMNS[name][4]}


def test_a_postgresql_copy_with_other_types_is_compared_by_its_own_database(
    items: Shop, latin: Database, computed: list[bool]
) -> None:
    _fill(latin, [types[1] for types in COLUMNS.values()], [])
    found = _audit(items, _url("postgresql", latin))
    assert found["equal"], found
    assert (found["rows_copy"], found["lag"], found["not_compared"]) == (ROWS, 0, {})
    _change(latin, [])
    found = _audit(items, _url("postgresql", latin))
    assert (found["columns"], found["lag"]) == (_differing(), 0)
    assert computed == [True, True, True]


def test_a_mariadb_copy_is_compared_by_its_own_database(
    items: Shop, mariadb_database: Database, computed: list[bool]
) -> None:
    _fill(mariadb_database, [types[2] for types in COLUMNS.values()], ["at", "wall"])
    url = _url("mariadb", mariadb_database)
    found = _audit(items, url)
    assert found["equal"], found
    assert (found["rows_copy"], found["lag"], found["not_compared"]) == (ROWS, 0, {})
    _change(mariadb_database, ["at", "wall"])
    found = _audit(items, url)
    assert (found["columns"], found["lag"]) == (_differing(), 0)
    assert computed == [True, True, True]


def test_each_kind_of_difference_is_found_in_a_database(
    shop: Shop, latin: Database, computed: list[bool]
) -> None:
    columns = "id numeric, note text, amount numeric, paid boolean, updated_at timestamptz"
    _copy(shop, latin, columns, lambda row: [*row.values()])
    latin.execute("delete from orders where id <= 10", "insert into orders table orders limit 1")
    latin.execute(
        "update orders set note = 'old', paid = null where id = 500",
        "insert into orders values (5000, 'x', 1, true, '2025-03-01')",
    )
    url = _url("postgresql", latin)
    found = shop.audit("orders", "--copy-url", url, "--grace", "0")
    kinds = {kind: found[kind] for kind in ("lost", "stale", "extra", "doubled", "lag")}
    assert kinds == {"lost": 10, "stale": 1, "extra": 1, "doubled": 1, "lag": 0}
    assert found["columns"] == {"note": 1, "paid": 1}
    assert found["highest_cursor"] == "2025-04-11 16:00:00"
    assert computed == [True, True]


def _copy(shop: Shop, latin: Database, columns: str, show: Callable[[Row], Sequence[Any]]) -> None:
    latin.execute(f"create table orders ({columns})")
    with contextlib.closing(latin.connect()) as connection, connection.cursor() as cursor:
        for row in shop.rows():
            cursor.execute("insert into orders values (%s, %s, %s, %s, %s)", show(row))


def _copy_orders(shop: Shop, copy: Database) -> None:
    columns = "id bigint, note text, amount numeric, paid boolean, updated_at timestamptz"
    _copy(shop, copy, columns, lambda row: [*row.values()])


def test_types_with_another_text_are_compared_by_spark(
    shop: Shop, latin: Database, computed: list[bool]
) -> None:
    columns = "id text, note text, amount float8, paid text, updated_at text"
    _copy(shop, latin, columns, lambda row: [str(value) for value in row.values()])
    latin.execute("update orders set amount = amount + 0.001 where id = '7'")
    found = shop.audit("orders", "--copy-url", _url("postgresql", latin), "--grace", "0")
    assert (found["stale"], found["columns"], found["lag"]) == (1, {"amount": 1}, 0)
    assert computed == [False, False]


def test_a_database_without_md5_is_read_by_spark(shop: Shop, latin: Database) -> None:
    _copy_orders(shop, latin)
    latin.execute(
        "alter function pg_catalog.md5(text) rename to other_md5",
        "update orders set note = 'old' where id = 7",
    )
    found = shop.audit("orders", "--copy-url", _url("postgresql", latin), "--grace", "0")
    assert (found["stale"], found["columns"], found["lag"]) == (1, {"note": 1}, 0)


def test_a_database_that_counts_bytes_is_read_by_spark(shop: Shop, computed: list[bool]) -> None:
    change = r"update orders set note = E'\xc3\x84rger' where id <= 50"  # Ärger
    with _create(shop, "SQL_ASCII") as copy:
        _copy_orders(shop, copy)
        for database in (shop.database, copy):
            database.execute(change)
        found = shop.audit("orders", "--copy-url", _url("postgresql", copy), "--grace", "0")
    assert found["equal"], found
    assert computed == [False]


def test_flagged_rows_are_left_out_by_spark(shop: Shop, latin: Database) -> None:
    _copy_orders(shop, latin)
    latin.execute(
        "alter table orders add _fivetran_synced timestamptz, add _fivetran_deleted boolean",
        "update orders set _fivetran_deleted = true where id = 7",
    )
    found = shop.audit("orders", "--copy-url", _url("postgresql", latin), "--grace", "0")
    assert (found["lost"], found["loaded_by"]) == (1, "fivetran")

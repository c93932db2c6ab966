"""The database and Spark compute the same checksum for every value of every type.

The tests compare the checksums themselves. If the checksums of two equal rows differed, `reconcile`
would read the rows and find them equal: slow, but correct, so no other test would fail.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import string
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.reconcile.comparison import Comparison
from loader.rows.window import Window
from loader.sources.checksum import HashedColumn, spark_hash, text_format
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from tests.services import Database
from tests.sync.project import Project

ROWS = 300
TEXTS = [
    "",
    " ",
    "  both  ",
    "it's",
    'say "so"',
    "back\\slash",
    "\\x00",
    "line\nfeed\r\n\ttab",
    "null",
    "\x01",
    "a\x1fb",
    "\x1f\x1f",
    "äöü ß",
    "e\u0301 combining",
    "日本語",
    "😀👍🏽",
    "\u200b\ufeff",
    "%s ? :name {d '2025-01-01'}",
    "x" * 5000,
]
DECIMALS = ["0", "0.00001", "-0.00001", "1", "-1", "12345.67891", "-99999999.99999", "0.1", "1000"]
DAYS = ["0001-01-01", "1582-10-04", "1582-10-15", "1900-02-28", "1969-12-31", "1970-01-01"]
DAYS += ["2000-02-29", "2024-12-31", "9999-12-31"]
TIMES = ["00:00:00", "00:00:00.000001", "12:34:56.789", "23:59:59.999999"]

Values = Callable[[random.Random], Any]


def _texts(longest: int = 6000) -> Values:
    short = [text for text in TEXTS if len(text) <= longest]

    def value(chance: random.Random) -> str:
        if chance.random() < 0.7:
            return chance.choice(short)
        letters = string.printable.replace("\x0b", "") + "éß漢😀"
        return "".join(chance.choice(letters) for _ in range(chance.randint(0, min(longest, 40))))

    return value


def _moment(chance: random.Random, first: int = 1) -> dt.datetime:
    days = [day for day in DAYS if int(day[:4]) >= first]
    return dt.datetime.fromisoformat(f"{chance.choice(days)} {chance.choice(TIMES)}")


def _integers(bits: int, low: int | None = None) -> Values:
    high = 2 ** (bits - 1) - 1 if low is None else 2**bits - 1
    least = -high - 1 if low is None else low
    edges = [least, least + 1, 0, 1, high - 1, high]
    return lambda chance: chance.choice([*edges, chance.randint(least, high)])


def _bytes(chance: random.Random) -> bytes:
    return chance.choice([b"", b"\0", b"\xff\x00\\'", chance.randbytes(20)])


def _json(chance: random.Random) -> str:
    return chance.choice(
        ['{"a": 1}', '{"b":  [1, 2.50], "a": null}', "[]", '"te\\u00e9xt é"', "null", "1e10"]
    )


POSTGRESQL: dict[str, tuple[str, Values]] = {
    "i2": ("smallint", _integers(16)),
    "i4": ("integer", _integers(32)),
    "i8": ("bigint", _integers(64)),
    "flag": ("boolean", lambda chance: chance.random() < 0.5),
    "n": ("numeric(13, 5)", lambda chance: Decimal(chance.choice(DECIMALS))),
    "n0": ("numeric(20)", lambda chance: chance.randint(-(10**19), 10**19)),
    "n38": ("numeric(38, 18)", lambda chance: Decimal(chance.randint(-(10**37), 10**37)) / 10**18),
    "small": ("numeric(20, 12)", lambda chance: Decimal(chance.randint(-99, 99)) / 10**12),
    "free": ("numeric", lambda chance: Decimal(chance.choice(["1.5", "-0.25", "3e-18", "7e10"]))),
    "day": ("date", lambda chance: dt.date.fromisoformat(chance.choice(DAYS))),
    "wall": ("timestamp", _moment),
    "wall3": (
        "timestamp(3)",
        lambda chance: _moment(chance).replace(microsecond=chance.choice([0, 1000, 999000])),
    ),
    "instant": (
        "timestamptz",
        lambda chance: _moment(chance, 1582).replace(tzinfo=dt.timezone.utc),
    ),
    "time": ("time", lambda chance: chance.choice([*TIMES, "24:00"])),
    "zoned": ("timetz", lambda chance: chance.choice(["24:00Z", "10:00:00.5+01", "01:00-04:30"])),
    "t": ("text", _texts()),
    "v": ("varchar(60)", _texts(60)),
    "c": ("char(8)", lambda chance: chance.choice(["", "a", "ab  ", "ünïcödé", "12345678"])),
    "name": ("name", lambda chance: chance.choice(["n", "", "Nämé"])),
    "u": ("uuid", lambda chance: uuid.UUID(int=chance.getrandbits(128))),
    "b": ("bytea", _bytes),
    "j": ("json", _json),
    "jb": ("jsonb", _json),
    "mood": ("mood", lambda chance: chance.choice(["so so", "it's", "Ö"])),
    "price": ("price", lambda chance: Decimal(chance.randint(-999, 999)) / 100),
    "we ird.\"'`name": ("text", _texts()),
}
MARIADB: dict[str, tuple[str, Values]] = {
    "i1": ("tinyint", _integers(8)),
    "flag": ("tinyint(1)", lambda chance: chance.choice([0, 1])),
    "bit1": ("bit(1)", lambda chance: chance.random() < 0.5),
    "bits": ("bit(12)", lambda chance: chance.randint(0, 4095)),
    "i2": ("smallint", _integers(16)),
    "i3": ("mediumint", _integers(24)),
    "i4": ("int", _integers(32)),
    "u4": ("int unsigned", _integers(32, 0)),
    "zeros": ("int(10) zerofill", _integers(31, 0)),
    "i8": ("bigint", _integers(64)),
    "u8": ("bigint unsigned", _integers(64, 0)),
    "n": ("decimal(13, 5)", lambda chance: Decimal(chance.choice(DECIMALS))),
    "n38": ("decimal(38, 18)", lambda chance: Decimal(chance.randint(-(10**37), 10**37)) / 10**18),
    "nz": ("decimal(9, 2) zerofill", lambda chance: Decimal(chance.randint(0, 999)) / 100),
    "small": ("decimal(20, 12)", lambda chance: Decimal(chance.randint(-99, 99)) / 10**12),
    "day": ("date", lambda chance: dt.date.fromisoformat(chance.choice(DAYS))),
    "wall": ("datetime(6)", lambda chance: _moment(chance, 1900)),
    "wall0": ("datetime", lambda chance: _moment(chance, 1900).replace(microsecond=0)),
    "instant": (
        "timestamp(6) null",
        lambda chance: chance.choice(
            [
                dt.datetime(1970, 1, 1, 5, 0, 1),  # the server's zone is +05:00
                dt.datetime(2025, 3, 30, 2, 30, 0, 123456),
                dt.datetime(2038, 1, 19, 3, 14, 7, 999999),
            ]
        ),
    ),
    "time": ("time", lambda chance: chance.choice(["-838:59:59", "00:00:01", "24:00:00"])),
    "time6": ("time(6)", lambda chance: chance.choice([*TIMES, "-00:00:00.5"])),
    "t": ("text", _texts()),
    "lt": ("longtext", _texts()),
    "v": ("varchar(60)", _texts(60)),
    "latin": ("varchar(20) charset latin1", lambda chance: chance.choice(["é", "ß'", "\\", "€"])),
    "c": ("char(8)", lambda chance: chance.choice(["", "a", "ab  ", "ünïcödé", "12345678"])),
    "e": ("enum('x', 'y z', 'it''s')", lambda chance: chance.choice(["x", "y z", "it's"])),
    "s": ("set('a', 'b')", lambda chance: chance.choice(["", "a", "b", "a,b"])),
    "j": ("json", _json),
    "u": ("uuid", lambda chance: str(uuid.UUID(int=chance.getrandbits(128), version=4))),
    "b": ("blob", _bytes),
    "b8": ("binary(8)", lambda chance: chance.randbytes(chance.randint(0, 8))),
    "vb": ("varbinary(30)", _bytes),
    "we ird.\"'`name": ("text", _texts()),
}


def _fill(database: Database, mark: str, columns: dict[str, tuple[str, Values]]) -> None:
    chance = random.Random(5)

    def quoted(name: str) -> str:
        return mark + name.replace(mark, mark * 2) + mark

    defined = ", ".join(f"{quoted(name)} {kind}" for name, (kind, _) in columns.items())
    key = "varchar(60)"
    database.execute(
        f"create table t (part {key} not null, id int not null, {defined}, primary key (part, id))"
    )
    places = ", ".join(["%s"] * (len(columns) + 2))
    parts = [text for text in TEXTS if len(text) <= 60 and "\0" not in text]
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for number in range(ROWS):
            values = [
                None if number and chance.random() < 0.1 else draw(chance)
                for _, draw in columns.values()
            ]
            cursor.execute(
                f"insert into t values ({places})",
                [parts[number % len(parts)], number, *values],
            )


@contextlib.contextmanager
def compare_only_table(project: Project) -> Iterator[Comparison]:
    """Yields a comparison of the only table, which is not synced first."""
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    [part] = pipeline.plan_tables()
    [plan] = part.plans
    lake = pipeline.open_stores(part.spec).lake
    window = Window(plan.cursor)
    with part.source.snapshot([plan.table for plan in part.plans]) as snapshot:
        contents = snapshot.contents(lake.spark, plan.table, plan.key, window, True)
        yield Comparison(plan, lake, contents, window, snapshot.missing_means_deleted)


def _is_equal(comparison: Comparison) -> bool:
    return comparison.compare_buckets(1, (0,))[1] is None


def differing_columns(comparison: Comparison) -> set[str]:
    """Returns the columns whose checksums differ."""
    whole = comparison.contents.checksum_columns
    found = set()
    for part in whole:
        comparison.contents.checksum_columns = (part,)
        if not _is_equal(comparison):
            found.add(part.name)
    comparison.contents.checksum_columns = whole
    return found


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_every_type_has_the_same_checksum_in_the_database_and_in_spark(
    project: Project, request: pytest.FixtureRequest, kind: str
) -> None:
    fixture, mark, columns = {
        "postgresql": ("postgres_database", '"', POSTGRESQL),
        "mariadb": ("mariadb_database", "`", MARIADB),
    }[kind]
    database: Database = request.getfixturevalue(fixture)
    if kind == "postgresql":
        database.execute(
            "create type mood as enum ('so so', 'it''s', 'Ö')",
            "create domain price as numeric(10, 2) check (value > -1000)",
        )
    _fill(database, mark, columns)
    project.jdbc(database, ["t"], table_options={"t": {"cursor_field": "id"}})
    assert project.run().table("shop.t")["appended"] == ROWS
    with compare_only_table(project) as comparison:
        assert {part.name for part in comparison.contents.checksum_columns} == {
            "part",
            "id",
            *columns,
        }
        buckets, share = comparison.compare_buckets(16, range(16))
        assert share is None, differing_columns(comparison)
    assert sum(bucket.rows_source for bucket in buckets) == ROWS
    assert sum(bucket.rows_snapshot for bucket in buckets) == ROWS
    # every column changes the checksum
    cleared = ", ".join(f"{mark}{name.replace(mark, mark * 2)}{mark} = null" for name in columns)
    database.execute(f"update t set {cleared} where id = 0")
    with compare_only_table(project) as comparison:
        assert differing_columns(comparison) == set(columns)


@pytest.mark.parametrize("columns", [1, 49, 50, 51, 250])
def test_tables_of_any_width(project: Project, postgres_database: Database, columns: int) -> None:
    names = [f"c{i}" for i in range(columns)]
    postgres_database.execute(
        f"create table t (id int primary key, {', '.join(f'{name} text' for name in names)})",
        f"insert into t select i, {', '.join(['i::text'] * columns)} "
        "from generate_series(1, 20) as i",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    project.run()
    with compare_only_table(project) as comparison:
        assert _is_equal(comparison)


def test_values_that_the_driver_shifts_are_no_differences(
    project: Project, mariadb_database: Database
) -> None:
    # The driver shifts times before the calendar reform: the checksums differ, but not the rows.
    mariadb_database.execute(
        "create table t (id int primary key, wall datetime(6))",
        "insert into t values (1, '0001-01-01 00:00:00'), (2, '1500-01-01 00:00:00'), (3, null), "
        "(4, '2025-01-01 00:00:00')",
    )
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    project.run()
    with compare_only_table(project) as comparison:
        assert not _is_equal(comparison)
    ran = project.loader("reconcile", "--repair")
    assert ran.code == 0, ran.text
    [found] = [e for e in ran.events if e["event"] == "reconciled"]
    assert (found["status"], found["missed_updates"]) == ("equal", 0)


@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz"])
def test_microseconds_in_nested_values_count(spark: SparkSession, type_: str) -> None:
    values = [f"named_struct('at', array({type_} '2025-01-01 00:00:00.00000{n}'))" for n in (1, 2)]
    rows = spark.sql(" union all ".join(f"select {value} as value" for value in values))
    data_type = rows.schema["value"].dataType
    part = HashedColumn("value", data_type, text_format(data_type))
    assert rows.select(spark_hash([part])).distinct().count() == 2

"""Every type of each database: the type that it is read as, the raw table's type, and a value.

The expected results are the same in both versions of Spark: `make test-matrix` runs this file with
each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loader.lake.source_schema import PROPERTY, SourceSchema
from loader.lake.type_widening import raw_type
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_derby import Execute, execute, url

__all__ = ["execute", "url"]  # fixtures

Type = tuple[str, str, str, "str | None"]
"""A type, a value in SQL, the type that it is read as, and the raw table's value as a string."""

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"

POSTGRESQL: list[Type] = [
    ("smallint", "7", "smallint", "7"),
    ("int", "7", "int", "7"),
    ("bigint", "7", "bigint", "7"),
    ("oid", "4711", "decimal(20,0)", "4711"),
    ("numeric", "'1.5'", "decimal(38,18)", "1.500000000000000000"),
    ("numeric(9,2)", "1.5", "decimal(9,2)", "1.50"),
    ("numeric(38,0)", "1", "decimal(38,0)", "1"),
    ("real", "1.5", "float", "1.5"),
    ("double precision", "1.5", "double", "1.5"),
    ("money", "'12.50'", "string", "$12.50"),
    ("boolean", "true", "boolean", "true"),
    ("bit(1)", "b'1'", "boolean", "true"),
    ("bit(3)", "b'101'", "string", "101"),
    ("varbit", "b'101'", "string", "101"),
    ("char(5)", "'ab'", "string", "ab"),
    ("varchar(5)", "'ab'", "string", "ab"),
    ("text", "'ab'", "string", "ab"),
    ('"char"', "'z'", "string", "z"),
    ("name", "'n'", "string", "n"),
    ("bytea", "'\\x414243'", "binary", "ABC"),
    ("date", "'2024-01-02'", "date", "2024-01-02"),
    ("time", "'01:02:03'", "string", "01:02:03.000000"),
    ("time(3)", "'01:02:03.125'", "string", "01:02:03.125000"),
    ("timetz", "'01:02:03.5+02'", "string", "01:02:03.500000+02"),
    (
        "timestamp",
        "'2024-01-02 03:04:05.123456'",
        "timestamp_ntz",
        "2024-01-02 03:04:05.123456",
    ),
    ("timestamp(0)", "'2024-01-02 03:04:05'", "timestamp_ntz", "2024-01-02 03:04:05"),
    (
        "timestamptz",
        "'2024-01-02 03:04:05.123456+02'",
        "timestamp",
        "2024-01-02 01:04:05.123456",
    ),
    ("interval", "'1 day 02:03:04'", "string", "1 day 02:03:04"),
    (
        "uuid",
        f"'{UUID}'",
        "string",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    ),
    ("json", "'{\"a\": 1}'", "string", '{"a": 1}'),
    ("jsonb", "'{\"a\": 1}'", "string", '{"a": 1}'),
    ("inet", "'10.0.0.1/8'", "string", "10.0.0.1/8"),
    ("cidr", "'10.0.0.0/8'", "string", "10.0.0.0/8"),
    ("macaddr", "'08:00:2b:01:02:03'", "string", "08:00:2b:01:02:03"),
    ("point", "'(1,2)'", "string", "(1,2)"),
    ("box", "'(1,2),(0,0)'", "string", "(1,2),(0,0)"),
    ("tsvector", "'a b'", "string", "'a' 'b'"),
    ("int4range", "'[1,5)'", "string", "[1,5)"),
    ("mood", "'sad'", "string", "sad"),
    ("pair", "row(1,'a')", "string", "(1,a)"),
    ("price", "1.5", "decimal(10,2)", "1.50"),
    ("moment", "'2024-01-02 03:04:05+02'", "timestamp", "2024-01-02 01:04:05"),
    ("opening", "'01:02:03'", "string", "01:02:03.000000"),
    ("pg_lsn", "'0/16B3748'", "string", "0/16B3748"),
    ("xid", "'7'", "string", "7"),
    ("int[]", "'{1,null,3}'", "array<int>", "[1, null, 3]"),
    ("smallint[]", "'{1}'", "array<smallint>", "[1]"),
    ("bigint[]", "'{1}'", "array<bigint>", "[1]"),
    ("text[]", "array['a,b','c']", "array<string>", "[a,b, c]"),
    ("text[][]", "array['a,b','c']", "array<string>", "[a,b, c]"),
    ("varchar(3)[]", "array['a']", "array<string>", "[a]"),
    ("char(3)[]", "array['a']", "array<string>", "[a]"),
    ("numeric[]", "'{1.5}'", "array<decimal(38,18)>", "[1.500000000000000000]"),
    ("numeric(9,2)[]", "'{1.5}'", "array<decimal(9,2)>", "[1.50]"),
    ("real[]", "'{1.5}'", "array<float>", "[1.5]"),
    ("double precision[]", "'{1.5}'", "array<double>", "[1.5]"),
    ("boolean[]", "'{t,f}'", "array<boolean>", "[true, false]"),
    ("date[]", "'{2024-01-02}'", "array<date>", "[2024-01-02]"),
    (
        "timestamp[]",
        "'{2024-01-02 03:04:05.123456}'",
        "array<timestamp_ntz>",
        "[2024-01-02 03:04:05.123456]",
    ),
    (
        "timestamptz[]",
        "'{2024-01-02 03:04:05.123456+02}'",
        "array<timestamp>",
        "[2024-01-02 01:04:05.123456]",
    ),
    (
        "time[]",
        "'{24:00,null,01:02:03.5}'",
        "array<string>",
        "[24:00:00.000000, null, 01:02:03.500000]",
    ),
    ("timetz[]", "'{01:02:03.5+02}'", "array<string>", "[01:02:03.500000+02]"),
    ("time(3)[]", "'{}'", "array<string>", "[]"),
    (
        "uuid[]",
        f"'{{{UUID}}}'",
        "array<string>",
        "[6ba7b810-9dad-11d1-80b4-00c04fd430c8]",
    ),
    ("jsonb[]", "null", "array<string>", None),
    ("bytea[]", "null", "array<binary>", None),
    ("mood[]", "'{sad}'", "array<string>", "[sad]"),
    ("inet[]", "'{10.0.0.1}'", "array<string>", "[10.0.0.1]"),
    ("oid[]", "'{7}'", "array<bigint>", "[7]"),
    ("interval[]", "null", "array<string>", None),
    ("bit(3)[]", "'{101,null}'", "array<string>", "[101, null]"),
    ("varbit[]", "'{101}'", "array<string>", "[101]"),
    ("marks", "b'011'", "string", "011"),
    ("class", "'H'", "string", "H"),
]
MARIADB: list[Type] = [
    ("tinyint", "-7", "tinyint", "-7"),
    ("tinyint unsigned", "200", "smallint", "200"),
    ("tinyint(1)", "2", "tinyint", "2"),
    ("smallint", "7", "int", "7"),
    ("smallint unsigned", "65535", "int", "65535"),
    ("mediumint", "7", "int", "7"),
    ("mediumint unsigned", "16777215", "bigint", "16777215"),
    ("int", "7", "int", "7"),
    ("int unsigned", "4294967295", "bigint", "4294967295"),
    ("bigint", "7", "bigint", "7"),
    ("bigint unsigned", "18446744073709551615", "decimal(20,0)", "18446744073709551615"),
    ("int(10) zerofill", "7", "bigint", "7"),
    ("decimal(9,2)", "1.5", "decimal(9,2)", "1.50"),
    ("decimal(38,18)", "1.5", "decimal(38,18)", "1.500000000000000000"),
    ("decimal(9,2) unsigned", "1.5", "decimal(9,2)", "1.50"),
    ("float", "1.5", "double", "1.5"),
    ("double", "1.5", "double", "1.5"),
    ("float unsigned", "1.5", "double", "1.5"),
    ("double unsigned", "1.5", "double", "1.5"),
    ("float(7,2)", "1.5", "double", "1.5"),
    ("bit(1)", "b'1'", "boolean", "true"),
    ("bit(8)", "b'10100101'", "string", "10100101"),
    ("bit(64)", "b'1'", "string", f"{1:064b}"),
    ("char(5)", "'ab'", "string", "ab"),
    ("varchar(5)", "'ab'", "string", "ab"),
    ("tinytext", "'ab'", "string", "ab"),
    ("text", "'ab'", "string", "ab"),
    ("mediumtext", "'ab'", "string", "ab"),
    ("longtext", "'ab'", "string", "ab"),
    ("varchar(5) charset latin1", "'ab'", "string", "ab"),
    ("binary(3)", "'ABC'", "binary", "ABC"),
    ("varbinary(3)", "'ABC'", "binary", "ABC"),
    ("tinyblob", "'ABC'", "binary", "ABC"),
    ("blob", "'ABC'", "binary", "ABC"),
    ("mediumblob", "'ABC'", "binary", "ABC"),
    ("longblob", "'ABC'", "binary", "ABC"),
    ("date", "'2024-01-02'", "date", "2024-01-02"),
    ("time", "'01:02:03'", "string", "01:02:03.000000"),
    ("time(6)", "'-838:59:59'", "string", "-838:59:59.000000"),
    ("datetime", "'2024-01-02 03:04:05'", "timestamp_ntz", "2024-01-02 03:04:05"),
    (
        "datetime(6)",
        "'2024-01-02 03:04:05.123456'",
        "timestamp_ntz",
        "2024-01-02 03:04:05.123456",
    ),
    ("timestamp null", "'2024-01-02 03:04:05'", "timestamp", "2024-01-01 22:04:05"),
    (
        "timestamp(6) null",
        "'2024-01-02 03:04:05.123456'",
        "timestamp",
        "2024-01-01 22:04:05.123456",
    ),
    ("year", "2024", "int", "2024"),
    ("enum('a','b')", "'b'", "string", "b"),
    ("set('a','b')", "'a,b'", "string", "a,b"),
    ("json", "'{\"a\": 1}'", "string", '{"a": 1}'),
    (
        "uuid",
        f"'{UUID}'",
        "string",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    ),
    ("inet6", "'::1'", "string", "::1"),
    ("inet4", "'10.0.0.1'", "string", "10.0.0.1"),
    ("point", "null", "binary", None),
    ("boolean", "true", "tinyint", "1"),
]
DERBY: list[Type] = [
    ("smallint", "7", "int", "7"),
    ("int", "7", "int", "7"),
    ("bigint", "7", "bigint", "7"),
    ("decimal(9,2)", "1.5", "decimal(9,2)", "1.50"),
    ("real", "1.5", "float", "1.5"),
    ("double", "1.5", "double", "1.5"),
    ("boolean", "true", "boolean", "true"),
    ("char(5)", "'ab'", "string", "ab"),
    ("varchar(5)", "'ab'", "string", "ab"),
    ("long varchar", "'ab'", "string", "ab"),
    ("clob", "'ab'", "string", "ab"),
    ("char(3) for bit data", "x'414243'", "binary", "ABC"),
    ("varchar(3) for bit data", "x'414243'", "binary", "ABC"),
    ("long varchar for bit data", "x'414243'", "binary", "ABC"),
    ("blob", "cast(x'414243' as blob)", "binary", "ABC"),
    ("date", "'2024-01-02'", "date", "2024-01-02"),
    ("time", "'01:02:03'", "string", "01:02:03"),
    (
        "timestamp",
        "'2024-01-02 03:04:05.123456'",
        "timestamp_ntz",
        "2024-01-02 03:04:05.123456",
    ),
]

# A row's hash decides whether it is new, so hashes must be equal in all versions of Spark.
HASHES = {
    "postgresql": 5508556975752657725,
    "mariadb": -5334782562291651583,
    "derby": -273736173333188343,
}


CREATED = (
    "create type mood as enum ('sad', 'ok')",
    "create type pair as (a int, b text)",
    "create domain price as numeric(10, 2)",
    "create domain moment as timestamptz",
    "create domain opening as time",
    "create domain marks as bit(3)",
    "create domain class as char(2)",
)
"""The types that PostgreSQL's table uses."""


def define(types: Sequence[Type]) -> str:
    """Returns the statement that creates a table `t` with a column of each type."""
    columns = ", ".join(f"v{i} {kind}" for i, (kind, *_) in enumerate(types))
    return f"create table t (id int not null primary key, c int, {columns})"


def _check(
    project: Project, run: Callable[..., object], types: Sequence[Type], database: str
) -> None:
    names = [f"v{i}" for i in range(len(types))]
    run(
        define(types),
        f"insert into t values (1, 1, {', '.join(value for _, value, *_ in types)})",
        "insert into t (id, c) values (2, 1)",
    )
    project.run()
    raw = project.lake().frame("t").orderBy("id")
    first, second = raw.selectExpr(
        *(f"cast({name} as string) as {name}" for name in names)
    ).collect()
    reported = dict(project.rows("show tblproperties raw.t"))[PROPERTY]
    read = SourceSchema.parse(reported, "t").columns
    found = [
        (kind, value, read[name].dataType.simpleString(), first[name])
        for name, (kind, value, *_) in zip(names, types, strict=True)
    ]
    assert found == list(types)
    assert set(second) == {None}
    raw_types = {name: raw.schema[name].dataType for name in names}
    assert raw_types == {name: raw_type(read[name].dataType) for name in names}
    assert raw.first()["_cq_row_hash"] == HASHES[database]
    assert project.run().table("shop.t")["status"] == "nothing new"
    reconciled = project.loader("reconcile")
    assert reconciled.code == 0, reconciled.text


def test_types_of_postgresql(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(*CREATED)
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    _check(project, postgres_database.execute, POSTGRESQL, "postgresql")


def test_types_of_mariadb(project: Project, mariadb_database: Database) -> None:
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    _check(project, mariadb_database.execute, MARIADB, "mariadb")


def test_types_of_derby(project: Project, execute: Execute, url: str) -> None:
    own = {"url": url, "table_options": {"t": {"cursor_field": "c"}}}
    project.add("shop", "jdbc", ["t"], own)
    _check(project, execute, DERBY, "derby")

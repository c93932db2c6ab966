"""`column_types` loads any type as a string, and other types exactly or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.reconcile.test_checksum import compare_only_table, differing_columns
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_derby import Execute, execute, url
from tests.sync.test_types import CREATED, DERBY, MARIADB, POSTGRESQL, Type, define

__all__ = ["execute", "url"]  # fixtures

ODD: list[Type] = [
    ("int[]", "'{{1,2},{3,4}}'", "", "{{1,2},{3,4}}"),
    ("timestamptz[]", "'{infinity}'", "", "{infinity}"),
    ("date", "'0044-03-15 BC'", "", "0044-03-15 BC"),
    ("date", "'infinity'", "", "infinity"),
    ("timestamp", "'294276-12-31 23:59:59.999999'", "", "294276-12-31 23:59:59.999999"),
    ("timestamptz", "'1500-10-05 00:00+00'", "", "1500-10-05 00:00:00+00"),
    ("numeric", "'NaN'", "", "NaN"),
    ("numeric", "repeat('9', 60)::numeric", "", "9" * 60),
    ("numeric(50,20)", "0.00000000000000000001", "", "0.00000000000000000001"),
    ("numeric(30)[]", "'{1}'", "", "{1}"),
    ("bytea", r"'\x00ff'", "", r"\x00ff"),
    ("real", "16777217", "", "1.6777216e+07"),
    ("double precision", "0.1::float8 + 0.2", "", "0.30000000000000004"),
    ("polygon", "'((0,0),(1,1),(1,0))'", "", "((0,0),(1,1),(1,0))"),
    ("tstzrange", "'[2024-01-01 00:00+00,)'", "", '["2024-01-01 00:00:00+00",)'),
    ("bit varying(9)", "b'0101'", "", "0101"),
    ("time", "'24:00'", "", "24:00:00.000000"),
    ("int4multirange", "'{[1,3),[5,9)}'", "", "{[1,3),[5,9)}"),
]
"""Values that only a string column can store, or that have several text forms."""
ZERO: list[Type] = [
    ("date", "'0000-00-00'", "", "0000-00-00"),
    ("datetime(6)", "'2024-00-00 01:02:03.5'", "", "2024-00-00 01:02:03.500000"),
    ("blob", "x'00ff'", "", "0x00FF"),
    ("binary(2)", "x'c3'", "", "0xC300"),
    ("point", "point(1, 2)", "", "POINT(1 2)"),
    ("decimal(65,30)", "1.5", "", "1.500000000000000000000000000000"),
    ("bigint unsigned", "18446744073709551615", "", "18446744073709551615"),
    ("bit(1)", "b'1'", "", "1"),
    ("float", "16777217", "", "16777216"),
    ("double", "0.1", "", "0.1"),
    ("timestamp null", "'2024-01-02 03:04:05'", "", "2024-01-01 22:04:05"),
]


def _name_columns(types: list[Type]) -> list[str]:
    return [f"v{i}" for i in range(len(types))]


def _load_texts(project: Project, types: list[Type]) -> list[str | None]:
    """Syncs each column as a string, reconciles, and returns the first row's texts."""
    ran = project.run()
    assert ran.warnings == []
    names = _name_columns(types)
    raw = project.lake().frame("t").orderBy("id")
    assert {raw.schema[name].dataType.simpleString() for name in names} == {"string"}
    first, second = raw.select(*names).collect()
    assert set(second) == {None}
    assert project.run().table("shop.t")["status"] == "nothing new"
    reconciled = project.loader("reconcile")
    assert reconciled.code == 0, reconciled.text
    return list(first)


def _insert(types: list[Type]) -> tuple[str, str]:
    values = ", ".join(value for _, value, *_ in types)
    return f"insert into t values (1, 1, {values})", "insert into t (id, c) values (2, 1)"


def _options(types: list[Type]) -> dict[str, Any]:
    chosen = dict.fromkeys(_name_columns(types), "string")
    return {"t": {"cursor_field": "c", "column_types": chosen}}


def test_every_type_of_postgresql_as_text(project: Project, postgres_database: Database) -> None:
    types = [*POSTGRESQL, *ODD]
    postgres_database.execute(*CREATED, define(types), *_insert(types))
    project.jdbc(postgres_database, ["t"], table_options=_options(types))
    found = _load_texts(project, types)
    assert found[len(POSTGRESQL) :] == [text for *_, text in ODD]
    texts = ", ".join(f"v{i}::text" for i in range(len(POSTGRESQL)))
    postgres_database.execute("set time zone 'UTC'")
    [row] = postgres_database.query(f"select {texts} from t where id = 1")
    for (kind, *_), ours, theirs in zip(POSTGRESQL, found, row, strict=False):
        if not kind.startswith(("time", "moment", "opening", "bytea")):
            assert ours == theirs, kind


def test_every_type_of_mariadb_as_text(project: Project, mariadb_database: Database) -> None:
    types = [*MARIADB, *ZERO]
    with mariadb_database.connect() as connection, connection.cursor() as cursor:
        for statement in ("set sql_mode = ''", define(types), *_insert(types)):
            cursor.execute(statement)
        connection.commit()
    project.jdbc(mariadb_database, ["t"], table_options=_options(types))
    found = _load_texts(project, types)
    assert found[len(MARIADB) :] == [text for *_, text in ZERO]
    by_kind = dict(zip((kind for kind, *_ in MARIADB), found, strict=False))
    assert (by_kind["bit(8)"], by_kind["tinyint(1)"], by_kind["year"]) == ("10100101", "2", "2024")


def test_bytes_whose_text_mariadb_cannot_write_are_refused(
    project: Project, mariadb_database: Database
) -> None:
    """hex() has two digits per byte; MariaDB returns null if they exceed max_allowed_packet."""
    half = "(@@max_allowed_packet div 2 - 1)"
    mariadb_database.execute(
        "create table t (id int primary key, c int, b longblob, same blob)",
        f"insert into t values (1, 1, repeat('x', {half}), 'AB')",
    )
    options = {"cursor_field": "c", "column_types": {"b": "string", "same": "binary"}}
    project.jdbc(mariadb_database, ["t"], table_options={"t": options})
    project.run()
    [(packet,)] = mariadb_database.query("select @@max_allowed_packet")
    found = "select length(b), cast(same as string) from raw.t"
    assert project.rows(found) == [(packet, "AB")]
    mariadb_database.execute(f"insert into t values (2, 2, repeat('x', {half} + 1), '')")
    [error] = project.loader("run").errors
    assert "column b: 1 values of b are longer than max_allowed_packet" in error
    assert len(project.rows(found)) == 1


def test_every_type_of_derby_as_text(project: Project, execute: Execute, url: str) -> None:
    types = [one for one in DERBY if "blob" not in one[0]]  # the driver returns no text
    execute(define(types), *_insert(types))
    project.add("shop", "jdbc", ["t"], {"url": url, "table_options": _options(types)})
    found = _load_texts(project, types)
    by_kind = dict(zip((kind for kind, *_ in types), found, strict=True))
    assert (by_kind["decimal(9,2)"], by_kind["char(5)"], by_kind["date"]) == (
        "1.50",
        "ab",
        "2024-01-02",
    )


CAST = {
    "whole": (
        "numeric",
        "bigint",
        ("12.00", "-9223372036854775808"),
        ("0.5", "9223372036854775808", "'NaN'"),
    ),
    "small": ("int", "tinyint", ("127", "-128"), ("128",)),
    "wide": ("int", "bigint", ("7",), ()),
    "exact": (
        "numeric",
        "decimal(38,30)",
        ("4.2e-21", "12345678.5"),
        ("0.0000000000000000000000000000001", "100000000"),
    ),
    "round": (
        "double precision",
        "decimal(38,2)",
        ("1e20", "-1.5e-1", "0"),
        ("1.005", "1e+300", "'-Infinity'"),
    ),
    "units": ("double precision", "bigint", ("1e17", "-2"), ("1e+19", "1e-07", "0.5")),
    "far": ("numeric(20,3)", "double", ("0.125", "12345678901234.5"), ("12345678901234567.125",)),
    "day": ("text", "date", ("'2024-02-29'",), ("'2023-02-29'", "'2024-01-02 00:00:01'", "'soon'")),
    "wall": (
        "text",
        "timestamp_ntz",
        ("'2024-01-02 03:04:05.123456'", "'2024-01-02'"),
        ("'2024-01-02 03:04:05.1234567'", "'2024-01-02 03:04:05+01'"),
    ),
    "moment": ("text", "timestamp", ("'2024-01-02T03:04:05+01:00'",), ("'tomorrow'",)),
    "flag": ("smallint", "boolean", ("1", "0"), ("2",)),
    "number": ("text", "int", ("'007'", "' 7 '"), ("'7a'", "'2147483648'", "''")),
    "bytes": ("text", "binary", ("'é'",), ()),
    "same": ("bytea", "binary", (r"'\x4142'",), ()),
}
"""By column: a PostgreSQL type, the type it is loaded as, values that fit, and others."""


def test_other_types_hold_a_value_exactly_or_the_table_fails(
    project: Project, postgres_database: Database
) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in CAST.items())
    chosen = {name.upper(): as_ for name, (_, as_, *_) in CAST.items()}
    bad = [(name, as_, value) for name, (_, as_, _, wrong) in CAST.items() for value in wrong]
    postgres_database.execute(
        f"create table fit (id int primary key, {columns})",
        "insert into fit (id) values (0)",
        *(
            f"insert into fit (id, {name}) values ({10 * n + m + 1}, {value})"
            for n, (name, (_, _, right, _)) in enumerate(CAST.items())
            for m, value in enumerate(right)
        ),
        *(
            f"create table bad{n} as select 1 as id, {value}::{CAST[name][0]} as {name}"
            for n, (name, _, value) in enumerate(bad)
        ),
    )
    options: dict[str, Any] = {"fit": {"cursor_field": "id", "column_types": chosen}}
    for n, (name, as_, _) in enumerate(bad):
        options[f"bad{n}"] = {"sync_mode": "full_refresh", "column_types": {name: as_}}
    project.jdbc(postgres_database, list(options), table_options=options)
    ran = project.loader("run")
    assert ran.table("shop.fit")["status"] == "synced"
    errors = {error.split(":")[0]: error for error in ran.errors}
    for n, (name, as_, value) in enumerate(bad):
        error = errors.pop(f"table shop.bad{n}")
        text = value.strip("'")
        assert error.startswith(
            f"table shop.bad{n}: {name} has the value '{text}', which {as_} cannot store exactly: "
            f"set another type for the column in column_types ({name}: string stores every value)"
        ), value
    assert errors == {}
    raw = project.lake().frame("fit")
    kinds = {name: raw.schema[name].dataType.simpleString() for name in CAST}
    assert kinds == {name: as_ for name, (_, as_, *_) in CAST.items()} | {"small": "int"}
    found = {
        name: [
            row[0]
            for row in raw.where(f"{name} is not null")
            .selectExpr(f"cast({name} as string)", "id")
            .orderBy("id")
            .collect()
        ]
        for name in CAST
    }
    assert found == {
        "whole": ["12", "-9223372036854775808"],
        "small": ["127", "-128"],
        "wide": ["7"],
        "exact": ["4.200000000E-21", "12345678.500000000000000000000000000000"],
        "round": ["100000000000000000000.00", "-0.15", "0.00"],
        "units": ["100000000000000000", "-2"],
        "far": ["0.125", "1.23456789012345E13"],
        "day": ["2024-02-29"],
        "wall": ["2024-01-02 03:04:05.123456", "2024-01-02 00:00:00"],
        "moment": ["2024-01-02 02:04:05"],
        "flag": ["true", "false"],
        "number": ["7", "7"],
        "bytes": ["é"],
        "same": ["AB"],
    }
    reconciled = project.loader("reconcile", "--select", "shop.fit")
    assert reconciled.code == 0, reconciled.text
    postgres_database.execute("update fit set whole = 13, bytes = 'x' where id = 1")
    postgres_database.execute("drop table " + ", ".join(f"bad{n}" for n in range(len(bad))))
    project.jdbc(postgres_database, ["fit"], table_options={"fit": options["fit"]})
    with compare_only_table(project) as comparison:
        assert differing_columns(comparison) == {"whole", "bytes"}


def test_a_type_that_cannot_be_chosen_is_one_error(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (code text primary key, id int, amount numeric)")
    for chosen, error in (
        ({"amuont": "string"}, "Did you mean `amount`? Its columns: code, id, amount"),
        ({"amount": "string", "AMOUNT": "double"}, "'AMOUNT' is the column 'amount', which is"),
        ({"id": "string"}, "the type of the cursor 'id' cannot be changed"),
        ({"code": "bigint"}, "'code' is a column of the key, and different"),
        ({"amount": "strin"}, "'strin' is not a valid type of a column"),
        ({"amount": "decimal(39, 2)"}, "'decimal(39, 2)' is not a valid decimal type"),
    ):
        options = {"t": {"cursor_field": "id", "column_types": chosen}}
        project.jdbc(postgres_database, ["t"], table_options=options)
        ran = project.loader("run")
        assert error in ran.text
        assert "column_types" in ran.text
    postgres_database.execute("create table k (amount numeric, day interval, f float, id int)")
    for name in ("amount", "day", "f"):
        key = {"cursor_field": "id", "primary_key": [name], "column_types": {name: "string"}}
        project.jdbc(postgres_database, ["k"], table_options={"k": key})
        assert f"{name!r} is a column of the key, and equal values may become different" in (
            project.loader("run").text
        )
    options = {"t": {"cursor_field": "id", "partition_column": "amount"}}
    options["t"]["column_types"] = {"amount": "bigint"}  # type: ignore[assignment]
    project.jdbc(postgres_database, ["t"], table_options=options)
    assert "because column_types changes its type" in project.loader("run").errors[0]


def test_changing_column_types_is_handled_like_drift(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, n numeric(9, 2), w int)",
        "insert into t values (1, 1, 1.5, 7)",
    )
    table: dict[str, Any] = {"cursor_field": "c", "column_types": {}}
    for number, chosen in enumerate(
        ({}, {"n": "string", "w": "bigint"}, {"n": "string", "w": "string"}), start=2
    ):
        table["column_types"] = chosen
        project.jdbc(postgres_database, ["t"], table_options={"t": table})
        project.run()
        postgres_database.execute(f"insert into t values ({number}, {number}, {number}.5, 7)")
    project.run()
    newest = "max_by(struct(n, n__string, w, w__string), _cq_batch)"
    found = project.rows(
        f"select newest.* from (select {newest} as newest from raw.t group by id order by id)"
    )
    assert found == [
        (pytest.approx(1.5), None, 7, None),
        (None, "2.50", None, "7"),
        (None, "3.50", None, "7"),
        (None, "4.50", None, "7"),
    ]
    table["schema_changes"] = "freeze"
    table["column_types"] = {"n": "double"}
    project.jdbc(postgres_database, ["t"], table_options={"t": table})
    [error] = project.loader("run").errors
    assert "freeze" in error


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "derby"])
def test_char_columns_are_loaded_without_padding(
    project: Project, request: pytest.FixtureRequest, kind: str
) -> None:
    """A `char(n)` is loaded without padding in keys, cursors and other columns."""
    if kind == "derby":
        run = request.getfixturevalue("execute")
        own = {"url": request.getfixturevalue("url")}
    else:
        fixture = {"postgresql": "postgres_database", "mariadb": "mariadb_database"}[kind]
        database: Database = request.getfixturevalue(fixture)
        run = database.execute
    run(
        "create table goods (class char(4) not null, id int not null, mark char(3), n int not null,"
        " primary key (class, id))",
        "insert into goods values ('H', 1, 'a', 1), ('H', 2, '', 1), (' H', 1, null, 1), "
        "('HHHH', 1, 'abc', 2)",
        "create table codes (code char(5) not null primary key, n int)",
        "insert into codes values ('a', 1), ('b', 1)",
    )
    options: dict[str, Any] = {"goods": {"cursor_field": "n"}, "codes": {"cursor_field": "code"}}
    if kind == "derby":
        project.add("shop", "jdbc", list(options), {**own, "table_options": options})
    else:
        project.jdbc(database, list(options), table_options=options)
    ran = project.run()
    assert ran.table("shop.codes")["cursor"] == "b"
    assert project.rows("select id from raw.goods where class = 'H' order by id") == [(1,), (2,)]
    assert project.rows("select class, id, mark from raw.goods order by class, id") == [
        (" H", 1, None),
        ("H", 1, "a"),
        ("H", 2, ""),
        ("HHHH", 1, "abc"),
    ]
    run(
        "update goods set mark = 'new', n = 3 where class = 'H' and id = 1",
        "update goods set mark = 'old' where class = 'H' and id = 2",
        "delete from goods where class = ' H'",
        "insert into codes values ('c', 1)",
    )
    ran = project.run()
    found = ran.table("shop.goods")["appended"]  # PostgreSQL's sweep also finds the update of mark
    assert ran.table("shop.codes")["appended"] == 1
    ran = project.loader("reconcile", "--repair", "--allow-deletes")
    events = {one["table"]: one for one in ran.events if one["event"] == "reconciled"}
    goods, codes = events["shop.goods"], events["shop.codes"]
    assert (goods["missed_updates"], goods["missed_deletes"]) == (2 - found, 1), ran.text
    assert (codes["missed_updates"], codes["missed_deletes"]) == (0, 0), ran.text
    assert project.loader("reconcile").code == 0
    assert project.rows("select distinct class from raw.goods order by class") == [
        (" H",),
        ("H",),
        ("HHHH",),
    ]

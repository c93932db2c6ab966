"""PostgreSQL values are the same whether the driver transfers them in binary or as text."""

from __future__ import annotations

from tests.services import Database
from tests.sync.project import Project

_VALUES = {
    "smallint": ("-32768", "7"),
    "int": ("-2147483648", "7"),
    "bigint": ("-9223372036854775808", "7"),
    "numeric(38, 10)": ("-12345678901234567890.0123456789", "0.1000000000", "0"),
    "numeric(5)": ("12345", "-1"),
    "numeric": ("1.10", "100"),
    "real": ("1.1", "'3.4028235e38'", "'1e-45'", "'-0'", "'NaN'", "'Infinity'"),
    "double precision": ("0.1", "'1.7976931348623157e308'", "'5e-324'", "'NaN'", "'-Infinity'"),
    "boolean": ("true", "false"),
    "date": ("'1500-02-28'", "'1582-10-04'", "'1582-10-15'", "'1969-12-31'", "'9999-12-31'"),
    "timestamp": (
        "'1500-02-28 12:00:00.000001'",
        "'1582-10-15 00:00:00'",
        "'1969-12-31 23:59:59.999999'",
        "'2025-03-30 02:30:00.123456'",
    ),
    "timestamptz": (
        "'0001-01-01 00:00:00+00'",
        "'1582-10-04 23:59:59.999999+00'",
        "'1969-12-31 23:59:59.999999+00'",
        "'2025-10-26 02:30:00.123456+02'",
    ),
    "time": ("'23:59:59.999999'", "'00:00'"),
    "timetz": ("'23:59:59.999999+05'",),
    "interval": ("'1 year 2 days 3.5 seconds'",),
    "text": ("'é 😀 \\'", "''"),
    "varchar(5)": ("'a'",),
    "char(5)": ("'a'",),
    "bytea": ("'\\x00ff5c'", "''"),
    "uuid": ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",),
    "json": ("'{\"a\":  1}'",),
    "jsonb": ("'{\"a\":  1}'",),
    "inet": ("'10.0.0.1/8'",),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "money": ("12.5",),
    "bit(3)": ("B'101'",),
    "varbit": ("B'10101'",),
    "oid": ("4294967295",),
    "point": ("'(1,2.50)'",),
    "box": ("'(2,2),(0.50,0)'",),
    "circle": ("'<(1,2),3>'",),
    "int4range": ("'[1,5)'",),
    "tsvector": ("'a b'",),
    "int[]": ("'{1,null,3}'", "'{}'"),
    "bigint[]": ("'{1,2}'",),
    "text[]": ("'{a,null,\"c d\"}'",),
    "double precision[]": ("'{0.1,null}'",),
    "numeric(10, 2)[]": ("'{0.10,null}'",),
    "boolean[]": ("'{true,null}'",),
    "date[]": ("'{2025-01-01}'",),
}
"""Values by type. In one more row, all values are null."""


def test_binary_and_text_transfer_load_the_same_values(
    project: Project, postgres_database: Database
) -> None:
    count = max(map(len, _VALUES.values()))
    columns = ", ".join(f"c{i} {type_}" for i, type_ in enumerate(_VALUES))
    rows = [
        ", ".join(values[row] if row < len(values) else "null" for values in _VALUES.values())
        for row in range(count + 1)
    ]
    postgres_database.execute(
        f"create table t (id int primary key, {columns})",
        *(f"insert into t values ({number}, {row})" for number, row in enumerate(rows)),
    )
    options = {"t": {"cursor_field": "id"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    assert project.run().table("shop.t")["appended"] == count + 1
    texts_only = {"binaryTransfer": "false"}
    project.jdbc(postgres_database, ["t"], table_options=options, properties=texts_only)
    assert project.run("--full-refresh").table("shop.t")["appended"] == count + 1
    names = [f"c{i}" for i in range(len(_VALUES))]
    texts = ", ".join(f"cast({name} as string)" for name in ("id", *names))
    read = [
        project.rows(f"select {texts} from raw.t where _cq_generation = {g} order by id")
        for g in (1, 2)
    ]
    for name, type_, *pair in zip(
        names, _VALUES, *([*zip(*found, strict=True)][1:] for found in read), strict=True
    ):
        assert pair[0] == pair[1], f"{name} {type_}"
    assert project.rows("select count(distinct id, _cq_row_hash) from raw.t") == [(count + 1,)]


def test_timestamps_are_the_same_instants_as_in_the_database(
    project: Project, postgres_database: Database
) -> None:
    """Before 15 October 1582, Java uses a different calendar."""
    times = (
        "0001-01-01 00:00:00+00",
        "0004-02-29 23:59:59.999999+00",
        "1500-02-28 12:00:00+00",
        "1582-10-04 23:59:59.999999+00",
        "1582-10-15 00:00:00+00",
        "1883-11-18 17:00:00.000001+00",
        "1969-12-31 23:59:59.999999+00",
        "2025-03-30 02:30:00.123456+01",
        "2025-10-26 02:30:00.123456+02",
        "9999-12-31 23:59:59.999999+00",
        "294246-12-31 23:59:59.999999+00",
    )
    postgres_database.execute(
        'create table t (id int primary key, "at ""that"" time" timestamptz, again timestamptz[])',
        *(f"insert into t values ({n}, '{time}', null)" for n, time in enumerate(times)),
    )
    micros = '(extract(epoch from "at ""that"" time") * 1000000)::bigint'
    theirs = postgres_database.query(f"select id, {micros} from t order by id")
    for properties in ({}, {"binaryTransfer": "false"}):
        own = {"t": {"cursor_field": "id"}}
        project.jdbc(postgres_database, ["t"], table_options=own, properties=properties)
        project.run("--full-refresh")
    ours = 'select distinct id, unix_micros(`at "that" time`) from raw.t order by id'
    assert project.rows(ours) == [tuple(row) for row in theirs]

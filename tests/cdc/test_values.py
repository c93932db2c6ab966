"""Values from the log equal the values of a query, and have the same types."""

from __future__ import annotations

from tests.cdc.test_changes import follow, newest
from tests.services import Database
from tests.sync.project import Project

COLUMNS = {
    "s": "text",
    "n": "numeric",
    "n2": "numeric(12, 3)",
    "f4": "real",
    "f8": "double precision",
    "b": "boolean",
    "ba": "bytea",
    "d": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "tz0": "timestamptz(0)",
    "ti": "time",
    "u": "uuid",
    "j": "json",
    "jb": "jsonb",
    "net": "inet",
    "cid": "cidr",
    "mac": "macaddr",
    "m": "mood",
    "dd": "money2",
    "bp": "char(5)",
    "vc": "varchar(10)",
    "ta": "text[]",
    "ia": "int[]",
    "la": "bigint[]",
    "na": "numeric(10, 2)[]",
    "tsa": "timestamp[]",
    "tza": "timestamptz[]",
    "da": "date[]",
    "bo": "boolean[]",
    "fa": "double precision[]",
    "bya": "bytea[]",
    "ua": "uuid[]",
    "ja": "jsonb[]",
    "ra": "int4range[]",
    "q": '"char"',
    "r": "int4range",
    "rn": "numrange",
    "rt": "tstzrange",
    "o": "oid",
    "i2": "smallint",
    "i8": "bigint",
    "gen": "int generated always as identity",
}
ROWS = (
    "'a\tb''\u2028é\\nx🌊\"', 1.50, 1.5, 1.1, 1.1, true, '\\x00ff', '2024-01-02', "
    "'2024-01-02 03:04:05.123456', '2024-01-02 03:04:05.123456+03', '2024-01-02 03:04:05.6+03', "
    "'03:04:05.123456', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": 1,  \"b\":2}', "
    "'{\"a\": 1,  \"b\":2.50}', '10.0.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', 'ok', 1.5, "
    "'ab', 'vc', '{a,NULL,\"b c\"}', '{1,NULL}', '{9007199254740993}', '{1.50,NULL}', "
    "'{2024-01-01 00:00:00.5}', '{2024-01-01 00:00:00.5+00}', '{2024-01-01}', '{t,f}', "
    "'{1.5,NaN}', '{\"\\\\x00ff\"}', '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', "
    "'{\"{\\\"a\\\": 1}\"}', '{\"[1,5)\",NULL}', 'z', '[1,5)', '[1.50,2)', "
    "'[2024-01-01 00:00:00+00,2024-01-02 00:00:00+00)', 42, 2, 9007199254740993, default",
    "null, 1e19, -0.001, 'NaN', 'Infinity', false, '', 'infinity', 'infinity', 'infinity', "
    "'infinity', '00:00:00'" + ", null" * 10 + ", '{}'" + ", null" * 19 + ", default",
    "'', 1e-10, 0, 1e30, 3e-5, null, null, '0044-03-15 BC', '0044-03-15 00:00:00', "
    "'0044-03-15 00:00:00+00', '1500-02-28 00:00:00+00', '23:59:59'" + ", null" * 30 + ", default",
    "'x', -1, null, -3e-5, -1e300, null, null, '-infinity', '-infinity', '-infinity', "
    "'-infinity', '24:00:00'" + ", null" * 30 + ", default",
)


def test_values_are_those_of_a_query(project: Project, postgres_database: Database) -> None:
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    postgres_database.execute(
        "create type mood as enum ('sad', 'ok')",
        "create domain money2 as numeric(10, 2)",
        f"create table of_all (id int primary key, {listed})",
        "create table twin (like of_all including all)",
        # for most arrays, the log does not distinguish "unchanged" from null
        "alter table of_all replica identity full",
    )
    names = ", ".join(["id", *COLUMNS])
    follow(project, postgres_database, "of_all")
    project.run()
    for number, row in enumerate(ROWS):
        postgres_database.execute(f"insert into of_all ({names}) values ({number}, {row})")
    postgres_database.execute("insert into twin overriding system value select * from of_all")
    project.jdbc(
        postgres_database,
        ["of_all", "twin"],
        table_options={
            "of_all": {"sync_mode": "cdc"},
            "twin": {"sync_mode": "full_refresh"},
        },
    )
    assert project.run().table("shop.of_all")["appended"] == len(ROWS)
    logged, queried = (project.lake().frame(t) for t in ("of_all", "twin"))
    assert logged.schema == queried.schema
    for name in ("id", *COLUMNS, "_cq_row_hash"):
        found = [
            [
                row[0]
                for row in frame.selectExpr(f"cast({name} as string)", "id").orderBy("id").collect()
            ]
            for frame in (logged, queried)
        ]
        assert found[0] == found[1], name


def test_values_that_the_spec_converts_to_strings(
    project: Project, postgres_database: Database
) -> None:
    """`column_types: string` gives the same text as a query; arrays and floats are refused."""
    kinds = {
        name: kind
        for name, kind in COLUMNS.items()
        if not kind.endswith("[]") and kind not in ("real", "double precision")
    }
    listed, every = (
        ", ".join(f"{name} {kind}" for name, kind in those.items()) for those in (kinds, COLUMNS)
    )
    postgres_database.execute(
        "create type mood as enum ('sad', 'ok')",
        "create domain money2 as numeric(10, 2)",
        f"create table of_all (id int primary key, {listed}, other numeric)",
        "create table twin (like of_all including all)",
        "create table texts (id int primary key, c text[], d real)",
        f"create table whole (id int primary key, {every})",
    )
    chosen = {**dict.fromkeys(kinds, "string"), "id": "bigint", "other": "decimal(38,30)"}
    names = ", ".join(["id", *COLUMNS])
    follow(project, postgres_database, "of_all", of_all={"column_types": chosen})
    project.run()
    for number, row in enumerate(ROWS):
        postgres_database.execute(f"insert into whole ({names}) values ({number}, {row})")
    given = ", ".join(["id", *kinds])
    postgres_database.execute(
        f"insert into of_all ({given}, other) overriding system value "
        f"select {given}, 1e-25 from whole",
        "insert into twin overriding system value select * from of_all",
    )
    tables = {
        "of_all": {"sync_mode": "cdc", "column_types": chosen},
        "twin": {"sync_mode": "full_refresh", "column_types": chosen},
    }
    project.jdbc(postgres_database, list(tables), table_options=tables)
    assert project.run().table("shop.of_all")["appended"] == len(ROWS)
    logged, queried = (project.lake().frame(t).orderBy("id") for t in tables)
    assert logged.schema == queried.schema
    for name in ("id", *kinds, "other"):
        found = [[row[0] for row in frame.select(name).collect()] for frame in (logged, queried)]
        assert found[0] == found[1], name
    ours = [n for n in kinds if n not in ("ba", "ti", "tz", "tz0", "rt")]
    own = ", ".join(f"{name}::text" for name in ours)
    [theirs] = postgres_database.query(f"select {own} from twin where id = 0")
    assert tuple(logged.select(*ours).first() or ()) == theirs
    for name in ("c", "d"):
        wants = {"texts": {"sync_mode": "cdc", "column_types": {name: "string"}}}
        project.jdbc(postgres_database, ["texts"], table_options=wants)
        [error] = project.loader("run").errors
        assert f"the log does not contain the text of {name}" in error
        assert "column_types" in error


def test_types_that_the_log_cannot_deliver_are_refused(
    project: Project, postgres_database: Database
) -> None:
    """The error names the column, before any row is read; other tables are synced."""
    absent = "the values of c ({0}) in the log differ from those in a query"
    kinds = {
        "interval": absent,
        "point": absent,
        "time with time zone": absent,
        "bit(8)": absent,
        "money": absent,
        "name": absent,
        "tsvector": absent,
        "int4multirange": absent,
        "pair": absent,
        "mood[]": absent,
        "time without time zone[]": absent,
        "posint[]": absent,
        "numbers": absent,
        "int generated always as (id + 1) stored": "does not contain the generated column c",
        "text[][]": "the values of c (text[]) in the log differ",
        "double precision[]": "its value is indistinguishable from null in the log",
    }
    tables = {f"odd_{number}": kind for number, kind in enumerate(kinds)}
    postgres_database.execute(
        "create type mood as enum ('sad', 'ok')",
        "create type pair as (a int, b text)",
        "create domain posint as int check (value > 0)",
        "create domain numbers as posint[]",
        "create table nested (id int primary key, c int[])",
        "create table nested_texts (id int primary key, c text[])",
        "create table flat (id int primary key, c int[], d text[])",
        *(f"create table {table} (id int primary key, c {kind})" for table, kind in tables.items()),
    )
    follow(project, postgres_database, *tables, "nested", "nested_texts", "flat")
    ran = project.loader("run")
    assert ran.code == 1
    for table, kind in tables.items():
        [error] = [one for one in ran.errors if one.startswith(f"table shop.{table},")]
        assert kinds[kind].format(kind) in error
    # Debezium writes `[null, null]` or `[Ljava.lang.String;@4d66c5e` for arrays of arrays.
    follow(project, postgres_database, "nested", "nested_texts", "flat")
    postgres_database.execute(
        "insert into nested values (1, '{1,NULL}'), (2, '{{1,2},{3,4}}')",
        "insert into nested_texts values (1, '{{a,b},{c,d}}')",
        "insert into flat values (1, '{1,NULL}', '{NULL}')",
    )
    ran = project.loader("run")
    assert ran.table("shop.flat")["appended"] == 1
    said = " ".join(ran.errors)
    for table in ("nested", "nested_texts"):
        assert f"table shop.{table}: c contains an array of arrays" in said
    postgres_database.execute(
        "update nested set c = '{5}' where id = 2",
        "update nested_texts set c = '{e}'",
        "update flat set c = '{2}'",
    )
    project.run("--full-refresh", "--select", "shop.nested*")
    project.run()
    assert newest(project, "nested", "id", "c") == [(1, [1, None]), (2, [5])]
    assert newest(project, "nested_texts", "id", "c") == [(1, ["e"])]
    assert newest(project, "flat", "id", "c", "d") == [(1, [2], [None])]

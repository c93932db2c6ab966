"""Values that the lake cannot store exactly are refused or reported, never changed silently."""

from __future__ import annotations

from contextlib import suppress

import pytest
from psycopg.errors import InvalidParameterValue

from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_derby import Execute, execute, url

__all__ = ["execute", "url"]  # fixtures


def test_digits_beyond_the_microsecond_cause_no_missed_rows(
    project: Project, execute: Execute, url: str
) -> None:
    execute(
        "create table t (id int primary key, c timestamp)",
        "insert into t values (1, timestamp('2025-01-01 00:00:00.1')), "
        "(2, timestamp('2025-01-03 00:00:00.123456789'))",
    )
    table = {"cursor_field": "c"}
    project.add("shop", "jdbc", ["t"], {"url": url, "table_options": {"t": table}})
    first = project.run().table("shop.t")
    assert (first["appended"], first["cursor"]) == (2, "2025-01-03 00:00:00.123456")
    execute(
        "insert into t values (3, timestamp('2025-01-03 00:00:00.123456001'))",
        "insert into t values (4, timestamp('2025-01-01 23:59:59.9999995'))",
    )
    assert project.run().table("shop.t")["appended"] == 1
    # Nor is a row missed between the chunks of a backfill.
    backfill = project.run("--from", "2025-01-01", "--to", "2025-01-03", "--chunk", "1 day")
    assert backfill.table("shop.t")["appended"] == 1


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_single_precision_numbers_are_compared_exactly(
    project: Project, request: pytest.FixtureRequest, kind: str
) -> None:
    fixture, type_ = {
        "postgresql": ("postgres_database", "real"),
        "mariadb": ("mariadb_database", "float"),
    }[kind]
    database: Database = request.getfixturevalue(fixture)
    database.execute(
        f"create table t (id int primary key, c {type_})",
        "insert into t values (1, 0.7), (2, 1.1)",
    )
    options = {"t": {"cursor_field": "c", "num_partitions": 2}}
    project.jdbc(database, ["t"], table_options=options)
    assert project.run().table("shop.t")["appended"] == 2
    database.execute("insert into t values (3, 3.3)")
    assert project.run().table("shop.t")["appended"] == 1
    database.execute("insert into t values (4, 3.3)", "insert into t values (5, 4.4)")
    assert project.run().table("shop.t")["appended"] == 2
    assert project.run().table("shop.t")["status"] == "nothing new"


def test_numbers_that_would_be_rounded_are_refused_until_a_type_is_chosen(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        'create table t (id int primary key, rate numeric, other numeric, "my rate" numeric)',
        "insert into t values (1, 0.1, 5, 1)",
    )
    table: dict[str, object] = {"cursor_field": "id"}
    project.jdbc(postgres_database, ["t"], table_options={"t": table})
    assert project.run().table("shop.t")["appended"] == 1
    for value in ("4.2e-21", "1e20", "'NaN'"):
        postgres_database.execute(f"insert into t values (2, {value}, 5, {value})")
        ran = project.loader("run")
        lines = [
            f"\n- table shop.t, column {name}: 1 values of {name} do not fit decimal(38,18): they "
            f"would be rounded. Load them as strings, table_options.t.column_types: {{{name}: "
            "string}, or as a large enough decimal; or declare precision and scale in the source"
            for name in ("rate", "my rate")
        ]
        assert ran.errors == [f"table shop.t: 2 problems:{''.join(lines)}. "]
        assert project.state("shop.t")["cursor"] == "1"
        postgres_database.execute("delete from t where id = 2")
    postgres_database.execute("insert into t values (2, 4.2e-21, 5, 4.2e-21)")
    table["column_types"] = {"rate": "string", "MY RATE": "decimal(38, 30)"}
    project.jdbc(postgres_database, ["t"], table_options={"t": table})
    ran = project.run("--full-refresh")
    found = project.rows(
        "select rate__string, other, `my rate__decimal_38_30` from raw.t "
        "where id = 2 and _cq_generation = 2"
    )
    assert [tuple(map(str, row)) for row in found] == [
        ("0.0000000000000000000042", "5.000000000000000000", "4.200000000E-21")
    ]
    postgres_database.execute(
        "alter table t add column many numeric[]",
        "update t set id = 3, many = '{1, 4.2e-21}' where id = 2",
    )
    assert project.loader("run").errors == [
        "table shop.t, column many: 1 values of many do not fit decimal(38,18): they would be "
        "rounded. Load them as strings, table_options.t.column_types: {many: string}, or declare "
        "precision and scale in the source"
    ]


def test_infinite_times_are_loaded_as_the_ends_of_the_calendar(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create domain until as timestamptz",
        "create domain limits as until",
        "create table t (id int primary key, c timestamptz default now(), d date, ts timestamp, "
        "tz timestamptz, own until, deep limits, time time)",
        "insert into t (id, d, ts, tz) values "
        "(1, 'infinity', '-infinity', 'infinity'), "
        "(2, '-infinity', 'infinity', '-infinity'), (3, '2025-01-01', null, null)",
        "update t set own = tz, deep = tz",
    )
    postgres_database.execute("update t set time = '12:00'")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    ran = project.run()
    reported = "infinite: infinity is loaded as 9999-12-31 23:59:59.999999, -infinity as 0001-01-01"
    assert [w.partition(reported)[0] for w in ran.warnings] == [
        f"shop.t: 2 values of {name} are " for name in ("d", "ts", "tz", "own", "deep")
    ]
    high, low = "9999-12-31 23:59:59.999999", "0001-01-01 00:00:00"
    assert project.rows("select id from raw.t where not (own <=> tz and deep <=> tz)") == []
    assert project.rows(
        "select cast(d as string), cast(ts as string), cast(tz as string) from raw.t order by id"
    ) == [("9999-12-31", low, high), ("0001-01-01", high, low), ("2025-01-01", None, None)]
    reconciled = project.loader("reconcile")
    assert reconciled.code == 0, reconciled.text


def test_a_time_of_day_is_loaded_as_a_string(project: Project, postgres_database: Database) -> None:
    """It has six decimal places, and its offset if it has one; 24:00 and 10:00+01 stay the same."""
    postgres_database.execute(
        "create domain opening as time",
        "create domain closing as timetz",
        "create table t (id int primary key, a time, z timetz, own opening, far closing)",
        "insert into t values (1, '03:04:05.123456', '03:04:05.123456+02', '23:59:59.5', '9:00Z'), "
        "(2, '24:00', '00:30-04:30', '00:00', '24:00+01'), (3, null, null, null, null)",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    project.run()
    assert project.rows("select a, z, own, far from raw.t order by id") == [
        ("03:04:05.123456", "03:04:05.123456+02", "23:59:59.500000", "09:00:00.000000+00"),
        ("24:00:00.000000", "00:30:00.000000-04:30", "00:00:00.000000", "24:00:00.000000+01"),
        (None, None, None, None),
    ]
    assert project.run().table("shop.t")["status"] == "nothing new"
    reconciled = project.loader("reconcile")
    assert reconciled.code == 0, reconciled.text


def test_times_of_day_as_keys(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table a (c time primary key, n int)",
        "insert into a values ('00:00', 1), ('12:00', 1), ('24:00', 1)",
        "create table b (c timetz primary key, n int)",
        "insert into b values ('09:00+00', 1), ('10:00+01', 1), ('24:00+00', 1)",
    )
    options = {name: {"cursor_field": "n"} for name in ("a", "b")}
    project.jdbc(postgres_database, list(options), table_options=options)
    project.run()
    for table in options:
        postgres_database.execute(
            f"update {table} set n = 2 where c = (select max(c) from {table})",
            f"delete from {table} where c = (select min(c) from {table})",
        )
    assert [project.run().table(f"shop.{t}")["appended"] for t in options] == [1, 0]
    ran = project.loader("reconcile", "--repair")
    found = [event for event in ran.events if event["event"] == "reconciled"]
    assert [(one["missed_updates"], one["missed_deletes"]) for one in found] == [(0, 1), (0, 1)], (
        ran.text
    )


def test_keys_that_would_become_equal_are_refused(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table said (d date)",  # its key is declared in the spec
        "insert into said values ('infinity'), ('9999-12-31')",
    )
    said = {"said": {"sync_mode": "full_refresh", "primary_key": ["d"]}}
    project.jdbc(postgres_database, ["said"], table_options=said)
    (error,) = project.loader("run").errors
    assert "2 values of d are inf" in error
    assert "so that different keys would become equal" in error


def test_tinyint_1_is_not_a_boolean(project: Project, mariadb_database: Database) -> None:
    mariadb_database.execute(
        "create table t (id int primary key, n tinyint(1), flag boolean, bits bit(1))",
        "insert into t values (1, 2, true, b'1'), (2, 127, false, b'0'), (3, -128, null, null)",
    )
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    project.run()
    rows = project.rows("select cast(n as int), cast(flag as int) from raw.t order by id")
    assert rows == [(2, 1), (127, 0), (-128, None)]


@pytest.fixture
def coded(project: Project, postgres_database: Database) -> Database:
    """A table whose cursor is an enum, which the database does not order by bytes."""
    postgres_database.execute(
        "create type code as enum ('a5', 'b', 'B1', 'c', 'A9')",
        "create table t (id int primary key, code code)",
        "insert into t values (1, 'a5'), (2, 'b')",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "code"}})
    return postgres_database


def test_a_stored_cursor_whose_enum_label_was_renamed_is_reported(
    project: Project, coded: Database
) -> None:
    project.run()
    coded.execute("alter type code rename value 'b' to 'bee'")
    [reported] = project.loader("run").errors
    assert "the stored cursor has the old type: `loader state set`" in reported


def test_numeric_scales_that_spark_lacks(project: Project, postgres_database: Database) -> None:
    """PostgreSQL before version 15 refuses these types itself."""
    with suppress(InvalidParameterValue):
        postgres_database.execute(
            "create table t (id int primary key, price numeric(5, -2), part numeric(2, 4))",
            "insert into t values (1, 9999949, 0.0099), (2, -100, -0.00005)",
        )
        project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "id"}})
        project.run()
        kinds = dict(project.lake().frame("t").dtypes)
        assert (kinds["price"], kinds["part"]) == ("decimal(7,0)", "decimal(4,4)")
        assert project.rows("select cast(price as int), cast(part as string) from raw.t") == [
            (9999900, "0.0099"),
            (-100, "-0.0001"),
        ]
        assert project.loader("reconcile").code == 0


def _read_newest(project: Project) -> list[tuple[object, ...]]:
    return project.rows(
        "select id, max_by(code, struct(_cq_generation, code, _cq_batch, _cq_seq)) "
        "from raw.t group by id order by id"
    )


def test_an_enum_cursor_leaves_no_stale_row(project: Project, coded: Database) -> None:
    project.run()
    for change in (
        ("update t set code = 'B1' where id = 1", "insert into t values (3, 'c')"),
        ("update t set code = 'A9' where id in (1, 3)",),
    ):
        coded.execute(*change)
        project.run()
        assert _read_newest(project) == coded.query("select id, code::text from t order by id")
    assert project.state("shop.t")["cursor"] == "A9"
    assert project.run().table("shop.t")["status"] == "nothing new"


def test_an_enum_cursor_is_refused_if_only_the_spec_declares_the_key(
    project: Project, coded: Database
) -> None:
    coded.execute("alter table t drop constraint t_pkey")
    options = {"cursor_field": "code", "primary_key": "id"}
    project.jdbc(coded, ["t"], table_options={"t": options})
    assert project.loader("run").errors == [
        "table shop.t, cursor_field: the source orders the column code by a collation or as an "
        "enum, and only the spec declares the key: the loader cannot tell which of a key's "
        "versions is the newest. Choose a time or a number; or declare the primary key in the "
        "source; or, if it is a string column, set a collation that orders by bytes "
        '(PostgreSQL: "C")'
    ]


def test_which_texts_are_ordered_by_their_bytes(
    project: Project, postgres_database: Database, mariadb_database: Database
) -> None:
    from loader.spec.spec import load_spec
    from loader.sync.pipeline import Pipeline

    kinds = {
        "text": True,
        'text collate "C"': False,
        'varchar(9) collate "POSIX"': False,
        'char(9) collate "C"': True,
        "uuid": False,
        "ordered": False,
    }
    postgres_database.execute(
        'create domain ordered as text collate "C"',
        *(f"create table t{n} (id int primary key, c {kind})" for n, kind in enumerate(kinds)),
    )
    mariadb_database.execute(
        "create table m0 (c varchar(9))",
        "create table m1 (c varchar(9) character set utf8mb4 collate utf8mb4_nopad_bin)",
    )
    names = [f"t{n}" for n in range(len(kinds))]
    project.jdbc(postgres_database, names, table_options={n: {"cursor_field": "c"} for n in names})
    own = {n: {"cursor_field": "c"} for n in ("m0", "m1")}
    project.jdbc(mariadb_database, ["m0", "m1"], name="other", table_options=own)
    parts = Pipeline(load_spec(project.folder / "loader.yml"), project.spark).plan_tables()
    collated = [plan.cursor.collated for part in parts for plan in part.plans if plan.cursor]
    [(default,)] = postgres_database.query(
        "select datcollate not in ('C', 'POSIX') from pg_database "
        "where datname = current_database()"
    )
    assert collated == [default, *list(kinds.values())[1:], True, False]


def test_infinite_times_in_arrays_and_times_out_of_range_are_refused(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table arrays (id int primary key, many timestamptz[], times bit(2)[])",
        "insert into arrays values (1, '{infinity,2025-01-01}', null)",
        "create table deep (id int primary key, many int[])",
        "insert into deep values (1, '{{1,2},{3,4}}'), (2, '{1}')",
        "create table clocks (id int primary key, times bit(2)[])",
        "insert into clocks values (1, '{10}'), (2, null)",
        "create table ancient (id int primary key, at timestamptz)",
        "insert into ancient values (1, '0044-03-15 12:00:00+00 BC'), (2, '-infinity')",
        "create table distant (id int primary key, at timestamptz, wall timestamp)",
        "insert into distant values (1, '294276-12-31 23:59:59+00', '294246-12-31'), "
        "(2, 'infinity', 'infinity'), (3, '294246-12-31 00:00+00', '12026-01-01')",
        "create table far (id int primary key, many timestamp[])",
        "insert into far values (1, '{294276-12-31}'), (2, null)",
    )
    tables = ("arrays", "ancient", "deep", "clocks", "distant", "far")
    options = {name: {"cursor_field": "id"} for name in tables}
    project.jdbc(postgres_database, list(options), table_options=options)
    late = "lie after the year 294246, the last year of a timestamp"
    assert sorted(project.loader("run").errors) == [
        f"table shop.{table}, column {name}: 1 values of {name} {what}. Load the column as a "
        f"string (column_types: {{{name}: string}}), or read the table through a view that "
        "excludes them"
        for table, name, what in (
            ("ancient", "at", "lie before year 1, and would lose their era"),
            ("arrays", "many", "contain infinite times"),
            ("deep", "many", "have more than one dimension"),
            ("distant", "at", late),
            ("far", "many", late),
        )
    ]
    assert project.rows("select times from raw.clocks order by id") == [(["10"],), (None,)]
    postgres_database.execute("delete from distant where id = 1")
    assert "table shop.distant" not in " ".join(project.loader("run").errors)
    assert project.rows(
        "select cast(at as string), cast(wall as string) from raw.distant order by id"
    ) == [
        ("9999-12-31 23:59:59.999999",) * 2,
        ("+294246-12-31 00:00:00", "+12026-01-01 00:00:00"),
    ]


def test_a_domain_over_timestamptz_is_a_timestamp(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create domain moment as timestamptz",
        "create domain instant as moment",
        "create table t (id int primary key, at instant, wall timestamp)",
        "insert into t values (1, '2025-01-01 12:00+02', '2025-01-01 12:00')",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    project.run()
    kinds = dict(project.lake().frame("t").dtypes)
    assert (kinds["at"], kinds["wall"]) == ("timestamp", "timestamp_ntz")


def test_values_of_mariadb(project: Project, mariadb_database: Database) -> None:
    mariadb_database.execute(
        "set sql_mode = ''; ".strip("; "),
        "create table t (id int primary key, c int, kind enum('a', 'paid'), marks set('x', 'yy'), "
        "code char(5), open time(3), at datetime(3), day date)",
        "insert into t values (1, 1, 'a', 'x,yy', 'ab', '-838:59:59', '2025-01-01', '2025-01-01'),"
        "(2, 2, 'paid', '', '', '03:04:05.125', '1600-02-28 12:00:00.5', '1500-02-28')",
    )
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    assert project.rows(
        "select kind, marks, code, open, cast(at as string), cast(day as string) "
        "from raw.t order by id"
    ) == [
        ("a", "x,yy", "ab", "-838:59:59.000000", "2025-01-01 00:00:00", "2025-01-01"),
        ("paid", "", "", "03:04:05.125000", "1600-02-28 12:00:00.5", "1500-02-28"),
    ]
    assert project.run().table("shop.t")["status"] == "nothing new"
    reconciled = project.loader("reconcile")
    assert reconciled.code == 0, reconciled.text


def test_years_and_floats_of_mariadb(project: Project, mariadb_database: Database) -> None:
    mariadb_database.execute(
        "create table years (id int primary key, made year, share float, more float unsigned)",
        "insert into years values (1, 2024, 16777217, 1234567.5), (2, 1999, 0.1, 123456.789)",
        "create table floats (f float primary key, at int)",
        "insert into floats values (16777216, 1), (16777218, 2)",
    )
    own = {"years": {"cursor_field": "made"}, "floats": {"cursor_field": "at"}}
    project.jdbc(mariadb_database, list(own), table_options=own)
    project.run()
    assert project.rows("select made, share, more from raw.years order by id") == [
        (2024, 16777216.0, 1234567.5),
        (1999, pytest.approx(0.1), pytest.approx(123456.789)),
    ]
    assert project.rows("select f from raw.floats order by f") == [(16777216.0,), (16777218.0,)]
    quiet = project.run()
    assert [quiet.table(f"shop.{name}")["status"] for name in own] == ["nothing new"] * 2
    mariadb_database.execute("insert into years values (3, 2025, 1, 1), (4, 2024, 1, 1)")
    assert project.run().table("shop.years")["appended"] == 2
    mariadb_database.execute(
        "create table dated (id int primary key, made year)", "insert into dated values (1, 2024)"
    )
    url = mariadb_database.url + ("&" if "?" in mariadb_database.url else "?")
    project.jdbc(
        mariadb_database,
        ["dated"],
        url=f"{url}yearIsDateType=true",
        table_options={"dated": {"cursor_field": "id"}},
    )
    assert project.run().warnings == []
    assert project.rows("select cast(made as string) from raw.dated") == [("2024-01-01",)]


def test_a_char_without_a_length(project: Project, postgres_database: Database) -> None:
    """A view's column that is computed from a char(n) has no length."""
    postgres_database.execute(
        "create table goods (id int primary key, code char(5))",
        "insert into goods values (1, 'ab'), (2, null)",
        "create view coded as select id, coalesce(code, 'zz') as code from goods",
    )
    project.jdbc(postgres_database, ["coded"], table_options={"coded": {"cursor_field": "id"}})
    project.run()
    assert project.rows("select code from raw.coded order by id") == [("ab",), ("zz",)]
    assert project.run().table("shop.coded")["status"] == "nothing new"


def test_dates_and_numbers_that_only_mariadb_has(
    project: Project, mariadb_database: Database
) -> None:
    with mariadb_database.connect() as connection, connection.cursor() as cursor:
        for statement in (
            "set sql_mode = ''",
            "create table zero (id int primary key, day date not null, at datetime not null)",
            "insert into zero values (1, '0000-00-00', '0000-00-00'), (2, '2024-00-00', now())",
            "create table old (id int primary key, at datetime)",
            "insert into old values (1, '1500-02-28 12:00:00')",
            "create table wide (id int primary key, bits bit(64))",
            "insert into wide values (1, b'1'), (2, 18446744073709551615)",
        ):
            cursor.execute(statement)
        connection.commit()
    options = {name: {"cursor_field": "id"} for name in ("zero", "old", "wide")}
    project.jdbc(mariadb_database, list(options), table_options=options)
    ran = project.run()
    assert project.rows("select bits from raw.wide order by id") == [(f"{1:064b}",), ("1" * 64,)]
    reported = "are not dates (their month or day is zero): they are loaded as null"
    old = "lie before 15 October 1582: they are loaded up to ten days later or earlier"
    assert [warning.partition(", as Java")[0] for warning in sorted(ran.warnings)] == [
        f"shop.old: 1 values of at {old}",
        f"shop.zero: 1 values of at {reported}",
        f"shop.zero: 2 values of day {reported}",
    ]
    assert project.rows("select id, day, at is null from raw.zero order by id") == [
        (1, None, True),
        (2, None, False),
    ]


@pytest.mark.parametrize(
    "setting",
    [
        "tx_isolation = 'READ-UNCOMMITTED'",
        "sql_select_limit = 2",
        "sql_mode = 'NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
    ],
)
def test_mariadb_server_defaults_do_not_change_what_is_read(
    project: Project, mariadb_database: Database, setting: str
) -> None:
    mariadb_database.execute(
        "create table t (id int primary key, c varchar(20) character set ascii collate ascii_bin)",
        r"insert into t values (1, 'a'), (2, 'a\\A'), (3, 'a\\B')",
    )
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    name = setting.partition(" ")[0]
    [(before,)] = mariadb_database.query(f"select @@global.{name}")
    mariadb_database.execute(f"set global {setting}")
    try:
        assert project.run().table("shop.t")["appended"] == 3
        with mariadb_database.connect() as open_one, open_one.cursor() as cursor:
            open_one.autocommit(False)
            cursor.execute("insert into t values (9, 'z')")
            project.run()
            open_one.rollback()
        mariadb_database.execute("insert into t values (4, concat('a', char(92), 'C'))")
        assert project.run().table("shop.t")["appended"] == 1
    finally:
        mariadb_database.execute(f"set global {name} = {before!r}")
    found = project.rows("select id from raw.t order by id")
    assert found == [(1,), (2,), (3,), (4,)]


def test_days_that_the_driver_misreads_in_binary_are_refused(
    project: Project, postgres_database: Database
) -> None:
    """The driver adds leap days of Java's Julian calendar too early, and Spark uses its dates."""
    types = {"day": "date", "at": "timestamptz", "wall": "timestamp"}
    era = (
        "from generate_series(50, 1450, 50) y, generate_series(0, 31) d, "
        "lateral (select make_date(y, 2, 1) + d as day) a, "
        "(values (time '00:00'), ('23:59:59.999999')) b (t)"
    )
    doubted = (
        "y % 100 = 0 and y % 400 > 0 and y <= 1400 and "
        "day between make_date(y, 2, 17) and make_date(y, 3, 1)"
    )
    options = {}
    for column, type_ in types.items():
        value = f"((day + t)::text || '{'Z' if column == 'at' else ''}')::{type_}"
        for table, where in ((f"fine_{column}", f"not ({doubted})"), (f"all_{column}", "true")):
            postgres_database.execute(
                f"create table {table} (id serial primary key, v {type_}, said text)",
                f"insert into {table} (v, said) select {value}, (day + t)::text {era} "
                f"where {where}",
            )
            options[table] = {"cursor_field": "id"}
    project.jdbc(postgres_database, list(options), table_options=options)
    ran = project.loader("run")
    assert len(ran.errors) == 3
    for error in ran.errors:
        assert (
            "column v: 286 values of v are among the days that the driver may read as later"
            in error
        )
        assert 'Set `properties: {binaryTransfer: "false"}` in the source' in error

    def changed(table: str) -> list[tuple[object, ...]]:
        cast = "date" if table.endswith("day") else "timestamp_ntz"
        return project.rows(f"select v, said from raw.{table} where v <> cast(said as {cast})")

    assert [(table, changed(table)) for table in options if table.startswith("fine")] == [
        (f"fine_{column}", []) for column in types
    ]
    project.sources = []
    project.jdbc(
        postgres_database,
        list(options),
        table_options=options,
        properties={"binaryTransfer": "false", "prepareThreshold": "-1"},
    )
    project.run()
    assert [(table, changed(table)) for table in options] == [(table, []) for table in options]


def test_days_before_christ_are_read_exactly_or_refused(
    project: Project, postgres_database: Database
) -> None:
    """Converted from seconds, some days in years like 101 BC are off by ten days or more."""
    postgres_database.execute(
        "create table fine (id serial primary key, v date, j int)",
        "insert into fine (v, j) select v, to_char(v, 'J')::int from (select to_date(y || '-' || "
        "to_char(date '2001-01-01' + d, 'MM-DD') || ' BC', 'YYYY-MM-DD BC') as v from "
        "(values (1), (2), (100), (101), (200), (201), (401), (501), (1101), (4701)) a (y), "
        "generate_series(0, 75) d) b "
        "where not (to_char(v, 'YYYY') in ('0101', '0201', '0501', '1101', '4701') "
        "and to_char(v, 'MMDD') between '0114' and '0301')",
        "create table wrong (id int primary key, v date)",
        "insert into wrong values (1, '0101-02-10 BC')",
    )
    options = {table: {"cursor_field": "id"} for table in ("fine", "wrong")}
    project.jdbc(postgres_database, list(options), table_options=options)
    ran = project.loader("run")
    assert [error.partition(",")[0] for error in ran.errors] == ["table shop.wrong"], ran.text
    off = "unix_date(v) + 2440588 <> j"
    assert project.rows(f"select count(*), count_if({off}) from raw.fine") == [(760 - 5 * 47, 0)]
    # Without prepared statements, as with PgBouncer, the driver receives dates as text.
    project.sources = []
    project.jdbc(
        postgres_database,
        list(options),
        table_options=options,
        properties={"prepareThreshold": "0"},
    )
    project.run()
    [(day,)] = postgres_database.query("select to_char(v, 'J')::int - 2440588 from wrong")
    assert project.rows("select unix_date(v) from raw.wrong") == [(day,)]


def test_days_that_javas_calendar_lacks_are_reported(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, day date, at timestamptz, wall timestamp)",
        "insert into t values (1, '1582-10-04', '1582-10-04 23:59Z', '1582-10-04 23:59'), "
        "(2, '1582-10-10', '1582-10-10 12:00Z', '1582-10-10 12:00'), "
        "(3, '1582-10-15', '1582-10-15 00:00Z', '1582-10-15 00:00')",
        "create table days (day date primary key, id int)",
        "insert into days values ('1582-10-05', 1), ('1582-10-15', 1)",
    )
    options = {name: {"cursor_field": "id"} for name in ("t", "days")}
    project.jdbc(postgres_database, list(options), table_options=options)
    ran = project.loader("run")
    assert len(ran.errors) == 1
    assert (
        "table shop.days, column day: 2 values of day lie in the ten days before" in ran.errors[0]
    )
    assert "different keys would become equal" in ran.errors[0]
    reported = (
        "1 values of {} lie in the ten days before 15 October 1582: they are loaded ten days later"
    )
    assert [
        column for column in ("day", "at", "wall") if reported.format(column) not in ran.text
    ] == []
    texts = "cast(day as string), cast(at as string), cast(wall as string)"
    assert project.rows(f"select {texts} from raw.t order by id") == [
        ("1582-10-04", "1582-10-04 23:59:00", "1582-10-04 23:59:00"),
        ("1582-10-20", "1582-10-20 12:00:00", "1582-10-20 12:00:00"),
        ("1582-10-15", "1582-10-15 00:00:00", "1582-10-15 00:00:00"),
    ]

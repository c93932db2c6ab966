"""A declared primary key is used only if it identifies all rows and loads without collisions."""

from __future__ import annotations

import datetime

from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.source import JdbcSource
from tests.services import Database
from tests.sync.project import Project


def test_included_columns_of_an_index_are_not_part_of_the_key(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        'create table t ("Id" int, line int, status text, c int, '
        'primary key (line, "Id") include (status))',
        "insert into t values (1, 1, 'new', 1)",
        # Imitates TimescaleDB, whose chunks share the key of their table.
        "create table hyper (id int primary key, c int)",
        "create schema _timescaledb_internal",
        "create table _timescaledb_internal.chunk () inherits (hyper)",
    )
    options = {name: {"cursor_field": "c"} for name in ("t", "hyper")}
    project.jdbc(postgres_database, list(options), table_options=options)
    keys = {e["table"]: e["primary_key"] for e in project.loader("check").events if "table" in e}
    assert keys == {"shop.t": ["line", "Id"], "shop.hyper": ["id"]}


def test_a_null_is_a_key_like_any_other(project: Project, postgres_database: Database) -> None:
    """Rows at the cursor whose key contains a null are matched with the raw table's rows."""
    postgres_database.execute(
        "create table prices (id int, region text, price int, at int)",
        "insert into prices values (1, null, 10, 5), (1, 'eu', 20, 5), (null, null, 30, 5)",
    )
    own = {"cursor_field": "at", "primary_key": ["id", "region"]}
    project.jdbc(postgres_database, ["prices"], table_options={"prices": own})
    project.run()
    postgres_database.execute(
        "insert into prices values (2, null, 40, 5)",
        "update prices set price = 11 where price = 10",
    )
    ran = project.run().table("shop.prices")
    assert (ran["read"], ran["appended"], ran["redelivered"]) == (4, 2, 2)
    assert project.rows(
        "select id, region, price from raw.prices where _cq_batch = 2 order by 1"
    ) == [
        (1, None, 11),
        (2, None, 40),
    ]


def test_braces_in_where_with_a_date_as_key(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table days (until date primary key, tags text[], note text, c int)",
        "insert into days values ('2025-01-01', '{a}', 'x', 1), ('2025-01-02', '{}', 'x', 2), "
        "('infinity', '{a}', 'x', 3), ('9999-12-31', '{}', 'x', 4)",
    )
    options = {"cursor_field": "c", "where": "tags <> '{}' and note not in ('{rows}', '{until}')"}
    project.jdbc(postgres_database, ["days"], table_options={"days": options})
    project.run()
    loaded = [(datetime.date(2025, 1, 1),), (datetime.date(9999, 12, 31),)]
    assert project.rows("select until from raw.days order by 1") == loaded
    postgres_database.execute("update days set tags = '{b}', c = c + 10 where c = 4")
    ran = project.loader("run")
    assert "different keys would become equal" in ran.text


def test_a_key_does_not_hold_for_child_tables(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table parent (id int primary key, c int)",
        "create table child () inherits (parent)",
        "insert into parent values (1, 1)",
        "insert into child values (1, 2)",
    )
    options: dict[str, dict[str, object]] = {"parent": {"cursor_field": "c"}}
    project.jdbc(postgres_database, ["parent"], table_options=options)
    ran = project.loader("run")
    lacks = (
        "(child tables (INHERITS) may repeat values of id; if they do not, set primary_key, "
        "otherwise read each table separately)"
    )
    assert ran.warnings == [
        f"shop.parent: no primary key: a deduped_latest model needs a key {lacks}"
    ]
    assert ran.table("shop.parent")["appended"] == 2
    options["parent"]["primary_key"] = ["id"]
    project.jdbc(postgres_database, ["parent"], table_options=options)
    assert project.loader("run").warnings == []


def test_infinite_keys_are_refused_if_another_would_be_loaded_as_the_same(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table rates (id int, until date, c int, primary key (id, until))",
        "insert into rates values (1, 'infinity', 1), (1, '-infinity', 2), (2, '2025-01-01', 3)",
        "create table days (until date primary key, c int)",
        "insert into days values ('9999-12-31', 1), ('2025-01-01', 2)",
    )
    options: dict[str, dict[str, object]] = {
        name: {"cursor_field": "c"} for name in ("rates", "days")
    }
    project.jdbc(postgres_database, list(options), table_options=options)
    ran = project.run()
    reported = "infinite: infinity is loaded as 9999-12-31 23:59:59.999999, -infinity as 0001-01-01"
    assert [w for w in ran.warnings if reported in w] == ran.warnings != []
    assert project.loader("reconcile", "--repair", "--allow-deletes").code == 0
    assert project.rows("select id, until from raw.rates order by c") == [
        (1, datetime.date(9999, 12, 31)),
        (1, datetime.date(1, 1, 1)),
        (2, datetime.date(2025, 1, 1)),
    ]
    postgres_database.execute(
        "insert into rates values (1, '9999-12-31', 4)", "insert into days values ('infinity', 3)"
    )
    ran = project.loader("run")
    assert sorted(ran.errors) == [
        f"table shop.{table}, column until: 1 values of until are infinite or equal to the "
        "value that is loaded instead, so that different keys would become equal. Set another "
        "primary_key, or exclude these rows with a view"
        for table in ("days", "rates")
    ]


def test_a_table_with_a_foreign_partition_is_not_stored_here(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create foreign data wrapper other",
        "create server far foreign data wrapper other",
        "create table events (id int, at timestamptz) partition by range (id)",
        "create table old partition of events for values from (0) to (9) partition by range (id)",
        "create table near partition of events for values from (10) to (20)",
        "create foreign table away partition of old for values from (0) to (9) server far",
    )
    access = {"user": postgres_database.user, "password": postgres_database.password}
    options = JdbcOptions.model_validate({"url": postgres_database.url, **access})
    listed = JdbcSource("shop", options, project.spark, project.folder).tables()
    assert [(ref.name, ref.native.stored) for ref in listed] == [("events", False)]


def test_row_level_security_is_reported(project: Project, postgres_database: Database) -> None:
    role = f"plain_{postgres_database.name}"
    postgres_database.execute(
        "create table secured (id int primary key, at timestamptz)",
        "alter table secured enable row level security",
        f"create role {role} login password 'tide'",
        f"grant select on secured to {role}",
    )
    options = {"secured": {"cursor_field": "at"}}
    own = {"user": role, "password": "tide"}
    project.jdbc(postgres_database, ["secured"], table_options=options, **own)
    try:
        checked = project.loader("check")
        assert "row-level security hides rows from this role" in checked.text
    finally:
        postgres_database.execute(f"drop owned by {role}", f"drop role {role}")

"""Wide rows: a reader fetches only as many rows at a time as fit into its memory."""

from __future__ import annotations

from loader.sources.jdbc.dialect import TablePath, TableSize
from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.postgresql_dialect import PostgreSQL
from loader.sources.jdbc.source import JdbcSource
from tests.services import Database
from tests.sync.project import Project

_LIMIT = {"maxResultBuffer": "20M"}  # the part of Java's memory that one fetch may use
_BODY = (
    "(select string_agg(md5((n * 10000 + part)::text), '') from generate_series(1, 3200) as part)"
)
_WIDE = f"insert into t select n, {_BODY} from generate_series(%s) as n"


def test_wide_rows_are_fetched_in_portions(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table t (id int primary key, body text)",
        "insert into t select n, 'x' from generate_series(-99, 0) as n",
        _WIDE % "1, 300",  # 30 MB after narrow rows; not analyzed yet
        "create table packed (id int primary key, body text)",
        "insert into packed select n, repeat('x', 100000) from generate_series(1, 300) as n",
        "analyze packed",
    )
    options = {"t": {"cursor_field": "id"}, "packed": {"cursor_field": "id"}}
    project.jdbc(postgres_database, ["t", "packed"], table_options=options, properties=_LIMIT)
    ran = project.run()
    assert [ran.table(f"shop.{name}")["appended"] for name in ("t", "packed")] == [400, 300]
    postgres_database.execute(_WIDE % "301, 600", "analyze t")
    assert project.run().table("shop.t")["appended"] == 300
    assert project.rows("select count(*), max(length(body)) from raw.t") == [(700, 102_400)]
    assert project.rows("select count(*), min(length(body)) from raw.packed") == [(300, 100_000)]


def test_rows_wider_than_estimated_fail_only_their_own_table(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, body text)",
        "insert into t select n, 'x' from generate_series(1, 300) as n",
        "insert into t select n, repeat('x', 100000) from generate_series(301, 600) as n",
        "analyze t",
        "create table u (id int primary key)",
        "insert into u select 1",
    )
    options = {"t": {"cursor_field": "id"}, "u": {"cursor_field": "id"}}
    project.jdbc(postgres_database, ["t", "u"], table_options=options, properties=_LIMIT)
    ran = project.loader("run")
    assert ran.code == 1, ran.text
    assert ran.errors == [
        "table shop.t: the rows of one fetch need more of Java's memory than a read may take. "
        "Set `fetch_size: 10` in the source's spec to fetch fewer rows at a time. If a "
        "single row is too large, give Spark more memory (spark.driver.memory in the profile's "
        "target)"
    ]
    assert ran.table("shop.u")["appended"] == 1
    project.jdbc(
        postgres_database, ["t", "u"], table_options=options, properties=_LIMIT, fetch_size=10
    )
    assert project.run().table("shop.t")["appended"] == 600


def _read_size(project: Project, database: Database, place: TablePath) -> TableSize | None:
    options = JdbcOptions(url=database.url, user=database.user, password=database.password)
    source = JdbcSource("shop", options, project.spark, project.folder)
    with source.connect() as connection:
        return source.dialect.read_size(connection, place)


def test_the_size_of_a_partitioned_table_includes_all_partitions(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, body text) partition by range (id)",
        "create table low partition of t for values from (1) to (151)",
        "create table high partition of t for values from (151) to (301)",
        _WIDE % "1, 300",
        "analyze t",
        "create view v as select * from t",
    )
    found = _read_size(project, postgres_database, (None, "public", "t"))
    assert found is not None
    assert found.rows == 300
    assert 50_000 < found.size / found.rows < 200_000
    assert _read_size(project, postgres_database, (None, "public", "v")) is None


def test_mariadb_streams_rows_a_few_at_a_time(project: Project, mariadb_database: Database) -> None:
    """A mean width is no help: 120 rows of 14 MB among narrow rows once crashed the JVM."""
    mariadb_database.execute(
        "create table t (id int primary key, body longtext)",
        "insert into t select seq, repeat('x', if(seq > 200, 100000, 1)) from seq_1_to_300",
    )
    options = JdbcOptions(
        url=mariadb_database.url, user=mariadb_database.user, password=mariadb_database.password
    )
    source = JdbcSource("shop", options, project.spark, project.folder)
    assert source.stream_fetch_size == 10
    chosen = JdbcSource(
        "shop", options.model_copy(update={"fetch_size": 50}), project.spark, project.folder
    )
    assert chosen.stream_fetch_size == 50
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    assert project.run().table("shop.t")["appended"] == 300


def test_readers_share_the_heap_of_their_jvm() -> None:
    """When four readers could use a fifth each, Spark had no memory left to copy rows."""
    shares = [
        PostgreSQL.choose_read_properties(15, readers)["maxResultBuffer"]
        for readers in (1, 2, 4, 64)
    ]
    assert shares == ["40percent", "20percent", "10percent", "2percent"]

"""Syncs of few rows: rows cached in the driver, connection poolers, and code generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from pyspark.sql import SparkSession

from loader.spark.session import generate_code, plan_simply, sibling
from loader.sync import extract
from loader.sync.sync_context import SyncContext
from tests.services import Database, Postgres
from tests.services.pooler import pooled
from tests.sync.project import Project


def _create_and_sync(project: Project, database: Database) -> None:
    """Creates a table of two rows, and syncs it once."""
    database.execute(
        "create table t (id int primary key, u timestamptz default now())",
        "insert into t values (1), (2)",
    )
    project.jdbc(database, ["t"], table_options={"t": {"cursor_field": "u"}})
    project.run()


def test_only_windows_of_few_bytes_are_cached_in_the_driver(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The database compresses them to a few kilobytes, but the size of the rows read counts.
    heavy, light = "repeat('é', 700000)", "repeat('é', 7)"
    for name, text in (("heavy", heavy), ("light", light)):
        postgres_database.execute(
            f"create table {name} (id int primary key, u timestamptz default now(), doc text)",
            f"insert into {name} select g, now(), {text} from generate_series(1, 4) g",
        )
    options = {name: {"cursor_field": "u"} for name in ("heavy", "light")}
    project.jdbc(postgres_database, ["heavy", "light"], table_options=options)
    project.run()
    for name in options:
        postgres_database.execute(f"update {name} set doc = doc || id")  # at the cursor
    held, passed = extract.hold_rows, []
    monkeypatch.setattr(
        extract, "hold_rows", lambda rows: passed.append(rows.columns) or held(rows)
    )
    ran = project.run()
    assert len(passed) == 1
    for name in options:
        assert ran.table(f"shop.{name}")["appended"] == 4
        assert project.rows(
            f"select id, right(doc, 2), length(doc) from raw.{name} where _cq_batch = 2 order by id"
        ) == [(n, f"é{n}", 700001 if name == "heavy" else 8) for n in range(1, 5)]


def test_a_pooler_that_drops_our_options_gets_no_prepared_statements(
    project: Project, postgres: Postgres, postgres_database: Database
) -> None:
    names = ["a", "b"]
    for name in names:
        postgres_database.execute(
            f"create table {name} (id int primary key, u timestamptz default now())",
            f"insert into {name} select g from generate_series(1, 20) g",
        )
    with pooled(postgres) as port:
        url = f"jdbc:postgresql://127.0.0.1:{port}/{postgres_database.name}"
        options = {name: {"cursor_field": "u"} for name in names}
        project.jdbc(postgres_database, names, table_options=options, url=url)
        for _ in range(3):
            ran = project.run()
            assert [ran.table(f"shop.{name}")["appended"] for name in names] == [20, 20]
            for name in names:
                postgres_database.execute(f"update {name} set u = clock_timestamp()")


def test_a_table_that_gains_many_columns_at_once_is_not_reported_as_damaged(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create_and_sync(project, postgres_database)
    # More commits than Iceberg keeps metadata files for, so the metadata read first is gone.
    columns = [f"alter table t add c{n} int default {n}" for n in range(25)]
    postgres_database.execute(*columns, "update t set u = clock_timestamp()")
    reached = SyncContext.report_step

    def altered(attempt: SyncContext, step: str) -> None:
        reached(attempt, step)
        if step == "windowed":
            for n in range(25):
                reported = f"alter table {project.schema}.t set tblproperties ('other' = '{n}')"
                project.spark.sql(reported)

    monkeypatch.setattr(SyncContext, "report_step", altered)
    assert project.run().table("shop.t")["appended"] == 2
    assert project.rows("select id, c24 from raw.t where _cq_batch = 2 order by id") == [
        (1, 24),
        (2, 24),
    ]


def test_a_raw_table_that_would_publish_staged_batches_is_refused(
    project: Project, postgres_database: Database
) -> None:
    _create_and_sync(project, postgres_database)
    raw = f"{project.schema}.t"
    for statement in (
        f"create table {raw}_copy using iceberg as select * from {raw}",
        f"drop table {raw}",
        f"create table {raw} using iceberg as select * from {raw}_copy",
    ):
        project.spark.sql(statement)
    postgres_database.execute("update t set u = clock_timestamp()")
    ran = project.loader("run")
    assert ran.code == 1
    assert "its property write.wap.enabled is missing" in ran.errors[0]
    assert project.rows("select count(*), max(_cq_batch) from raw.t") == [(2, 1)]
    project.spark.sql(f"alter table {raw} set tblproperties ('write.wap.enabled' = 'true')")
    assert project.run().table("shop.t")["appended"] == 2
    assert project.rows("select count(*), max(_cq_batch) from raw.t") == [(4, 2)]


def test_code_is_generated_for_the_scan_of_a_large_raw_table(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, u timestamptz, doc text)",
        "insert into t select n, '2025-01-01'::timestamptz + n * interval '1 day', 'a' "
        "from generate_series(1, 9) as n",
    )
    options = {"cursor_field": "u", "sweep": "always"}
    project.jdbc(postgres_database, ["t"], table_options={"t": options})
    project.run()
    held, used = extract.hold_rows, extract.generate_code
    steps: list[str] = []

    @contextmanager
    def generate(session: SparkSession) -> Iterator[None]:
        steps.append("begin")
        with used(session):
            yield
        steps.append("end")

    monkeypatch.setattr(extract, "generate_code", generate)
    monkeypatch.setattr(extract, "hold_rows", lambda rows: steps.append("held") or held(rows))
    for limit, expected in (
        (9, ["held", "held", "held"]),
        (8, ["held", "begin", "held", "end", "held"]),
        (8, ["held", "begin", "held", "end", "held"]),  # the versions have a new generation
    ):
        monkeypatch.setattr(extract, "_MANY_ROWS", limit)
        steps.clear()
        postgres_database.execute("update t set doc = doc || 'b' where id in (2, 5)")
        assert project.run().table("shop.t")["appended"] == 2
        assert steps == expected
        newest = "max_by(doc, struct(_cq_generation, _cq_batch))"
        docs = project.rows(f"select id, {newest} from raw.t group by id order by id")
        assert docs == postgres_database.query("select id, doc from t order by id")


def test_code_generation_is_restored_only_within_the_block(spark: SparkSession) -> None:
    whole, factory = "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"
    session, configured = sibling(spark), spark.sparkContext._conf
    before = configured.get(whole)
    plan_simply(session)
    configured.set(whole, "true")  # the tests turn it off
    try:
        with suppress(ZeroDivisionError), generate_code(session):
            during = [session.conf.get(name) for name in (whole, factory)]
            1 / 0  # noqa: B018
    finally:
        configured.set(whole, str(before))
    assert during == ["true", configured.get(factory)]
    assert [session.conf.get(name) for name in (whole, factory)] == ["false", "NO_CODEGEN"]

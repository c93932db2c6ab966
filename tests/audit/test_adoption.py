"""Guards that an adopted copy equals a first load, even if the adoption is killed at any step."""

from __future__ import annotations

import contextlib
import signal

import pytest

from loader.audit.adoption import Adoption
from loader.audit.copied_table import CopyOptions, find_spark_table
from loader.sync.fault_injection import STEPS
from tests.audit.conftest import COLUMNS, Row, Shop
from tests.crash.conftest import workers as workers
from tests.crash.steps import run_with
from tests.crash.workers import Workers
from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.conftest import project as project
from tests.sync.project import Project

NEWEST = """
    select id, newest.note, newest.amount, newest.paid, newest.micros
    from (
        select
            id,
            max_by(
                struct(note, amount, paid, unix_micros(updated_at) as micros, _cq_deleted),
                struct(_cq_generation, updated_at, _cq_batch, _cq_seq)
            ) as newest
        from raw.orders
        group by id
    )
    where not newest._cq_deleted
    order by id
"""
SOURCE = """
    select id, note, amount, paid, (extract(epoch from updated_at) * 1000000)::bigint
    from orders
    order by id
"""


def _configure(project: Project, shop: Shop, **options: object) -> None:
    options = {"cursor_field": "updated_at", **options}
    project.jdbc(shop.database, ["orders"], table_options={"orders": options})


def _assert_equal(project: Project, shop: Shop) -> None:
    """Checks that the newest versions that are not deleted equal the source's rows."""
    assert project.rows(NEWEST) == shop.database.query(SOURCE)


def _use_new_schema(project: Project, name: str) -> None:
    project.schema = f"{project.schema.partition('__')[0]}__{name}"
    project.write()


def _damage(rows: list[Row]) -> list[Row]:
    """Returns a copy with the errors that a tool with plain cursors makes."""
    kept = [row for row in rows if row["id"] not in (3, 700)]
    stale = [{**row, "note": "old"} if row["id"] in (40, 41) else row for row in kept]
    return [*stale, {**rows[0], "id": 9000}, rows[99]]


def test_a_copy_becomes_the_first_batch_and_later_runs_continue(
    project: Project, shop: Shop
) -> None:
    _configure(project, shop)
    copy = shop.write(_damage(shop.rows()))
    with contextlib.closing(shop.database.connect()) as slow, slow.cursor() as cursor:
        cursor.execute("begin")
        cursor.execute("insert into orders select 2001, 'slow', 1, true, '2025-03-02 00:00+00'")
        ran = project.loader("adopt", "shop.orders", copy)
        assert ran.code == 0, ran.text
        [adopted] = [event for event in ran.events if event["event"] == "adopted"]
        kinds = ("lost", "stale", "extra", "doubled")
        assert [adopted[kind] for kind in kinds] == [2, 2, 1, 1]
        _assert_equal(project, shop)
        assert project.rows("select distinct _cq_batch from raw.orders") == [(1,)]
        cursor.execute("commit")
    shop.database.execute(
        "update orders set note = 'new', updated_at = '2026-01-01' where id = 5",
        "insert into orders values (3001, 'added', 2.5, false, '2026-01-02')",
    )
    done = project.run().table("shop.orders")
    assert (done["batch"], done["appended"]) == (2, 3), "the late row is found, nothing is doubled"
    _assert_equal(project, shop)
    assert project.loader("reconcile").code == 0
    assert project.run().table("shop.orders")["status"] == "nothing new"


def test_an_adoption_is_one_first_batch_like_a_first_load(project: Project, shop: Shop) -> None:
    """The state and the rows equal those of a `loader run` on an empty lake."""
    _configure(project, shop)
    assert project.loader("adopt", "orders", shop.write(shop.rows())).code == 0
    adopted = project.state("shop.orders")
    columns = "id, note, amount, paid, updated_at, _cq_row_hash, _cq_generation"
    rows = project.rows(f"select {columns} from raw.orders order by id")
    _use_new_schema(project, "loaded")
    project.run()
    loaded = project.state("shop.orders")
    # The mark depends on the time, and adopted rows have a generation of their own.
    for state in (
        adopted,
        loaded,
    ):
        for name in ("mark", "generation", "base_generation"):
            state.pop(name, None)
    assert adopted == loaded
    first = project.rows(f"select {columns} from raw.orders order by id")
    assert [row[:-1] for row in rows] == [row[:-1] for row in first]


def test_dbt_tests_of_an_adopted_table_pass(project: Project, shop: Shop) -> None:
    _configure(project, shop)
    assert project.loader("adopt", "orders", shop.write(_damage(shop.rows()))).code == 0
    schema = project.schema
    dbt = DbtProject(project.spark, project.folder, schema=f"mart_{schema}", raw_schema=schema)
    assert project.loader("codegen").code == 0
    everything = ("build", "--select", "source:shop+", "cq_sync_log", "cq_state_current")
    for note in ("changed", "changed again"):
        results = dbt.run(*everything)
        assert {one.status for one in results.values()} == {"success", "pass"}, results
        shop.database.execute(f"update orders set note = '{note}', updated_at = now() where id = 9")
        project.run()


def test_a_copy_that_is_changed_after_it_was_compared_is_refused(
    project: Project, shop: Shop
) -> None:
    _configure(project, shop)
    copy = f"{project.schema}.theirs"
    project.spark.sql(f"create namespace if not exists {project.schema}")
    project.spark.read.parquet(shop.write(_damage(shop.rows()))).writeTo(copy).create()
    [(whole,)] = project.rows("select snapshot_id from raw.theirs.snapshots")
    work = Adoption(copy, find_spark_table, CopyOptions())

    for change in (
        f"update {copy} set note = 'changed' where id = 10",
        f"delete from {copy} where id = 11",
        f"insert into {copy} select * from {copy} where id = 9000",  # a row that is not adopted
    ):

        def change_copy(step: str, table: str, sql: str = change) -> None:
            if step == "windowed":
                project.spark.sql(sql)

        outcome = run_with(project, change_copy, work=work)["shop.orders"]
        if "insert" in change:
            assert outcome.error is None
        else:
            assert f"{copy} was changed while" in str(outcome.error)
            assert project.rows("select count(*) from raw.orders") == [(0,)]
        project.spark.sql(f"call system.set_current_snapshot('{copy}', {whole})").collect()
    _assert_equal(project, shop)
    assert project.loader("reconcile").code == 0


@pytest.mark.slow
def test_killed_at_each_step(project: Project, shop: Shop, workers: Workers) -> None:
    _configure(project, shop)
    copy = shop.write(_damage(shop.rows()))
    for step in STEPS:
        if step in ("recovered-state", "windowed", "unlocked"):
            continue  # nothing more is durable than at the step before
        _use_new_schema(project, step.replace("-", "_"))
        victim = workers.take()
        crash_at = f"{step}:shop.orders"
        victim.start(project, "adopt", "shop.orders", copy, crash_at=crash_at)
        assert victim.died() == signal.SIGKILL
        is_published = step in ("published", "state-recorded", "ledger-recorded")
        again = project.loader("adopt", "shop.orders", copy)
        if is_published:
            assert again.code == 1
            assert "already has batches" in again.errors[0]
            project.run()
        else:
            assert again.code == 0, again.text
        _assert_equal(project, shop)
        assert project.rows("select count(*), max(_cq_batch) from raw.orders") == [(1000, 1)], step
        assert project.loader("reconcile").code == 0


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        (COLUMNS.replace(", paid boolean", ""), {}, "cannot be proved equal"),
        (COLUMNS, {"sync_mode": "full_refresh", "cursor_field": None}, "full_refresh` cannot be"),
    ],
)
def test_copies_that_cannot_be_adopted_are_refused(
    project: Project, shop: Shop, columns: str, options: dict[str, object], expected: str
) -> None:
    _configure(project, shop, **options)
    ran = project.loader("adopt", "shop.orders", shop.write(shop.rows(), columns=columns))
    assert ran.code == 1
    assert expected in ran.errors[0]
    assert "orders" not in [row[1] for row in project.rows(f"show tables in {project.schema}")]


def test_a_table_with_batches_is_refused(
    project: Project, shop: Shop, postgres_database: Database
) -> None:
    _configure(project, shop)
    project.run()
    copy = shop.write(shop.rows())
    ran = project.loader("adopt", "shop.orders", copy)
    assert ran.code == 1
    assert "already has batches" in ran.errors[0]
    project.spark.sql(f"drop table {project.schema}.orders")
    assert project.loader("adopt", "shop.orders", copy).code == 0
    _assert_equal(project, shop)
    assert project.rows("select count(*), max(_cq_batch) from raw.orders") == [(1000, 2)]
    assert project.run().table("shop.orders")["status"] == "nothing new"


def test_a_copy_with_the_name_of_the_raw_table_is_refused(project: Project, shop: Shop) -> None:
    _configure(project, shop)
    path = shop.write(shop.rows())
    project.spark.sql(f"create namespace if not exists {project.schema}")
    name = f"{project.schema}.orders"
    project.spark.read.parquet(path).writeTo(name).using("iceberg").create()
    ran = project.loader("adopt", "shop.orders", name)
    assert ran.code == 1, ran.text
    assert ran.errors[0].startswith(f"table {name}: another program created this table")
    assert project.loader("run").errors == ran.errors
    assert project.rows("select count(*) from raw.orders") == [(1000,)]
    project.spark.sql(f"create table {project.schema}.theirs using iceberg as select * from {name}")
    project.spark.sql(f"drop table {name}")
    assert project.loader("adopt", "shop.orders", f"{project.schema}.theirs").code == 0
    _assert_equal(project, shop)

"""No row is missed if a table is emptied after its rows were counted, and then refilled."""

from __future__ import annotations

import pytest

from loader.spec.spec import load_spec
from loader.sync import publish
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.crash.steps import Hook
from tests.reconcile.conftest import derby as derby
from tests.reconcile.conftest import shop as shop
from tests.reconcile.shop import Shop
from tests.sync.project import Project

VALUES = {
    "int": "{}",
    "timestamp": "timestamp('2026-01-{:02} 00:00:00')",
    "date": "cast('2026-01-{:02}' as date)",
    "varchar": "'a{:02}'",
}
TABLES = [f"{key}_{type_}" for key in ("keyed", "keyless") for type_ in VALUES]
KEPT = dict.fromkeys(TABLES, 0) | dict.fromkeys(
    ("keyed_int", "keyed_date", "keyless_timestamp", "keyless_varchar"), 15
)
"""By table, how many rows the first read finds: 0 or 15, for each type, keyed and keyless."""


def _create_sql(table: str) -> str:
    key, type_ = table.split("_")
    of_key = " primary key" if key == "keyed" else ""
    of_cursor = {"timestamp": "timestamp not null", "varchar": "varchar(9)"}.get(type_, type_)
    return f"create table {table} (id int not null{of_key}, c {of_cursor})"


def _insert_sql(table: str, first: int, last: int) -> str:
    value = VALUES[table.split("_")[1]]
    rows = [f"({i}, {value.format(i)})" for i in range(first, last + 1)]
    return f"insert into {table} values {', '.join(rows)}"


@pytest.mark.parametrize(
    ("shop", "sync"),
    [
        *(("mariadb", sync) for sync in ("first load", "incremental", "full refresh", "reset")),
        ("derby", "incremental"),
    ],
    indirect=["shop"],
)
def test_a_table_that_is_rebuilt_while_it_is_read(project: Project, shop: Shop, sync: str) -> None:
    """The first run reads an empty or partly filled table; a later run loads the other rows."""
    shop.execute(*map(_create_sql, TABLES))
    shop.configure(project, TABLES, cursor_field="c")
    before = 0 if sync == "first load" else 10
    if before:
        shop.execute(*(_insert_sql(table, 1, before) for table in TABLES))
        project.run()
    shop.execute(*(_insert_sql(table, before + 1, 20) for table in TABLES))
    if sync == "reset":
        for table in TABLES:
            assert project.loader("state", "reset", f"shop.{table}").code == 0
    rebuilt = []

    def rebuild(step: str, name: str) -> None:
        if step == "windowed":
            table = name.removeprefix("shop.")
            kept = [_insert_sql(table, 1, KEPT[table])] if KEPT[table] else []
            shop.execute(f"delete from {table}", *kept)
            rebuilt.append(table)

    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    errors = [
        str(outcome.error)
        for outcome in run_tables(pipeline, Watch(steps=Hook(rebuild)), (), sync == "full refresh")
        if outcome.error is not None
    ]
    assert errors == []
    assert sorted(rebuilt) == sorted(TABLES)
    shop.execute(*(_insert_sql(table, kept + 1, 20) for table, kept in KEPT.items()))
    project.run()
    for table in TABLES:
        found = project.rows(f"select distinct id from raw.{table} order by id")
        assert (table, found) == (table, [(i,) for i in range(1, 21)])


class Crash(BaseException):
    """Stands for the death of the process."""


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_a_crash_after_a_batch_was_staged_twice(
    project: Project, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both staged batches stay invisible, and the next run loads all rows once."""
    [table] = tables = ["keyed_int"]
    shop.execute(_create_sql(table), _insert_sql(table, 1, 20))
    shop.configure(project, tables, cursor_field="c")

    def rebuild(step: str, _: str) -> None:
        if step == "windowed":
            shop.execute(f"delete from {table}", _insert_sql(table, 1, 15))

    def crash(*_: object) -> None:
        raise Crash

    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    with monkeypatch.context() as patched:
        patched.setattr(publish, "discard_staged", crash)
        with pytest.raises(Crash):
            list(run_tables(pipeline, Watch(steps=Hook(rebuild)), ()))
    shop.execute(_insert_sql(table, 16, 20))
    assert project.run().table(f"shop.{table}")["appended"] == 20
    assert project.run().table(f"shop.{table}")["appended"] == 0
    assert project.rows(f"select count(*), count(distinct id) from raw.{table}") == [(20, 20)]

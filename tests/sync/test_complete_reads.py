"""A first load or full refresh is complete even if the source changes during the read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.reconcile.conftest import derby as derby
from tests.reconcile.conftest import shop as shop
from tests.reconcile.shop import Shop
from tests.sync.project import Project


@dataclass(frozen=True)
class At:
    """Calls a function when a table reaches a step."""

    step: str
    act: Callable[[], None]

    def report_step(self, step: str, table: str) -> None:
        if step == self.step:
            self.act()


def _run(project: Project, act: Callable[[], None], full_refresh: bool) -> int:
    """Runs, calling `act` after the bounds are read and before the rows; counts appended rows."""
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    watch = Watch(steps=At("windowed", act))
    [outcome] = run_tables(pipeline, watch, (), full_refresh, None)
    assert outcome.error is None, outcome.error
    assert outcome.record is not None
    return outcome.record.rows_appended or 0


@pytest.mark.parametrize("shop", ["mariadb", "derby"], indirect=True)
def test_rows_that_are_updated_between_bounds_and_read(project: Project, shop: Shop) -> None:
    shop.execute("create table orders (id int not null primary key, note varchar(9), c int)")
    shop.execute(f"insert into orders values {', '.join(f'({i}, null, {i})' for i in range(40))}")
    shop.configure(project, ["orders"], cursor_field="c", num_partitions=2)

    def update(number: int) -> Callable[[], None]:
        return lambda: shop.execute(f"update orders set note = 'u', c = {number} where id = 5")

    for full_refresh, number in ((False, 101), (True, 102)):
        before = {False: 39, True: 101}[full_refresh]
        assert _run(project, update(number), full_refresh) == 40
        # The cursor is below the updated row; the next sync rereads the row without appending it.
        assert project.state("shop.orders")["cursor"] == str(before)
        ran = project.run().table("shop.orders")
        assert (ran["appended"], ran["cursor"]) == (0, str(number))
    assert project.rows("select count(*), max(c) from raw.orders where _cq_generation = 2") == [
        (40, 102)
    ]


def test_a_file_that_is_written_again_between_bounds_and_read(project: Project) -> None:
    folder = project.folder / "data" / "orders"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text(f"id,name\n{name},first\n")
        os.utime(folder / f"{name}.csv", (1735689600, 1735689600))
    own = {"path": "data", "format": "csv", "table_options": {"orders": {"primary_key": "id"}}}
    project.add("drop", "file", ["orders"], own)
    project.run()

    def rewrite() -> None:
        (folder / "a.csv").write_text("name,id\nsecond,a\n")

    assert _run(project, rewrite, True) == 2
    assert project.run().table("drop.orders")["appended"] == 0
    assert project.rows("select id, name from raw.orders where _cq_generation = 2 order by id") == [
        ("a", "second"),
        ("b", "first"),
    ]

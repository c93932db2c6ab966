"""A compaction that dies leaves the table as it was or smaller, and every row accounted for.

Two steps differ in the account of removed rows, which `batches_accounted` checks; so it runs after
each crash. It adds up all compactions of a table, so an error that one leaves also shows after the
next. The other tests check rows, state and ledger: they run once, at the end.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from loader.lake.lake import Lake
from loader.maintenance import compaction, expiry
from tests.crash.workers import Workers
from tests.maintenance.shop import CHANGED, ORDERS, Shop

LEFT = ORDERS + CHANGED
"""Raw's rows after a compaction: a version of each key, and the newest batch."""

ORDERS_ONLY = ("--select", "shop.orders")
COMPACT = ("compact", "--keep-versions", "1", "--expire-days", "0")
ACCOUNTED = "batches_accounted"
KILLS = int(os.environ.get("STRANDLINE_KILLS", "1"))


class Crash(BaseException):
    """Ends a compaction like a killed process: nothing more is done."""


def _at(number: int, after: bool) -> Callable[[pytest.MonkeyPatch], None]:
    """Dies before or after properties are set for the n-th time."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = Lake.set_properties, iter(range(1, 100))

        def set_properties(self: Lake, table: str, properties: Any) -> None:
            now = next(calls)
            if now == number and not after:
                raise Crash
            real(self, table, properties)
            if now == number:
                raise Crash

        monkeypatch.setattr(Lake, "set_properties", set_properties)

    return patch


def _in(module: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Dies when a function is called."""

    def crash(*_: object) -> None:
        raise Crash

    return lambda monkeypatch: monkeypatch.setattr(module, name, crash)


@pytest.mark.parametrize(
    ("dies", "gone"),
    [
        (_at(1, after=False), False),
        (_at(1, after=True), False),  # the account says what would go, and nothing went
        (_at(2, after=False), True),  # the rows are gone, the account is open
        (_in(compaction, "rewrite_raw"), True),
        (_at(3, after=False), True),
        (_in(expiry, "expire"), True),
    ],
    ids=["before", "intended", "removed", "accounted", "rewritten", "kept"],
)
def test_a_crash_at_each_step(
    lasting_shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    dies: Callable[[pytest.MonkeyPatch], None],
    gone: bool,
) -> None:
    shop = lasting_shop
    shop.change()
    shop.project.run()
    rows, latest, head = len(shop.versions()), shop.latest(), shop.head()
    assert rows > LEFT
    with monkeypatch.context() as patch:
        dies(patch)
        with pytest.raises(Crash):
            shop.project.loader(*COMPACT, *ORDERS_ONLY)
    assert len(shop.versions()) == (LEFT if gone else rows)
    assert (shop.latest(), shop.head()) == (latest, head)
    shop.proven(by=ACCOUNTED)
    assert shop.project.run().table("shop.orders")["status"] == "nothing new"
    freed = shop.freed(shop.compact(*COMPACT[1:], *ORDERS_ONLY))
    assert (freed["rows_before"], freed["rows_after"]) == (LEFT if gone else rows, LEFT)
    assert len(shop.versions()) == LEFT
    assert (shop.latest(), shop.head()) == (latest, head)
    assert shop.project.snapshots("orders") == 1


def test_after_all_these_crashes_every_test_holds(lasting_shop: Shop) -> None:
    lasting_shop.proven()


@pytest.mark.slow
def test_killed_at_any_moment(shop: Shop, workers: Workers) -> None:
    """STRANDLINE_KILLS says how often."""
    moments = random.Random(4711)
    seen = set()
    for number in range(KILLS):
        shop.change()
        shop.project.run()
        latest, head, before = shop.latest(), shop.head(), len(shop.versions())
        victim = workers.take()
        victim.start(shop.project, *COMPACT)
        time.sleep(moments.uniform(2, 8))
        for pid in (victim.jvm, victim.process.pid):
            os.kill(pid, signal.SIGKILL)
        assert victim.died() == signal.SIGKILL
        seen.add(len(shop.versions()) < before)
        assert (shop.latest(), shop.head()) == (latest, head), f"kill {number}"
        shop.proven(by=ACCOUNTED)
        assert shop.project.run().table("shop.orders")["status"] == "nothing new"
    shop.compact(*COMPACT[1:])
    assert len(shop.versions()) == LEFT
    print(f"killed before and after the rows went: {seen}")
    shop.proven()


def test_a_removal_that_fails_leaves_every_batch_to_be_asked_for(shop: Shop) -> None:
    """`as_of` refuses batches that compaction has removed versions of; here there are none."""
    table = f"{shop.project.schema}.orders"
    sql = shop.project.spark.sql
    sql(f"alter table {table} set tblproperties ('write.delete.format.default' = 'none such')")
    before = shop.versions()
    ran = shop.project.loader("compact", "--keep-versions", "1", *ORDERS_ONLY)
    assert (ran.code, len(ran.errors)) == (1, 1), ran.text
    assert ran.errors[0].startswith("table shop.orders: ")
    properties = dict(shop.project.rows("show tblproperties raw.orders"))
    assert properties["strandline.compacted_to"] == "0"
    assert shop.versions() == before
    shop.proven(by=ACCOUNTED)
    sql(f"alter table {table} unset tblproperties ('write.delete.format.default')")
    shop.compact("--keep-versions", "1", *ORDERS_ONLY)
    properties = dict(shop.project.rows("show tblproperties raw.orders"))
    assert properties["strandline.compacted_to"] == "4"
    assert len(shop.versions()) == LEFT
    shop.proven(by=ACCOUNTED)

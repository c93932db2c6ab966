"""Sources may load the same raw table only if all are `shared`, and they take turns."""

from __future__ import annotations

import threading

import pytest

from loader.errors import TableError
from loader.lake.locks import Lease
from loader.sync.ownership import Claim, list_sharers
from loader.sync.runner import LeaseTurn, SharedLease


def _claims(*sources: tuple[str, bool]) -> list[Claim]:
    return [Claim(name, "orders", "raw.orders", shared) for name, shared in sources]


def test_a_source_that_does_not_share_is_accepted_only_if_it_is_first() -> None:
    claims = _claims(("eu", True), ("us", True), ("asia", False))
    assert list_sharers(claims[0], claims) == list_sharers(claims[1], claims) == ("eu", "us")
    with pytest.raises(TableError, match="source eu already loads the raw table") as no:
        list_sharers(claims[2], claims)
    assert "table_options.orders.shared: true in asia" in no.value.remedy
    assert "in eu" not in no.value.remedy

    claims = _claims(("eu", False), ("us", True))
    assert list_sharers(claims[0], claims) == ("eu",)
    with pytest.raises(TableError) as no:
        list_sharers(claims[1], claims)
    assert no.value.remedy.endswith("set table_options.orders.shared: true in eu")


def test_sharers_must_spell_their_raw_table_alike() -> None:
    claims = [Claim("eu", "Orders", "raw.Orders", True), Claim("us", "orders", "raw.orders", True)]
    with pytest.raises(TableError, match="with source eu, where the table is spelled Orders"):
        list_sharers(claims[1], claims)


class _Lease(Lease):
    def __init__(self) -> None:
        self.table, self.where, self.run_id = "orders", "table eu.orders", "run"
        self.released = 0

    def release(self) -> None:
        self.released += 1


def test_a_shared_lease_is_released_after_its_last_turn() -> None:
    lease = _Lease()
    first, second, third = (LeaseTurn(turns) for turns in [SharedLease(lease, 3)] for _ in range(3))
    first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    first.release()
    first.release()
    waiting.join(5)
    assert not waiting.is_alive()
    third.release()
    assert lease.released == 0
    second.release()
    assert lease.released == 1

"""Guards that rows that change during an audit, or are not due yet, do not count as lost."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random

import pytest
from click.testing import CliRunner

from loader.audit import auditor
from loader.cli import main
from tests.audit.conftest import Shop


def _act_in_pause(monkeypatch: pytest.MonkeyPatch, act: object) -> None:
    """Runs a function in the pause between the two comparisons."""
    run = auditor.Auditor.run

    def run_and_act(self: auditor.Auditor) -> object:
        effort = dataclasses.replace(self.effort, pause=1.0, wait=act)
        return run(dataclasses.replace(self, effort=effort))

    monkeypatch.setattr(auditor.Auditor, "run", run_and_act)


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_the_tool_loads_during_the_pause_are_lag(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chosen = random.Random(seed)
    rows = shop.rows()
    late = set(chosen.sample(range(1, 900), 60))
    lost = set(chosen.sample(sorted(late), 7))
    copy = shop.write([row for row in rows if row["id"] not in late])
    _act_in_pause(
        monkeypatch,
        lambda _: shop.write([row for row in rows if row["id"] in late - lost]),
    )
    found = shop.audit(copy, "--grace", "0")
    assert (found["lost"], found["lag"]) == (7, 53)
    assert {e["key"] for e in found["examples"]} == {f"id={i}" for i in lost}


def test_rows_that_change_during_the_pause_count_as_lag(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = shop.rows()
    changed = [dict(row, note="old") if row["id"] in (5, 6) else row for row in rows]
    copy = shop.write([row for row in changed if row["id"] != 7] + [dict(rows[0], id=2000)])
    _act_in_pause(
        monkeypatch,
        lambda _: shop.database.execute(
            "update orders set note = 'newer' where id = 5",
            "delete from orders where id = 7",
            "insert into orders select 2000, 'x', 1, true, now()",
        ),
    )
    found = shop.audit(copy, "--grace", "0")
    assert (found["stale"], found["lost"], found["extra"], found["lag"]) == (1, 0, 0, 3)


def test_a_row_dated_in_the_future_does_not_make_lag_a_loss(shop: Shop) -> None:
    shop.database.execute(
        "update orders set updated_at = '2099-01-01' where id = 5",
        "update orders set updated_at = now() - (1000 - id) * interval '1 hour' where id > 6",
    )
    copy = shop.write([row for row in shop.rows() if row["id"] <= 990 and row["id"] != 500])
    found = shop.audit(copy, "--grace", "1h")
    assert (found["lost"], found["lag"]) == (1, 10)
    assert found["highest_cursor"] < "2099"


def test_a_copy_that_has_stopped_is_not_only_lag(shop: Shop) -> None:
    shop.database.execute("update orders set updated_at = now() - (1000 - id) * interval '1 hour'")
    rows = [row for row in shop.rows() if row["id"] <= 970]
    copy = shop.write(rows)
    arguments = ["audit", shop.url, "orders", copy, "--pause", "0"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    newest = f"{rows[-1]['updated_at'].astimezone(dt.timezone.utc):%Y-%m-%d %H:%M:%S}"
    assert f"has the older rows of orders. It has not been loaded since {newest}" in result.output
    assert ", and it is 30 rows behind." in result.output
    assert "1 day 5 hours ago: more than --max-lag, 1 day." in result.output.replace("\n", " ")
    found = shop.audit(copy, "--max-lag", "2d")
    assert (found["equal"], found["behind"], found["lag"]) == (True, 30, 30)


def test_a_row_without_a_cursor_is_lost_not_late(shop: Shop) -> None:
    shop.database.execute("update orders set updated_at = null where id = 900")
    copy = shop.write([row for row in shop.rows() if row["id"] != 900])
    found = shop.audit(copy)
    assert (found["lost"], found["lag"]) == (1, 0)
    assert [day["day"] for day in found["days"]] == ["none"]

"""What `loader status` prints, from the ledger's rows."""

from __future__ import annotations

from typing import Any

import pytest

from loader.cli.console import Output
from loader.cli.status import print_status


def _row(table: str, error: str | None) -> tuple[Any, ...]:
    return table, "failed" if error else "synced", None, None, None, None, None, error


def test_an_error_that_tables_share_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    down = "table shop: no connection to 127.0.0.1:5432"
    rows = [_row(f"shop.t{number}", down) for number in range(11)]
    rows += [_row("shop.full", "the disk is full"), _row("shop.well", None)]
    assert not print_status(Output(), rows, False, None)
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines == [
        f"shop.t0, shop.t1, shop.t2 and 8 more: {down}",
        "shop.full: the disk is full",
    ]
    assert print_status(Output(), rows, True, None)
    assert capsys.readouterr().out.count(down) == 1

"""`loader status` prints an error that tables share once, and no empty columns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from loader.cli.console import Output
from loader.cli.status import print_status


def _row(table: str, error: str | None) -> tuple[Any, ...]:
    return table, "failed" if error else "synced", *[None] * 11, error


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


def test_rows_that_a_plain_cursor_would_lose_are_shown_if_there_are_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def columns(below: int | None, at: int | None, unmoved: int | None = None) -> list[str]:
        counts = (below, at, unmoved)
        rows = [
            _row("shop.other", None),
            ("shop.t", "synced", "9", 3, 20, *counts, None, 0, None, None, 0, None),
        ]
        print_status(Output(), rows, False, None)
        return re.split("  +", capsys.readouterr().out.splitlines()[0])

    always = ["table", "last attempt", "cursor", "batch", "rows appended", "synced"]
    assert columns(None, None) == columns(0, 0) == always
    assert columns(0, 2) == [*always[:5], "rows at cursor", "synced"]
    assert columns(1, 2) == [*always[:5], "rows below cursor", "rows at cursor", "synced"]
    assert columns(1, 0, 1)[-3:] == ["rows below cursor", "rows cursor unmoved", "synced"]

"""`loader state set` and `reset` change the state as it is after they have locked the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from loader.cli import state as commands
from loader.rows.cursor import Cursor, CursorType
from loader.state import TableState


def cursor(number: int) -> Cursor:
    return Cursor(str(number), CursorType.INTEGER)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("set", "shop.orders", "5"), TableState(2, cursor=cursor(5), cursor_field="version")),
        (("reset", "shop.orders"), TableState(2, cursor=None, cursor_field="version")),
    ],
)
def test_state_that_a_run_stored_before_the_lock_is_changed(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: TableState
) -> None:
    stored = [TableState(1, cursor=cursor(9), cursor_field="id")]

    @contextmanager
    def lock_tables(*_: Any) -> Iterator[str]:
        stored.append(TableState(2, cursor=cursor(12), cursor_field="version"))
        yield "run"

    state = SimpleNamespace(
        read=lambda table: stored[-1], write=lambda table, new: stored.append(new)
    )
    monkeypatch.setattr(commands, "lock_tables", lock_tables)
    stores = SimpleNamespace(
        state=state, is_foreign=lambda table, state: False, add_table_id=lambda table, state: state
    )
    monkeypatch.setattr(commands, "stores_of", lambda *_: stores)
    pipeline = SimpleNamespace(sources=[(SimpleNamespace(name="shop", formerly=()), None)])
    monkeypatch.setattr(
        commands, "open_pipeline_with_pushed_tables", lambda *_: nullcontext(pipeline)
    )
    settings = SimpleNamespace(output=SimpleNamespace(say=lambda text: None))
    ran = CliRunner().invoke(commands.state, arguments, obj=settings, catch_exceptions=False)
    assert (ran.exit_code, stored[-1]) == (0, expected)

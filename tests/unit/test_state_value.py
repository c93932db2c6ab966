"""A stored state that this version of the loader cannot read is refused with a clear error."""

from __future__ import annotations

import pytest

from loader.errors import StateError
from loader.state import TableState


@pytest.mark.parametrize("text", [None, "", "7", "{}", '{"batch": -1}'])
def test_an_invalid_value_is_one_clear_error(text: str) -> None:
    with pytest.raises(StateError, match="was not written by this loader"):
        TableState.from_json(text, "shop.orders")


def test_a_newer_format_is_refused() -> None:
    newer = '{"batch": 1, "format": 2, "means": "something else"}'
    with pytest.raises(StateError, match=r"a newer .* \(its format is 2, this version reads 1\)"):
        TableState.from_json(newer, "shop.orders")
    assert TableState.from_json('{"batch": 1, "unknown": 1}', "shop.orders").batch == 1

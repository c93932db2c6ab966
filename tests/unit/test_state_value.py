"""State values that are not ours."""

from __future__ import annotations

import pytest

from loader.errors import StateError
from loader.state import TableState


@pytest.mark.parametrize("text", [None, "", "7", "{}", '{"batch": -1}'])
def test_a_value_that_is_not_ours_is_one_clear_error(text: str) -> None:
    with pytest.raises(StateError, match="was not written by this loader"):
        TableState.from_json(text, "shop.orders")

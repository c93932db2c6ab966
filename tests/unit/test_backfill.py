"""An interrupted backfill resumes where it stopped, if its range is the same."""

from __future__ import annotations

import pytest

from loader.rows.cursor import Cursor, CursorType
from loader.sync.backfill import find_resume_point

BEGUN = {"from": "1", "to": "50", "to_cursor": True, "done_to": "20"}


@pytest.mark.parametrize(
    ("change", "high", "open_end", "done"),
    [
        ({}, 50, True, "20"),
        ({}, 60, True, "20"),  # a sync has moved the cursor forward
        ({}, 20, True, None),  # the cursor was moved back: nothing is left to load
        ({}, 9, True, None),
        ({}, 50, False, "20"),
        ({}, 60, False, None),
        ({"from": "2"}, 50, True, None),
        ({"to_cursor": False}, 60, True, None),
        (None, 50, True, None),
    ],
)
def test_it_resumes_only_with_the_same_range(
    change: dict[str, object] | None, high: int, open_end: bool, done: str | None
) -> None:
    whole = {"from": "1", "to": str(high), "to_cursor": open_end}
    progress = None if change is None else BEGUN | change
    found = find_resume_point(progress, whole, Cursor(str(high), CursorType.INTEGER))
    assert (found and found.text) == done

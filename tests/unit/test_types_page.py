"""docs/types.md is up to date with the expected values in the tests of types."""

from __future__ import annotations

from tests.types_page import PAGE, rendered


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == rendered(), "run `make docs-types`"

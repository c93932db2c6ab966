"""Errors of the operating system are reported in one sentence, with a remedy."""

from __future__ import annotations

import errno
import os

import pytest

from loader.spark.error_translation import translate_error


def _translate(number: int, file: str | None = None) -> str:
    error = OSError(number, os.strerror(number), *([file] if file else []))
    return str(translate_error(error, "table shop.orders"))


@pytest.mark.parametrize(
    ("number", "file", "text"),
    [
        (
            errno.ENOSPC,
            None,
            "No space left on device. Free disk space and run again: no partial batch is visible",
        ),
        (
            errno.EROFS,
            "/lake/raw",
            "/lake/raw: Read-only file system. Mount it as writable for the user that runs the "
            "loader, or use another folder; no partial batch is visible",
        ),
        (
            errno.EACCES,
            "/lake/raw",
            "/lake/raw: Permission denied. Grant the loader's user write access there",
        ),
    ],
)
def test_os_errors_are_reported_with_a_remedy(number: int, file: str | None, text: str) -> None:
    assert _translate(number, file) == f"table shop.orders: {text}"


def test_a_value_nested_too_deeply_is_not_reported_as_a_defect() -> None:
    """Comparing deeply nested JSON types can exceed Python's recursion limit."""
    reported = str(
        translate_error(RecursionError("maximum recursion depth exceeded"), "table files.deep")
    )
    assert reported.startswith("table files.deep: a value is nested too deeply to be read. Declare")

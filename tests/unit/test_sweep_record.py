"""A sweep that found nothing is recorded only if repeating it would take long."""

from __future__ import annotations

import pytest

from loader.sources.jdbc.postgresql.continuity import TransactionMark
from loader.sources.jdbc.postgresql.sweep import SweepRecord, must_store

SEEN = TransactionMark("2026-11-30 08:00:00", 700, False, "1/1")
BEFORE = SweepRecord(SEEN, at=1.0, bytes=16_384)


@pytest.mark.parametrize(
    ("bytes_", "seconds", "is_stored"),
    [
        (16_384, 0.01, False),
        (16_384, 0.18, False),  # a busy machine: otherwise a daemon would commit every second
        (16_384, 3.0, True),  # a slow filter
        (50_000_000, 0.01, False),
        (50_000_000, 0.18, True),
    ],
)
def test_a_sweep_is_stored_if_repeating_it_takes_long(
    bytes_: int, seconds: float, is_stored: bool
) -> None:
    after = SweepRecord(SEEN, 2.0, bytes_, seconds)
    assert must_store(BEFORE, after, 0, "auto") is is_stored
    assert must_store(BEFORE, after, 1, "auto")

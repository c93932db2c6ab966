"""Splits a large window to read it in parallel: pure functions over counts.

A window is cut into ranges of its cursor, so that each Spark task writes a file whose rows lie
close together, and Iceberg's statistics can prune files by cursor later. One scan counts the rows
in each slice, to balance the ranges: bulk loads put most rows into few slices.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal

from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import Bounds

ROWS_PER_PARTITION = 50_000
SLICES = 32


def partition_count(rows: int, parallelism: int, configured: int | None) -> int:
    """Returns the number of partitions: as configured, or one per 50,000 rows up to the cores."""
    if configured is not None:
        return configured
    return max(1, min(parallelism, rows // ROWS_PER_PARTITION))


def slices(bounds: Bounds, count: int = SLICES) -> list[Cursor]:
    """Returns cursors that cut ``bounds.low .. bounds.high`` into `count` slices of equal width.

    Empty if the range has no width, or its type has no arithmetic (strings).
    """
    low, high = bounds.low, bounds.high
    if low is None or high is None or low.type is CursorType.STRING or not low.order < high.order:
        return []
    cuts: list[Cursor] = []
    for index in range(1, count):
        cut = _between(low, high, index, count)
        if cut.order > (cuts[-1].order if cuts else low.order) and cut.order <= high.order:
            cuts.append(cut)
    return cuts


def balance_cuts(cuts: Sequence[Cursor], counts: Sequence[int], partitions: int) -> list[Cursor]:
    """Chooses the `cuts` that divide the rows most evenly into `partitions` ranges.

    Args:
        cuts: boundaries, ascending.
        counts: the rows below each cut, ascending, followed by the number of all rows.
    """
    total = counts[-1]
    chosen: list[Cursor] = []
    for part in range(1, partitions):
        wanted = total * part / partitions
        index = min(range(len(cuts)), key=lambda i: abs(counts[i] - wanted), default=None)
        if index is not None and (not chosen or cuts[index].order > chosen[-1].order):
            chosen.append(cuts[index])
    return chosen


def largest_share(below: Sequence[int]) -> float:
    """Returns the share of rows in the fullest slice, from counts as in :func:`balance_cuts`."""
    total = below[-1]
    widths = [b - a for a, b in zip([0, *below], below, strict=False)]
    return max(widths) / total if total else 0.0


def _between(low: Cursor, high: Cursor, index: int, count: int) -> Cursor:
    start, end = low.order, high.order
    if low.type is CursorType.INTEGER:
        return Cursor(str(start + (end - start) * index // count), low.type)
    if low.type is CursorType.DECIMAL:
        return Cursor.parse(str(start + (end - start) * Decimal(index) / count), low.type)
    if low.type is CursorType.DOUBLE:
        return Cursor.parse(repr(start + (end - start) * index / count), low.type)
    if low.type is CursorType.DATE:
        return Cursor((start + (end - start) * index // count).isoformat(), low.type)
    moment: dt.datetime = start + (end - start) * index / count
    return Cursor.parse(moment.isoformat(sep=" ", timespec="microseconds"), low.type)

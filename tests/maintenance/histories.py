"""Random histories of row versions, and a definition of what compaction may remove from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import strategies as st

from tests.dbt.rawtables import META_COLUMNS, Row, row_hash, sync_time

HISTORIES = 60
BATCHES = 6
KEY = ("history", "k")
COLUMNS = f"history int, k int, cursor int, payload string, {META_COLUMNS}"


@dataclass(frozen=True)
class Change:
    """A row of a batch. Few distinct values, so that keys, cursors and contents repeat."""

    k: int | None
    cursor: int | None
    payload: str
    deleted: bool


CHANGES = [
    Change(*values)
    for values in product([1, 1, 2, None], [None, 1, 2, 3], ["x", "y"], [False, False, True])
]
histories = st.lists(
    st.lists(st.lists(st.sampled_from(CHANGES), max_size=3), min_size=BATCHES, max_size=BATCHES),
    min_size=HISTORIES,
    max_size=HISTORIES,
)


def versions(drawn: Sequence[Sequence[Sequence[Change]]], generations: Sequence[int]) -> list[Row]:
    """Returns the rows of all histories, with the given generation for each batch."""
    rows = []
    for batch in range(1, BATCHES + 1):
        emitted = [
            {
                "history": n,
                "k": c.k,
                "cursor": c.cursor,
                "payload": c.payload,
                "_deleted": c.deleted,
            }
            for n, batches in enumerate(drawn)
            for c in batches[batch - 1]
        ]
        for seq, row in enumerate(emitted):
            rows.append(
                {
                    **{name: value for name, value in row.items() if name != "_deleted"},
                    "_cq_source_name": "shop",
                    "_cq_sync_time": sync_time(batch),
                    "_cq_batch": batch,
                    "_cq_seq": seq,
                    "_cq_row_hash": row_hash(row),
                    "_cq_deleted": row["_deleted"],
                    "_cq_generation": generations[batch - 1],
                }
            )
    return rows


def place(row: Row) -> tuple[int, int]:
    """Returns the batch and sequence number, which identify a row."""
    return row["_cq_batch"], row["_cq_seq"]


def order(row: Row) -> tuple[Any, ...]:
    """Returns the sort key of a version among the versions of its key."""
    cursor = row["cursor"]
    return (row["_cq_generation"], cursor is not None, cursor or 0, *place(row))


def content(row: Row) -> tuple[Any, ...]:
    """Returns a version's content, which is the same for all tombstones."""
    return row["_cq_deleted"], None if row["_cq_deleted"] else row["_cq_row_hash"]


def by_key(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Returns each key's versions, oldest first."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=order):
        found[tuple(row[name] for name in KEY)].append(row)
    return found


def latest(rows: Iterable[Row], batch: int) -> dict[tuple[Any, ...], Row]:
    """Returns the snapshot as of a batch."""
    held = by_key(row for row in rows if row["_cq_batch"] <= batch)
    return {key: own[-1] for key, own in held.items() if not own[-1]["_cq_deleted"]}


def history(rows: Iterable[Row], batch: int) -> dict[tuple[Any, ...], list[tuple[int, int]]]:
    """Returns the distinct versions of each key as of a batch, in order."""
    held = by_key(row for row in rows if row["_cq_batch"] <= batch)
    return {
        key: [
            place(row)
            for before, row in zip([None, *own], own, strict=False)
            if before is None or content(before) != content(row)
        ]
        for key, own in held.items()
    }


def removable(
    rows: Iterable[Row], batch: int, keep: int, floor: int | None, only_repeated: bool
) -> set[tuple[int, int]]:
    """Returns the rows that compaction may remove, by definition."""
    gone = set()
    for own in by_key(row for row in rows if row["_cq_batch"] <= batch).values():
        for before, row in zip([None, *own], own[:-keep], strict=False):
            below = row["cursor"] is not None and floor is not None and row["cursor"] < floor
            repeats = (
                before is not None
                and content(before) == content(row)
                and order(before)[:3] == order(row)[:3]
            )
            if below and (repeats or not only_repeated):
                gone.add(place(row))
    return gone

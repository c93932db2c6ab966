"""Random batches of a raw table, and a definition in Python of its latest table and history.

Many independent histories share one table: the history's number is part of the key, so one dbt run
advances them all. A batch of the table contains one batch of every history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from tests.dbt.rawtables import EPOCH, Row

COLUMNS = (
    "history int, k1 string, k2 int, cursor int, at timestamp, payload string, tags map<string,int>"
)
KEY = ["history", "k1", "k2"]
# a number, a time, or none: then the version that arrives last is the newest
CURSORS = ("cursor", "at", None)

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Histories:
    """Batches of many histories.

    Args:
        batches: rows per batch, in order of emission.
    """

    batches: tuple[tuple[Row, ...], ...]

    @classmethod
    def drawn(cls, seed: int, histories: int, batches: int) -> Histories:
        """Draws the same rows for the same seed, of so few values that keys repeat and cursors tie.

        For even seeds, a generation starts with a batch, as in the loader, so most keys are merged
        in order. For odd seeds, each row has a generation of its own, which the loader never
        writes, so nearly every key is recomputed.
        """
        draw = Random(seed)
        generation = 1
        drawn = []
        for _ in range(batches):
            generation += draw.random() < 1 / 5
            generations = [generation] if seed % 2 == 0 else [1, 1, 1, 1, 2]
            drawn.append(
                tuple(
                    _change(draw, history, draw.choice(generations))
                    for history in range(histories)
                    for _ in range(draw.randint(0, 4))
                )
            )
        return cls(tuple(drawn))


def _change(draw: Random, history: int, generation: int) -> Row:
    cursor = draw.choice([None, 1, 2, 3])
    payload = draw.choice([None, "x", "quote ' \\ and\nline 🌊"])
    return {
        "history": history,
        "k1": draw.choice(["a", "a", "a", "b", None]),
        "k2": draw.choice([1, 1, 1, None]),
        "cursor": cursor,
        "at": None if cursor is None else EPOCH + timedelta(days=cursor),
        "payload": payload,
        "tags": {"n": cursor or 0} if payload else None,
        "_deleted": draw.random() < 1 / 3,
        "_generation": generation,
    }


def order(row: Row, cursor: str | None) -> tuple[Any, ...]:
    """Returns the sort key of a version among those of its key."""
    value = row[cursor] if cursor else None
    return (
        row.get("_place", 0),  # with several raw tables, the one listed later takes precedence
        row["_cq_generation"],
        value is not None,
        value or 0 if cursor != "at" else value or datetime.min,
        row["_cq_batch"],
        row["_cq_seq"],
    )


def latest(rows: Iterable[Row], cursor: str | None) -> dict[Key, Row]:
    """Returns the newest version per key, without deleted keys: the definition, without SQL."""
    newest = {key: versions[-1] for key, versions in _versions(rows, cursor).items()}
    return {key: row for key, row in newest.items() if not row["_cq_deleted"]}


def history(rows: Iterable[Row], cursor: str | None) -> dict[Key, Row]:
    """Returns every distinct version with its validity, by key, batch and position."""
    found: dict[Key, Row] = {}
    for key, versions in _versions(rows, cursor).items():
        valid_to = earliest = None
        for before, row in zip(reversed([None, *versions[:-1]]), reversed(versions), strict=True):
            at = row["at"] if cursor == "at" and row["at"] is not None else row["_cq_sync_time"]
            valid_from = earliest = at if earliest is None else min(at, earliest)
            if before is not None and _content(before) == _content(row):
                continue
            if not row["_cq_deleted"]:
                of_table = (row["_cq_table"],) if "_cq_table" in row else ()
                found[(*key, row["_cq_batch"], row["_cq_seq"], *of_table)] = {
                    **row,
                    "valid_from": valid_from,
                    "valid_to": valid_to,
                    "is_current": valid_to is None,
                }
            valid_to = valid_from
    return found


def by_key(rows: Iterable[Row], *more: str) -> dict[Key, Row]:
    """Returns rows by their key and further columns; each may occur once."""
    keyed: dict[Key, Row] = {}
    for row in rows:
        key = tuple(row[name] for name in (*KEY, *more))
        assert key not in keyed, f"two rows of {key}"
        keyed[key] = row
    return keyed


def _versions(rows: Iterable[Row], cursor: str | None) -> dict[Key, list[Row]]:
    keys: dict[Key, list[Row]] = {}
    for row in rows:
        keys.setdefault(tuple(row[name] for name in KEY), []).append(row)
    return {
        key: sorted(versions, key=lambda row: order(row, cursor)) for key, versions in keys.items()
    }


def _content(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (True,) if row["_cq_deleted"] else (False, row["_cq_row_hash"])

"""The invariants, as pure functions of the contents of source and lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from loader.rows.version_order import version_order

Key = tuple[Any, ...]


class Violation(AssertionError):
    """A promise was broken. The message says which one, where, and what was found."""


class Version(NamedTuple):
    """A row of a raw table."""

    key: Key
    note: str | None
    deleted: bool
    generation: int
    cursor: Any
    batch: int
    seq: int
    hash: int

    @property
    def order(self) -> tuple[Any, ...]:
        """A sort key: the highest version of a key is its newest version."""
        return version_order(self.generation, self.cursor, self.batch, self.seq)


def newest(versions: Iterable[Version]) -> dict[Key, Version]:
    """Returns each key's newest version, including tombstones."""
    found: dict[Key, Version] = {}
    for version in versions:
        if version.key not in found or version.order > found[version.key].order:
            found[version.key] = version
    return found


def same_as_source(
    table: str, source: Mapping[Key, str], versions: Iterable[Version], excused: Iterable[Key]
) -> None:
    """Checks that the newest versions are the source's rows: none lost, stale or left over.

    Args:
        excused: keys whose last write no cursor can reveal.
    """
    living = {key: v.note for key, v in newest(versions).items() if not v.deleted}
    passed_over = set(excused)
    lost = [k for k in source if k not in living and k not in passed_over]
    left = [k for k in living if k not in source and k not in passed_over]
    stale = [
        (k, source[k], living[k])
        for k in source
        if k in living and living[k] != source[k] and k not in passed_over
    ]
    if lost or left or stale:
        raise Violation(f"{table}: lost {lost[:5]}, stale {stale[:5]}, left over {left[:5]}")


def nothing_seen_is_missing(
    table: str, seen: Mapping[Key, str], versions: Iterable[Version], excused: Iterable[Key]
) -> None:
    """Checks that versions committed before a sync began are in the raw table after it."""
    there = {(v.key, v.note) for v in versions}
    passed_over = set(excused)
    missing = [(k, n) for k, n in seen.items() if (k, n) not in there and k not in passed_over]
    if missing:
        raise Violation(f"{table}: committed before the sync, not in raw after it: {missing[:5]}")


def nothing_twice(table: str, versions: Iterable[Version]) -> None:
    """Checks that no version was appended twice in one generation. Each write's note is unique."""
    counted = Counter(
        (v.key, v.hash, v.generation) for v in versions if not v.deleted and v.note is not None
    )
    doubled = [key for key, count in counted.items() if count > 1]
    if doubled:
        raise Violation(f"{table}: appended twice in one generation: {doubled[:5]}")


def whole_batches(table: str, versions: Iterable[Version], compacted: bool) -> None:
    """Checks that batches are numbered 1, 2, 3, and that positions in a batch are unique."""
    rows = list(versions)
    batches = {v.batch for v in rows}
    if not compacted and batches != set(range(1, len(batches) + 1)):
        raise Violation(f"{table}: batches {sorted(batches)}")
    places = Counter((v.batch, v.seq) for v in rows)
    if any(count > 1 for count in places.values()):
        raise Violation(f"{table}: a position in a batch is taken twice")


def same_rows(what: str, found: Iterable[Any], wanted: Iterable[Any]) -> None:
    """Checks that two tables have the same rows."""
    there, expected = Counter(found), Counter(wanted)
    if there != expected:
        missing, more = expected - there, there - expected
        raise Violation(f"{what}: lacks {list(missing)[:5]}, has beside {list(more)[:5]}")

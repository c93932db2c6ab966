"""Compares the rows that a tool has with the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.writers import TABLE
from tests.services import Database, MariaDb


class Version(NamedTuple):
    """A version of a row.

    Attributes:
        key: the row's key.
        payload: all columns except key and cursor.
        cursor: microseconds since 1970; None in a tombstone, whose payload is all null.
        order: the version with the highest order is a key's newest version. Each tool defines it.
    """

    key: int
    payload: tuple[Any, ...]
    cursor: int | None
    order: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Stale:
    """A row whose newest version in the tool differs from the source.

    Attributes:
        has: the newest version according to the tool; None if the tool has no version.
        held: whether the tool has the source's version, but not as the newest one.
    """

    source: Version
    has: Version | None
    held: bool = False

    @property
    def kind(self) -> str:
        """The clock and the step that last wrote the row."""
        return str(self.source.payload[-1]).rsplit(" ", 1)[0]

    @property
    def by_database(self) -> bool:
        """Whether the last write set the row's cursor to the database's `now()`."""
        clock, _, does = self.kind.partition(", ")
        return clock == "database" and does not in ("import", "unmoved")


@dataclass(frozen=True)
class Verdict:
    """How the rows of a tool differ from the source.

    Attributes:
        rows: the number of rows in the source.
        lost: rows of which the tool has no version.
        stale: rows whose newest version in the tool differs from the source.
        doubled: the number of versions appended again, with the same key, payload and cursor. If
            all commits are known, the number of versions appended more often than committed.
        phantoms: keys that the tool has but the source does not.
        missed: committed versions that the tool never had; None if commits were not recorded.
    """

    rows: int
    lost: tuple[Stale, ...]
    stale: tuple[Stale, ...]
    doubled: int
    phantoms: int
    missed: int | None = None

    @property
    def right(self) -> bool:
        """Whether the tool's newest versions match the source, and no version was missed."""
        if self.missed is not None and (self.missed or self.doubled):
            return False
        return not (self.lost or self.stale or self.phantoms)

    @property
    def lacking(self) -> tuple[Stale, ...]:
        """All rows that differ from the source."""
        return (*self.lost, *self.stale)

    @property
    def kinds(self) -> Counter[str]:
        """The number of these rows of each kind."""
        return Counter(stale.kind for stale in self.lacking)

    @property
    def outranked(self) -> int:
        """The number of stale rows whose current version was read, but has a lower cursor."""
        return sum(stale.held for stale in self.stale)


def source_rows(database: Database) -> list[Version]:
    """Returns the source's rows."""
    micros = (
        "cast(unix_timestamp(updated_at) * 1000000 as signed)"
        if isinstance(database.server, MariaDb)
        else "(extract(epoch from updated_at) * 1000000)::bigint"
    )
    rows = database.query(f"select id, amount, note, {micros} from {TABLE}")
    return [Version(key, (amount, note), cursor) for key, amount, note, cursor in rows]


def judge(
    source: Iterable[Version],
    versions: Iterable[Version],
    committed: Iterable[Version] | None = None,
) -> Verdict:
    """Compares the newest version of each key with the source's row.

    Args:
        committed: every committed version, if the tool should have all of them.
    """
    newest: dict[int, Version] = {}
    appended: Counter[tuple[Any, ...]] = Counter()
    for version in versions:
        appended[version[:3]] += 1
        if version.key not in newest or version.order > newest[version.key].order:
            newest[version.key] = version
    newest = {key: has for key, has in newest.items() if set(has.payload) != {None}}
    doubled, missed = sum(appended.values()) - len(appended), None
    if committed is not None:
        there = Counter(version[:3] for version in committed)
        doubled, missed = (appended - there).total(), (there - appended).total()
    lost, stale, rows = [], [], 0
    for row in source:
        rows += 1
        has = newest.pop(row.key, None)
        if has is None:
            lost.append(Stale(row, None))
        elif has[:3] != row[:3]:
            stale.append(Stale(row, has, held=row[:3] in appended))
    return Verdict(
        rows,
        tuple(lost),
        tuple(stale),
        doubled=doubled,
        phantoms=len(newest),
        missed=missed,
    )

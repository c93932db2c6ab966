"""Positions in PostgreSQL's log, and the mark that a table's sync stores.

A position is exclusive: all transactions whose commit record begins below it are in raw. So the
end of the last transaction that was read is a position, and so is the end of the log if nothing
came after that transaction.

A first load sees the database in a snapshot: changes that the snapshot has seen are not read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

Key = tuple[str, ...]
"""A key's values, as PostgreSQL writes them."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_HALF = 2**31
_EPOCH = 2**32


def parse_position(text: str) -> int:
    """Reads a position as PostgreSQL writes it, `16/B374D848`.

    Raises:
        ValueError: if it is not one.
    """
    found = _LSN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a position in the log")
    return int(found[1], 16) << 32 | int(found[2], 16)


def format_position(position: int) -> str:
    """Writes a position as PostgreSQL does."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@dataclass(frozen=True)
class VisibleTransactions:
    """The transactions that a snapshot sees (`pg_current_snapshot()`).

    Attributes:
        xmin: all transactions before this one had ended.
        xmax: this one and later ones had not begun.
        open: transactions in between that had not ended.
        until: a position that is above the commits of all transactions that the snapshot sees.
    """

    xmin: int
    xmax: int
    open: tuple[int, ...]
    until: int

    @classmethod
    def parse(cls, text: str, until: int) -> VisibleTransactions:
        """Reads the text of a `pg_snapshot`, `10:20:12,14`."""
        low, high, listed = text.split(":")
        return cls(int(low), int(high), tuple(int(i) for i in listed.split(",") if i), until)

    @property
    def text(self) -> str:
        """The snapshot as PostgreSQL writes it."""
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.open))}"

    def can_see(self, transaction: int) -> bool:
        """Returns whether the snapshot sees a transaction that has committed.

        Args:
            transaction: its id in the log, of 32 bits: of those that match, the one nearest to
                the snapshot is meant.
        """
        distance = (transaction - self.xmax + _HALF) % _EPOCH - _HALF
        whole = self.xmax + distance
        return whole < self.xmin or (whole < self.xmax and whole not in self.open)


@dataclass(frozen=True)
class Mark:
    """The mark that a table's sync stores for the next one.

    Attributes:
        position: how far the table was read.
        slot: the replication slot that keeps the log from there on.
        system: the cluster's identity and timeline; empty if it is hidden.
        seen: what the first load's snapshot saw: transactions that it saw are not read again; None
            once the table was read beyond them.
        loaded: the last key of the first load's chunks that are in raw; None if it is complete.
        earlier: of a first load that was broken off: the last key of each run's chunks, and what
            that run's snapshot saw, the last run's excepted.
        key: the columns of the key that both are ranges of; empty if there are no chunks.
        columns: the table's columns at that time, as `list_by_number` returns them.
        partitions: the ids of its partitions at that time; empty if it was not partitioned.
        catalog: its other definitions in the catalog at that time (`read_fingerprints`).
        published: how it was published at that time (`SourceSlot.read_publication`).
    """

    position: int
    slot: str
    system: str = ""
    seen: VisibleTransactions | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    partitions: frozenset[str] = frozenset()
    published: str = ""
    loaded: tuple[str, ...] | None = None
    earlier: tuple[tuple[tuple[str, ...], VisibleTransactions], ...] = ()
    catalog: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the form that the state stores."""
        found: dict[str, Any] = {
            "columns": dict(self.columns),
            "log_position": format_position(self.position),
            "slot": self.slot,
            "system": self.system,
        }
        if self.published:
            found["published"] = self.published
        if self.partitions:
            found["partitions"] = sorted(self.partitions, key=int)
        if self.catalog:
            found["catalog"] = dict(self.catalog)
        if self.seen is not None:
            found["snapshot"] = self.seen.text
            found["snapshot_until"] = format_position(self.seen.until)
        if self.key:
            found["key"] = list(self.key)
        if self.loaded is not None:
            found["loaded_up_to"] = list(self.loaded)
        if self.earlier:
            found["earlier_snapshots"] = [
                {
                    "up_to": list(key),
                    "snapshot": seen.text,
                    "snapshot_until": format_position(seen.until),
                }
                for key, seen in self.earlier
            ]
        return found

    @classmethod
    def from_dict(cls, mark: Mapping[str, Any] | None) -> Mark | None:
        """Reads the form that the state stores; None if the last sync was not by the log."""
        if mark is None or "log_position" not in mark:
            return None
        loaded = mark.get("loaded_up_to")
        return cls(
            parse_position(str(mark["log_position"])),
            str(mark.get("slot") or ""),
            str(mark.get("system") or ""),
            _parse_seen(mark) if mark.get("snapshot") else None,
            {str(k): str(v) for k, v in (mark.get("columns") or {}).items()},
            frozenset(map(str, mark.get("partitions") or ())),
            str(mark.get("published") or ""),
            None if loaded is None else tuple(map(str, loaded)),
            tuple(
                (tuple(map(str, one["up_to"])), _parse_seen(one))
                for one in mark.get("earlier_snapshots") or ()
            ),
            {str(k): str(v) for k, v in (mark.get("catalog") or {}).items()},
            tuple(map(str, mark.get("key") or ())),
        )

    def move_to(
        self, position: int, columns: Mapping[str, str], partitions: Iterable[str] = ()
    ) -> Mark:
        """Returns the mark after the log was read up to a position."""
        position = max(position, self.position)
        sighted = self.seen is not None and position < self.seen.until
        return replace(
            self,
            position=position,
            seen=self.seen if sighted else None,
            earlier=self.earlier if sighted else (),
            key=self.key if sighted else (),
            columns=columns,
            partitions=frozenset(partitions),
        )

    def add_chunk(self, loaded: tuple[str, ...] | None, seen: VisibleTransactions) -> Mark:
        """Returns the mark after another chunk of the first load.

        Args:
            loaded: its last key; None if nothing follows it.
            seen: the transactions that its snapshot saw.
        """
        earlier = self.earlier
        if self.seen is not None and self.loaded is not None and self.seen.text != seen.text:
            earlier = (*earlier, (self.loaded, self.seen))
        return replace(self, loaded=loaded, seen=seen, earlier=earlier)


def _parse_seen(stored: Mapping[str, Any]) -> VisibleTransactions:
    return VisibleTransactions.parse(
        str(stored["snapshot"]), parse_position(str(stored["snapshot_until"]))
    )


def is_visible(seen: VisibleTransactions, transaction: Column) -> Column:
    """Returns :meth:`VisibleTransactions.can_see` as a Spark column."""
    distance = f.pmod(transaction - f.lit(seen.xmax) + f.lit(_HALF), f.lit(_EPOCH)) - f.lit(_HALF)
    whole = f.lit(seen.xmax) + distance
    ended = whole < f.lit(seen.xmax)
    if seen.open:
        ended = ended & ~whole.isin(*seen.open)
    return (whole < f.lit(seen.xmin)) | ended


def is_visible_to_chunk(
    earlier: Sequence[tuple[Key, VisibleTransactions]],
    newest: VisibleTransactions | None,
    transaction: Column,
    key: Mapping[str, DataType],
    row: Column,
) -> Column:
    """Returns whether the chunk that a row's key lies in has seen its transaction.

    Args:
        earlier: the last keys of the chunks of runs that were broken off, ascending, and the
            snapshots that these runs read.
        newest: the snapshot of the chunks above; None if all is later than it.
        key: the key's columns and their types.
        row: a struct that has them.
    """
    values = f.struct(*(row.getField(name) for name in key))
    found = f.lit(False) if newest is None else is_visible(newest, transaction)
    for upto, seen in reversed(earlier):
        texts = zip(upto, key.items(), strict=True)
        last = f.struct(*(f.lit(text).cast(type_).alias(name) for text, (name, type_) in texts))
        found = f.when(values <= last, is_visible(seen, transaction)).otherwise(found)
    return found

"""Positions in PostgreSQL's log, and the checkpoint (`mark`) that each sync stores in the state.

Once a table has been read up to a position, the raw table contains every transaction whose commit
record starts below this position. A first load reads a database snapshot. Later syncs skip changes
from transactions that are visible in this snapshot.
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
"""The values of a key, formatted by PostgreSQL."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_HALF_OF_XIDS = 2**31
_EPOCH = 2**32


def parse_position(text: str) -> int:
    """Parses a position in PostgreSQL's format, such as `16/B374D848`.

    Raises:
        ValueError: if the string is not a position.
    """
    match = _LSN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a position in the log")
    return int(match[1], 16) << 32 | int(match[2], 16)


def format_position(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@dataclass(frozen=True)
class VisibleTransactions:
    """The transactions that are visible in a snapshot (`pg_current_snapshot()`).

    Attributes:
        xmin: when the snapshot was taken, all transactions with a lower id had ended.
        xmax: when the snapshot was taken, no transaction with this id or a higher id had begun.
        open: the ids between `xmin` and `xmax` of the transactions that had not ended when the
            snapshot was taken.
        until: a position above the commits of all visible transactions.
    """

    xmin: int
    xmax: int
    open: tuple[int, ...]
    until: int

    @classmethod
    def parse(cls, text: str, until: int) -> VisibleTransactions:
        """Parses the text of a `pg_snapshot`, such as `10:20:12,14`."""
        low, high, listed = text.split(":")
        return cls(int(low), int(high), tuple(int(i) for i in listed.split(",") if i), until)

    @property
    def text(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.open))}"


@dataclass(frozen=True)
class Mark:
    """The checkpoint that a sync stores for the next sync of the table.

    Attributes:
        position: the position up to which the table was read.
        slot: the replication slot that retains the log from this position on.
        system: the cluster's identity and timeline; empty if the role may not read them.
        snapshot: the snapshot of the first load. None once the log has been read beyond this
            snapshot.
        loaded_up_to: the last published key of an incomplete first load; None if the first load is
            complete.
        earlier_chunks: the last key and the snapshot of each interrupted run of the first load.
        key: the key columns at the time of the first load; empty if the load was not divided into
            chunks.
        columns: the loaded columns (`list_by_number`).
        excluded: the columns that the spec excludes (`list_by_number`).
        partitions: the ids of the table's partitions; empty if the table is not partitioned.
        catalog: fingerprints of the table's definition in the catalog (`read_fingerprints`).
        published: a fingerprint of the table's publication (`SourceSlot.read_publication`).
    """

    position: int
    slot: str
    system: str = ""
    snapshot: VisibleTransactions | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    partitions: frozenset[str] = frozenset()
    published: str = ""
    loaded_up_to: tuple[str, ...] | None = None
    earlier_chunks: tuple[tuple[tuple[str, ...], VisibleTransactions], ...] = ()
    catalog: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        stored: dict[str, Any] = {
            "columns": dict(self.columns),
            "log_position": format_position(self.position),
            "slot": self.slot,
            "system": self.system,
        }
        if self.excluded:
            stored["excluded"] = dict(self.excluded)
        if self.published:
            stored["published"] = self.published
        if self.partitions:
            stored["partitions"] = sorted(self.partitions, key=int)
        if self.catalog:
            stored["catalog"] = dict(self.catalog)
        if self.snapshot is not None:
            stored["snapshot"] = self.snapshot.text
            stored["snapshot_until"] = format_position(self.snapshot.until)
        if self.key:
            stored["key"] = list(self.key)
        if self.loaded_up_to is not None:
            stored["loaded_up_to"] = list(self.loaded_up_to)
        if self.earlier_chunks:
            stored["earlier_snapshots"] = [
                {
                    "up_to": list(key),
                    "snapshot": snapshot.text,
                    "snapshot_until": format_position(snapshot.until),
                }
                for key, snapshot in self.earlier_chunks
            ]
        return stored

    @classmethod
    def from_dict(cls, mark: Mapping[str, Any] | None) -> Mark | None:
        """Parses the stored JSON object. Returns None if the last sync did not read the log."""
        if mark is None or "log_position" not in mark:
            return None
        loaded_up_to = mark.get("loaded_up_to")
        return cls(
            parse_position(str(mark["log_position"])),
            str(mark.get("slot") or ""),
            str(mark.get("system") or ""),
            _parse_snapshot(mark) if mark.get("snapshot") else None,
            {str(k): str(v) for k, v in (mark.get("columns") or {}).items()},
            frozenset(map(str, mark.get("partitions") or ())),
            str(mark.get("published") or ""),
            None if loaded_up_to is None else tuple(map(str, loaded_up_to)),
            tuple(
                (tuple(map(str, chunk["up_to"])), _parse_snapshot(chunk))
                for chunk in mark.get("earlier_snapshots") or ()
            ),
            {str(k): str(v) for k, v in (mark.get("catalog") or {}).items()},
            tuple(map(str, mark.get("key") or ())),
            {str(k): str(v) for k, v in (mark.get("excluded") or {}).items()},
        )

    def move_to(
        self, position: int, columns: Mapping[str, str], partitions: Iterable[str] = ()
    ) -> Mark:
        """Returns the checkpoint to store once the log has been read up to `position`."""
        position = max(position, self.position)
        overlaps_load = self.snapshot is not None and position < self.snapshot.until
        return replace(
            self,
            position=position,
            snapshot=self.snapshot if overlaps_load else None,
            earlier_chunks=self.earlier_chunks if overlaps_load else (),
            key=self.key if overlaps_load else (),
            columns=columns,
            partitions=frozenset(partitions),
        )

    def add_chunk(self, last_key: tuple[str, ...] | None, snapshot: VisibleTransactions) -> Mark:
        """Returns the checkpoint to store after another chunk of the first load.

        Args:
            last_key: the chunk's last key, or None if this is the last chunk.
        """
        earlier_chunks = self.earlier_chunks
        if (
            self.snapshot is not None
            and self.loaded_up_to is not None
            and self.snapshot.text != snapshot.text
        ):
            earlier_chunks = (*earlier_chunks, (self.loaded_up_to, self.snapshot))
        return replace(
            self, loaded_up_to=last_key, snapshot=snapshot, earlier_chunks=earlier_chunks
        )


def _parse_snapshot(stored: Mapping[str, Any]) -> VisibleTransactions:
    return VisibleTransactions.parse(
        str(stored["snapshot"]), parse_position(str(stored["snapshot_until"]))
    )


def is_visible(snapshot: VisibleTransactions, transaction: Column) -> Column:
    """Returns whether a committed transaction is visible in a snapshot.

    Args:
        transaction: the lower 32 bits of the transaction's id, because the log contains no other
            bits. The full id is assumed to be the one nearest to the snapshot.
    """
    distance = f.pmod(
        transaction - f.lit(snapshot.xmax) + f.lit(_HALF_OF_XIDS), f.lit(_EPOCH)
    ) - f.lit(_HALF_OF_XIDS)
    full_id = f.lit(snapshot.xmax) + distance
    ended = full_id < f.lit(snapshot.xmax)
    if snapshot.open:
        ended = ended & ~full_id.isin(*snapshot.open)
    return (full_id < f.lit(snapshot.xmin)) | ended


def is_visible_to_chunk(
    earlier_chunks: Sequence[tuple[Key, VisibleTransactions]],
    newest_snapshot: VisibleTransactions | None,
    transaction: Column,
    key: Mapping[str, DataType],
    row: Column,
) -> Column:
    """Returns whether a change was visible in the snapshot of the chunk that contains its key.

    Args:
            earlier_chunks: the last key and the snapshot of each interrupted run, sorted by key.
            newest_snapshot: the snapshot for all keys above these chunks. If None, no change to
                these keys is visible.
            row: a struct that contains the key's columns.
    """
    values = f.struct(*(row.getField(name) for name in key))
    visible = f.lit(False) if newest_snapshot is None else is_visible(newest_snapshot, transaction)
    for last_key, snapshot in reversed(earlier_chunks):
        texts = zip(last_key, key.items(), strict=True)
        limit = f.struct(
            *(f.lit(text).cast(data_type).alias(name) for text, (name, data_type) in texts)
        )
        visible = f.when(values <= limit, is_visible(snapshot, transaction)).otherwise(visible)
    return visible

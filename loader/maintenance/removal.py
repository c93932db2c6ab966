"""Taking superseded versions out of a raw table, so that every row stays accounted for.

What compaction has removed stands in the raw table's properties: up to which batch
(``strandline.compacted_to``, below which nothing can be shown as it was), and how many rows
(``strandline.compacted``). So ``batches_accounted`` still finds every row of the ledger: in raw,
or among the removed. Both are written before the rows go, the rows as ``removing``: a run that
dies in between leaves an account that the next compaction settles by the table's own history.

The macro `removed_rows` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loader.errors import TableError
from loader.lake.commits import COMPACTED_TO
from loader.lake.lake import Lake
from loader.maintenance.retention import Superseded
from loader.rows.order import BATCH, SEQUENCE

COMPACTED = "strandline.compacted"


@dataclass(frozen=True)
class Removed:
    """What compaction took out of a raw table so far.

    Attributes:
        to: the batch up to which versions may be missing; 0 where none are.
        rows: how many were removed.
        removing: how many were about to be when this was written; 0 once they are among `rows`.
        since: the table's snapshot at that time.
        was: what `to` is if none of them went.
    """

    to: int = 0
    rows: int = 0
    removing: int = 0
    since: str | None = None
    was: int | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Removed:
        """As a raw table's properties tell it.

        Raises:
            ValueError: where they are not ours.
        """
        text = properties.get(COMPACTED)
        if not text:
            return cls(to=int(properties.get(COMPACTED_TO) or 0))
        said: Any = json.loads(text)
        removing = said.get("removing", 0)
        return cls(said["to"], said["rows"], removing, said.get("since"), said.get("was"))

    def properties(self) -> dict[str, str]:
        """As a raw table's properties keep it."""
        said: dict[str, Any] = {"rows": self.rows, "to": self.to}
        if self.removing:
            said |= {"removing": self.removing, "since": self.since, "was": self.was}
        return {COMPACTED: json.dumps(said, sort_keys=True), COMPACTED_TO: str(self.to)}


def count(lake: Lake, gone: Superseded) -> int:
    """How many rows may go."""
    if gone.sql is None:
        return 0
    [row] = lake.spark.sql(f"select count(*) as n from ({gone.sql}) as superseded").collect()
    return int(row["n"])


def remove(lake: Lake, table: str, gone: Superseded, rows: int) -> int:
    """Removes superseded rows, in one commit; returns how many. The caller holds the table.

    Args:
        rows: how many they are, by :func:`count`.

    Raises:
        TableError: where the table's account of earlier compactions cannot be read.
    """
    before = settled(lake, table)
    if not rows:
        return 0
    to = max(before.to, gone.batch)
    # as text: JSON's numbers have fewer digits than a snapshot's id
    current = str(lake.handle(table).currentSnapshot().snapshotId())
    # Merge-on-read: the rows are marked here and leave their files when these are rewritten,
    # sorted, right after; copy-on-write would write them twice.
    intended = Removed(to, before.rows, rows, current, before.to)
    mode = {"write.delete.mode": "merge-on-read"}
    lake.set_properties(table, {**mode, **intended.properties()})
    try:
        lake.spark.sql(
            f"delete from {lake.name(table)} where {BATCH} <= {gone.batch} "
            f"and ({BATCH}, {SEQUENCE}) in ({gone.sql})"
        )
    except Exception:
        # Nothing went, unless the commit came through and only its answer did not. If the table
        # cannot be reached now, the next compaction closes the account.
        with suppress(Exception):
            settled(lake, table)
        raise
    lake.set_properties(table, Removed(to, before.rows + rows).properties())
    return rows


def settled(lake: Lake, table: str) -> Removed:
    """What was removed so far; where a run died while it removed rows, the account is closed."""
    handle = lake.handle(table)
    try:
        found = Removed.of(dict(handle.properties()))
    except (ValueError, KeyError, TypeError):
        raise TableError(
            f"its property {COMPACTED} was not written by this loader",
            where=f"table {table}",
            remedy=f"Nothing was removed. Unset the properties {COMPACTED} and {COMPACTED_TO}: "
            "then `batches_accounted` tells which rows are missing",
        ) from None
    if not found.removing:
        return found
    if _happened(handle, found):
        closed = Removed(found.to, found.rows + found.removing)
    else:  # every batch is whole: `as_of` may be asked for all of them again
        closed = Removed(found.to if found.was is None else found.was, found.rows)
    lake.set_properties(table, closed.properties())
    return closed


def _happened(handle: Any, found: Removed) -> bool:
    """Whether rows were removed after the snapshot at which they were about to be."""
    snapshot = handle.currentSnapshot()
    while snapshot is not None and str(snapshot.snapshotId()) != found.since:
        if snapshot.operation() in ("delete", "overwrite"):
            return True
        parent = snapshot.parentId()
        snapshot = handle.snapshot(parent) if parent is not None else None
    return False

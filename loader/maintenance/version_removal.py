"""Removes superseded versions from a raw table, so that every row stays accounted for.

The raw table's properties record what compaction has removed: up to which batch
(``strandline.compacted_to``; the table as of an earlier batch can no longer be shown), and how many
rows (``strandline.compacted``). So ``batches_accounted`` still finds every row of the ledger: in
raw, or among the removed. Both are written before the rows go, the rows as ``removing``: if a run
dies in between, the next compaction settles the account by the table's own history.

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
from loader.maintenance.retention import SupersededVersions
from loader.rows.version_order import BATCH, SEQUENCE
from loader.spark.spark_version import can_rewrite_position_deletes

COMPACTED = "strandline.compacted"


@dataclass(frozen=True)
class RemovalAccount:
    """The account of rows that compaction has removed from a raw table so far.

    Attributes:
        to: the batch up to which versions may be missing; 0 if none are.
        rows: how many were removed.
        removing: how many rows a compaction was about to remove; 0 once `rows` includes them.
        since: the table's Iceberg snapshot at that time.
        was: the value for `to` if none of them were removed.
    """

    to: int = 0
    rows: int = 0
    removing: int = 0
    since: str | None = None
    was: int | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> RemovalAccount:
        """Reads it from a raw table's properties.

        Raises:
            ValueError: if the loader did not write them.
        """
        text = properties.get(COMPACTED)
        if not text:
            return cls(to=int(properties.get(COMPACTED_TO) or 0))
        said: Any = json.loads(text)
        removing = said.get("removing", 0)
        return cls(said["to"], said["rows"], removing, said.get("since"), said.get("was"))

    def properties(self) -> dict[str, str]:
        """Returns it as a raw table's properties."""
        said: dict[str, Any] = {"rows": self.rows, "to": self.to}
        if self.removing:
            said |= {"removing": self.removing, "since": self.since, "was": self.was}
        return {COMPACTED: json.dumps(said, sort_keys=True), COMPACTED_TO: str(self.to)}


def count(lake: Lake, gone: SupersededVersions) -> int:
    """Counts the rows that may go."""
    if gone.sql is None:
        return 0
    [row] = lake.spark.sql(f"select count(*) as n from ({gone.sql}) as superseded").collect()
    return int(row["n"])


def remove(lake: Lake, table: str, gone: SupersededVersions, rows: int) -> int:
    """Removes superseded rows, in one commit; returns how many. The caller holds the lock.

    Args:
        rows: how many there are, by :func:`count`.

    Raises:
        TableError: if the table's account of earlier compactions cannot be read.
    """
    before = settle(lake, table)
    if not rows:
        return 0
    to = max(before.to, gone.batch)
    # as text: JSON's numbers have fewer digits than a snapshot's id
    current = str(lake.handle(table).currentSnapshot().snapshotId())
    # Merge-on-read only marks the rows here. The rewrite that follows sorts the files and drops
    # the rows; copy-on-write would write the files twice.
    marks = can_rewrite_position_deletes(lake.frame(table).schema)
    mode = {"write.delete.mode": "merge-on-read" if marks else "copy-on-write"}
    intended = RemovalAccount(to, before.rows, rows, current, before.to)
    lake.set_properties(table, {**mode, **intended.properties()})
    try:
        lake.spark.sql(
            f"delete from {lake.name(table)} where {BATCH} <= {gone.batch} "
            f"and ({BATCH}, {SEQUENCE}) in ({gone.sql})"
        )
    except Exception:
        # Nothing was removed, unless the commit succeeded and only its response was lost. If the
        # table cannot be reached now, the next compaction closes the account.
        with suppress(Exception):
            settle(lake, table)
        raise
    lake.set_properties(table, RemovalAccount(to, before.rows + rows).properties())
    return rows


def settle(lake: Lake, table: str) -> RemovalAccount:
    """Returns what was removed so far; closes the account first if a run died while removing."""
    handle = lake.handle(table)
    try:
        found = RemovalAccount.of(lake.properties(table))
    except (ValueError, KeyError, TypeError):
        raise TableError(
            f"its property {COMPACTED} was not written by this loader",
            where=f"table {table}",
            remedy=f"Nothing was removed. Unset the properties {COMPACTED} and {COMPACTED_TO}: "
            "then `batches_accounted` shows which rows are missing",
        ) from None
    if not found.removing:
        return found
    if _has_happened(handle, found):
        closed = RemovalAccount(found.to, found.rows + found.removing)
    else:  # nothing went: `as_of` works again from the earlier limit on
        closed = RemovalAccount(found.to if found.was is None else found.was, found.rows)
    lake.set_properties(table, closed.properties())
    return closed


def _has_happened(handle: Any, found: RemovalAccount) -> bool:
    """Whether rows were removed since the Iceberg snapshot that the account names."""
    snapshot = handle.currentSnapshot()
    while snapshot is not None and str(snapshot.snapshotId()) != found.since:
        if snapshot.operation() in ("delete", "overwrite"):
            return True
        parent = snapshot.parentId()
        snapshot = handle.snapshot(parent) if parent is not None else None
    return False

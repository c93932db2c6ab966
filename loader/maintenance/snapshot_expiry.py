"""Expires Iceberg snapshots that may go, and deletes files that no snapshot names.

State and ledger are recovered from the newest batch's commit, but its Iceberg snapshot also keeps
every file that was replaced since. So before a raw table's commits expire, that commit's facts are
written into a property (:func:`loader.lake.commits.keep_newest`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.lake.lake import Lake
from loader.lake.ledger import now
from loader.maintenance.table_stats import TableStats

_AT_ONCE = 500


@dataclass(frozen=True)
class Version:
    """An Iceberg snapshot; `committed_ms` is its time in milliseconds since 1970."""

    id: int
    parent: int | None
    committed_ms: int


def expirable(
    versions: Sequence[Version], main: int | None, others: Sequence[int], before_ms: int
) -> list[int]:
    """Returns the snapshots that may go, oldest first: neither the current one nor named ones.

    Args:
        main: the current snapshot.
        others: the heads of all tags and other branches; their ancestors stay too.
        before_ms: younger ones stay, staged ones too: a batch may be in flight.
    """
    by_id = {one.id: one for one in versions}
    kept = {main}
    for head in others:
        line: int | None = head
        while line is not None and line in by_id:
            kept.add(line)
            line = by_id[line].parent
    gone = [one for one in versions if one.id not in kept and one.committed_ms < before_ms]
    return [one.id for one in sorted(gone, key=lambda one: one.committed_ms)]


def list_expirable(lake: Lake, table: str, before_ms: int) -> list[int]:
    """Returns the snapshots of a table that may go now."""
    handle = lake.handle(table)
    versions = []
    for one in handle.snapshots():
        parent = one.parentId()
        versions.append(
            Version(
                int(one.snapshotId()),
                int(parent) if parent is not None else None,
                int(one.timestampMillis()),
            )
        )
    refs: Mapping[str, int] = {
        str(name): int(handle.refs().get(name).snapshotId()) for name in handle.refs()
    }
    others = [head for name, head in refs.items() if name != "main"]
    return expirable(versions, refs.get("main"), others, before_ms)


def expire(lake: Lake, table: str, before_ms: int) -> int:
    """Expires snapshots, and deletes files that only they refer to; returns how many snapshots."""
    gone = list_expirable(lake, table, before_ms)
    for first in range(0, len(gone), _AT_ONCE):
        # None by age: only those listed here.
        expiry = lake.handle(table).expireSnapshots().expireOlderThan(0)
        for id in gone[first : first + _AT_ONCE]:
            expiry = expiry.expireSnapshotId(id)
        expiry.commit()
    return len(gone)


AGE = dt.timedelta(days=1)
"""How old a file must be: more than a store's clock and this machine's may differ."""


def sweep(lake: Lake, table: str, found: TableStats) -> int:
    """Deletes files that killed runs left in a table's folder; returns how many.

    Args:
        found: the table's current footprint.
    """
    if not found.strays:
        return 0
    jvm: Any = lake.spark._jvm
    action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(lake.spark._jsparkSession)
    before = int((now() - AGE).timestamp() * 1000)
    done = action.deleteOrphanFiles(lake.handle(table)).olderThan(before).execute()
    return sum(1 for _ in done.orphanFileLocations())


def describe_strays(left: int, deleted: int) -> str:
    """Returns a note about such files; empty if there are none.

    Args:
        left: how many are still there.
        deleted: how many were deleted.
    """
    parts = []
    if deleted:
        parts.append(f"{_files(deleted)} of killed runs deleted")
    if left:
        parts.append(f"{_files(left)} that no batch refers to, deleted once a day old")
    return ", ".join(parts)


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"

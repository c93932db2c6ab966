"""Expires old Iceberg snapshots and deletes files that no snapshot refers to.

State and ledger are recovered from the commit of the newest batch. But the commit's Iceberg
snapshot would keep all files that have been replaced since then. So the commit's metadata is copied
to a table property (:func:`loader.lake.commits.keep_newest`), and the snapshot can expire.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.formatting import format_count
from loader.lake.lake import Lake
from loader.lake.ledger import now
from loader.maintenance.table_stats import TableStats

_PER_COMMIT = 500  # snapshots


@dataclass(frozen=True)
class IcebergSnapshot:
    """An Iceberg snapshot. `committed_ms` is its commit time in milliseconds since 1970."""

    id: int
    parent: int | None
    committed_ms: int


def select_expirable(
    snapshots: Sequence[IcebergSnapshot],
    main: int | None,
    other_heads: Sequence[int],
    before_ms: int,
) -> list[int]:
    """Returns the ids of the snapshots that can expire, oldest first.

    Args:
        main: the id of the current snapshot, which never expires.
        other_heads: the ids of the snapshots that tags and other branches refer to. These snapshots
            and their ancestors never expire.
        before_ms: the time before which snapshots can expire, in milliseconds since 1970. A later
            snapshot may be the staged snapshot of a batch that is still being loaded.
    """
    by_id = {each.id: each for each in snapshots}
    kept_ids = {main}
    for head in other_heads:
        ancestor: int | None = head
        while ancestor is not None and ancestor in by_id:
            kept_ids.add(ancestor)
            ancestor = by_id[ancestor].parent
    old = [each for each in snapshots if each.id not in kept_ids and each.committed_ms < before_ms]
    return [each.id for each in sorted(old, key=lambda each: each.committed_ms)]


def list_expirable(lake: Lake, table: str, before_ms: int) -> list[int]:
    handle = lake.handle(table)
    snapshots = []
    for each in handle.snapshots():
        parent = each.parentId()
        snapshots.append(
            IcebergSnapshot(
                int(each.snapshotId()),
                int(parent) if parent is not None else None,
                int(each.timestampMillis()),
            )
        )
    refs: Mapping[str, int] = {
        str(name): int(handle.refs().get(name).snapshotId()) for name in handle.refs()
    }
    other_heads = [head for name, head in refs.items() if name != "main"]
    return select_expirable(snapshots, refs.get("main"), other_heads, before_ms)


def expire_snapshots(lake: Lake, table: str, before_ms: int) -> int:
    """Expires snapshots, and deletes files that only they use. Returns how many were expired."""
    ids = list_expirable(lake, table, before_ms)
    for first in range(0, len(ids), _PER_COMMIT):
        # With the time 0, Iceberg expires only the listed snapshots.
        expiry = lake.handle(table).expireSnapshots().expireOlderThan(0)
        for id in ids[first : first + _PER_COMMIT]:
            expiry = expiry.expireSnapshotId(id)
        expiry.commit()
    return len(ids)


ORPHAN_AGE = dt.timedelta(days=1)
"""The minimum age of files to delete. It exceeds any difference between machines' clocks."""


def delete_orphan_files(lake: Lake, table: str, stats: TableStats) -> int:
    """Deletes old files that killed runs left in a table's folder. Returns the number of files."""
    if not stats.orphans:
        return 0
    jvm: Any = lake.spark._jvm
    action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(lake.spark._jsparkSession)
    before = int((now() - ORPHAN_AGE).timestamp() * 1000)
    result = action.deleteOrphanFiles(lake.handle(table)).olderThan(before).execute()
    return sum(1 for _ in result.orphanFileLocations())


def describe_orphans(remaining: int, deleted: int) -> str:
    """Returns a note about the remaining and the deleted orphan files, or "" if there are none."""
    parts = []
    if deleted:
        parts.append(f"{format_count(deleted, 'file')} of killed runs deleted")
    if remaining:
        files = format_count(remaining, "file")
        parts.append(f"{files} that no batch refers to, deleted once a day old")
    return ", ".join(parts)

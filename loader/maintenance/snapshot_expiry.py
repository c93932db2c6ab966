"""Expires old Iceberg snapshots, and describes files that no snapshot refers to.

State and ledger are recovered from the commit of the newest batch. But the commit's Iceberg
snapshot would keep all files that have been replaced since then. So the commit's metadata is copied
to a table property (:func:`loader.lake.commits.keep_newest`), and the snapshot can expire.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from loader.formatting import format_count
from loader.lake.lake import Lake


def count_expirable(lake: Lake, table: str, before_ms: int) -> int:
    """Returns the number of snapshots that :func:`expire_snapshots` would expire."""
    return len(_plan_expiry(lake, table, before_ms).apply())


def expire_snapshots(lake: Lake, table: str, before_ms: int) -> int:
    """Expires snapshots, and deletes files that only they use. Returns how many were expired.

    The current snapshot and the snapshots of tags and branches never expire.

    Args:
        before_ms: the time before which snapshots can expire, in milliseconds since 1970. A later
            snapshot may be the staged snapshot of a batch that is still being loaded.
    """
    expired = _plan_expiry(lake, table, before_ms).apply()
    if expired:
        # Only if an id is given, Iceberg also deletes the files that the current snapshot replaced.
        first = expired[0].snapshotId()
        _plan_expiry(lake, table, before_ms).expireSnapshotId(first).commit()
    return len(expired)


def _plan_expiry(lake: Lake, table: str, before_ms: int) -> Any:
    return lake.handle(table).expireSnapshots().expireOlderThan(before_ms).retainLast(1)


ORPHAN_AGE = dt.timedelta(days=1)
"""The minimum age of files to delete. It exceeds any difference between machines' clocks."""


def describe_orphans(remaining: int, deleted: int) -> str:
    """Returns a note about the remaining and the deleted orphan files, or "" if there are none."""
    parts = []
    if deleted:
        parts.append(f"{format_count(deleted, 'file')} of killed runs deleted")
    if remaining:
        files = format_count(remaining, "file")
        parts.append(f"{files} that no batch refers to, deleted once a day old")
    return ", ".join(parts)

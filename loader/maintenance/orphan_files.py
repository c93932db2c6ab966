"""Files that a killed run left in a table's folder, and that nothing refers to.

A run that dies while it writes leaves data files that are in no Iceberg snapshot, staged or
published. If the folder has more files than the snapshots refer to, those are searched for, and
deleted once they are older than :data:`AGE`. The caller holds the lock, so no other run should be
writing. The age protects a run that was suspended, and lost its lock: it may go on writing until it
finds out.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from loader.lake.lake import Lake
from loader.lake.ledger import now
from loader.maintenance.table_stats import TableStats

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

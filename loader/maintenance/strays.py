"""Files that a killed run left in a table's folder, and that nothing refers to.

A run that dies while it writes leaves data files that are in no snapshot, staged or published.
They are sought where there are more files than snapshots know of, and deleted once they are older
than :data:`AGE`. The caller holds the table, so no living run is writing to it; the age is for one
that was taken over while it stood still, and may write on until it finds out.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from loader.lake.lake import Lake
from loader.lake.ledger import now
from loader.maintenance.footprint import Footprint

AGE = dt.timedelta(days=1)
"""How old a file must be; more than the clocks of a store and of this machine may differ."""


def sweep(lake: Lake, table: str, found: Footprint) -> int:
    """Deletes what killed runs left of a table; returns how many files.

    Args:
        found: the table as it is.
    """
    if not found.strays:
        return 0
    jvm: Any = lake.spark._jvm
    action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(lake.spark._jsparkSession)
    before = int((now() - AGE).timestamp() * 1000)
    done = action.deleteOrphanFiles(lake.handle(table)).olderThan(before).execute()
    return sum(1 for _ in done.orphanFileLocations())


def told(left: int, deleted: int) -> str:
    """What to tell people of such files; empty where there are none.

    Args:
        left: those that are there still.
    """
    parts = []
    if deleted:
        parts.append(f"{deleted} files of killed runs deleted")
    if left:
        parts.append(f"{left} files that no batch refers to go once they are a day old")
    return ", ".join(parts)

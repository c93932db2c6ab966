"""Stages batches invisibly and then publishes them atomically (write-audit-publish).

A batch is first written as a staged Iceberg snapshot, which is invisible to readers. One metadata
commit publishes it. The batch number is the ``wap.id``. Iceberg refuses to publish a number twice,
even from another machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.commits import BATCH, STATE, SYNC, Commit, batch_of, list_ancestors, newest_commit
from loader.lake.lake import Lake
from loader.rows.version_order import BATCH as BATCH_COLUMN
from loader.rows.version_order import quote_name
from loader.spark import local_files

LATE_COMMIT = 600.0
"""A REST server may apply a commit up to this many seconds after the client lost its connection."""


def stage_batch(
    lake: Lake, table: str, rows: DataFrame, batch: int, facts: Mapping[str, Any]
) -> int:
    """Writes a batch that is invisible to readers. Returns the id of its Iceberg snapshot.

    Args:
        table: the raw table. Within :meth:`Lake.unchanging`, its handle must be up to date.
        rows: the rows, from this lake's Spark session. Columns are matched by name, and missing
            columns are null.
        facts: the ``state`` (a JSON string) and ``sync`` (a ledger row) to store in the commit.
    """
    full, wanted, existing = rows, lake.schema_of(table).names, rows.columns
    if existing != wanted:
        present = {name.lower() for name in existing}
        full = rows.selectExpr(
            *(
                quote_name(name) if name.lower() in present else f"null as {quote_name(name)}"
                for name in wanted
            )
        )
    before = int(lake.handle(table).operations().current().lastSequenceNumber())
    lake.spark.conf.set("spark.wap.id", str(batch))
    try:
        (
            full.writeTo(lake.name(table))
            .option(f"snapshot-property.{BATCH}", str(batch))
            .option(f"snapshot-property.{STATE}", facts["state"])
            .option(f"snapshot-property.{SYNC}", json.dumps(facts["sync"], default=str))
            .append()
        )
    finally:
        lake.spark.conf.unset("spark.wap.id")
    local_files.count_written_batch(lake.spark)
    return next(
        int(snapshot.snapshotId())
        for snapshot in _newest_first(lake.fresh(table))
        if snapshot.summary().get("wap.id") == str(batch) and snapshot.sequenceNumber() > before
    )


def count_staged_rows(lake: Lake, table: str, snapshot_id: int) -> int:
    snapshot = lake.handle(table).snapshot(snapshot_id)
    return int(snapshot.summary().get("added-records") or 0)


def read_staged(lake: Lake, table: str, snapshot_id: int, batch: int) -> DataFrame:
    return read_snapshot(lake, table, snapshot_id).where(f.col(BATCH_COLUMN) == batch)


def read_snapshot(lake: Lake, table: str, snapshot_id: int) -> DataFrame:
    """Returns the rows of a snapshot. Spark 3.5 ignores the reader's option `versionAsOf`."""
    return lake.spark.sql(f"select * from {lake.name(table)} version as of {snapshot_id}")


def publish_batch(
    lake: Lake, table: str, snapshot_id: int, properties: Mapping[str, str] | None = None
) -> Commit:
    """Makes a staged batch visible in one commit, which also sets these table properties.

    Raises a TableError if the batch number was already published.
    """
    handle = lake.fresh(table)
    transaction = handle.newTransaction()
    try:
        transaction.manageSnapshots().cherrypick(snapshot_id).commit()
        existing = handle.properties()
        for name, value in (properties or {}).items():
            if value != existing.get(name):
                transaction.updateProperties().set(name, value).commit()
        transaction.commitTransaction()
    except Py4JJavaError as error:
        if "DuplicateWAPCommit" in str(error.java_exception):
            raise TableError(
                "another run has published this batch number",
                where=f"table {table}",
                remedy="No row was lost or duplicated; run again",
            ) from error
        raise
    return newest_commit(lake, table)


def discard_staged(lake: Lake, table: str, snapshot_id: int | None = None) -> int:
    """Deletes unpublished staged batches and their files. Returns the number of batches.

    If a run loses its connection to a REST server, its batch may still be published later, because
    the server may only have been slow. When asked to remove a snapshot, a REST server does so even
    if the snapshot has been published in the meantime (see :mod:`loader.lake.catalog_lock_store`).
    Therefore, in a REST catalog, other runs' batches are not deleted until they are
    :data:`LATE_COMMIT` seconds old. If another batch is published first, ``loader compact`` deletes
    them. Until then, a staged batch does no harm, because its number can be published only once.

    Args:
        snapshot_id: the snapshot of a batch that this run has staged. By default, all staged
            batches are deleted.
    """
    handle = lake.handle(table)
    orphans = [each for each in _list_recently_staged(handle) if snapshot_id in (None, each)]
    if orphans and snapshot_id is None and "RESTTableOperations" in _describe_operations(handle):
        newest = (time.time() - LATE_COMMIT) * 1000
        orphans = [each for each in orphans if handle.snapshot(each).timestampMillis() <= newest]
    if orphans:
        published = _list_published(handle)
        orphans = [each for each in orphans if each not in published]
    if orphans:
        # By default, Iceberg would also expire the snapshots that the table's properties specify.
        expiry = handle.expireSnapshots().expireOlderThan(0)
        for orphan in orphans:
            expiry = expiry.expireSnapshotId(orphan)
        expiry.commit()
    return len(orphans)


def _describe_operations(handle: Any) -> str:
    return str(handle.operations().getClass().getName())


def _newest_first(handle: Any) -> Iterator[Any]:
    """Yields a table's snapshots, newest first. Reads lazily, because each takes a JVM call."""
    snapshots = handle.snapshots()
    return (snapshots[place] for place in reversed(range(len(snapshots))))


def _list_recently_staged(handle: Any) -> Iterator[int]:
    """Yields the snapshots that were staged after the newest published batch.

    Earlier ones have been discarded by the run that published the newest batch.
    """
    ancestors = list_ancestors(handle, handle.currentSnapshot())
    newest = next((each for each in ancestors if batch_of(each) is not None), None)
    since = None
    if newest is not None:
        since = int(newest.summary().get("source-snapshot-id") or newest.snapshotId())
    for snapshot in _newest_first(handle):
        if snapshot.snapshotId() == since:
            return
        if snapshot.summary().get("wap.id") is not None:
            yield int(snapshot.snapshotId())


def _list_published(handle: Any) -> set[int]:
    """Returns the published snapshots and the staged snapshots that they were published from.

    The published snapshots are those of all branches and tags, with their ancestors. Tags are
    included because a tagged snapshot may be older than any snapshot that remains on its branch.
    """
    published: set[int] = set()
    refs = handle.refs()
    heads = [handle.currentSnapshot(), *(handle.snapshot(refs[n].snapshotId()) for n in refs)]
    for head in heads:
        for snapshot in list_ancestors(handle, head):
            if snapshot.snapshotId() in published:
                break
            published.add(int(snapshot.snapshotId()))
            source = snapshot.summary().get("source-snapshot-id")
            if source is not None:
                published.add(int(source))
    return published

"""Reads the commits of a raw table: the source of truth, which state and ledger only index.

Each batch is one commit. Its Iceberg snapshot's summary carries the batch number
(`strandline.batch`), the state as of that batch (`strandline.state`) and its ledger row
(`strandline.sync`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from loader.property_codec import decode_property, encode_property
from loader.rows.version_order import SOURCE_NAME

if TYPE_CHECKING:
    from loader.lake.lake import Lake

BATCH = "strandline.batch"
STATE = "strandline.state"
SYNC = "strandline.sync"
NEWEST = "strandline.newest"
COMPACTED_TO = "strandline.compacted_to"
SOURCES = "strandline.sources"
"""Property of a shared raw table: its sources (JSON), see :mod:`loader.sync.ownership`."""
ORIGINS = "strandline.origins"
"""Property of a raw table: the table that each of its sources loads into it (JSON)."""


@dataclass(frozen=True)
class Commit:
    """A published batch, as its own commit describes it.

    Attributes:
        batch: the batch number; 0 if nothing was published yet.
        snapshot_id: the id of the Iceberg snapshot that made it visible.
        state: the state (JSON text) as of this batch; None if the commit has expired.
        sync: its ledger row, as far as it was known before the commit.
        rows: rows appended.
        at: when it was committed.
    """

    batch: int = 0
    snapshot_id: int | None = None
    state: str | None = None
    sync: Mapping[str, Any] | None = None
    rows: int | None = None
    at: dt.datetime | None = None

    @property
    def source(self) -> str | None:
        """The source whose rows these are; None if the commit has expired."""
        named = (self.sync or {}).get("source_name")
        return str(named) if named else None


def newest_commit(lake: Lake, table: str, of: Collection[str] = ()) -> Commit:
    """Returns the newest published batch.

    Args:
        of: only batches of these sources; empty is all.
    """
    handle = lake.handle(table)
    if handle.currentSnapshot() is None:
        return Commit()
    kept = _find_kept_by_compaction(handle, of)
    for found in _list_published(handle):
        if of and (found.source or source_of(lake, table, found.batch)) not in of:
            continue
        forgot = found.state is None and kept is not None and kept.batch == found.batch
        return kept if kept and forgot else found
    rows = lake.frame(table)
    rows = rows.where(f.col(SOURCE_NAME).isin(*of)) if of else rows
    [row] = rows.agg(f.max("_cq_batch").alias("batch")).collect()
    return kept if kept and kept.batch == row["batch"] else Commit(batch=row["batch"] or 0)


def source_of(lake: Lake, table: str, batch: int) -> str | None:
    """Returns a batch's source, read from its rows; None if it has no rows any more."""
    rows = lake.frame(table).where(f.col("_cq_batch") == batch).select(SOURCE_NAME).take(1)
    return str(rows[0][0]) if rows else None


def sharers(handle: Any) -> dict[str, Any]:
    """Returns the sources that share a raw table, each with its shape; empty if it is not shared.

    Args:
        handle: Iceberg's own object for the table.
    """
    found: dict[str, Any] = json.loads(decode_property(handle.properties().get(SOURCES) or "{}"))
    return found


def origins(handle: Any) -> dict[str, str]:
    """Returns the table that each source loads into a raw table, as far as it is recorded.

    Args:
        handle: Iceberg's own object for the table.
    """
    found: dict[str, str] = json.loads(decode_property(handle.properties().get(ORIGINS) or "{}"))
    return found


def newest_of(source: str) -> str:
    """Returns the property that keeps a source's newest commit in a shared table."""
    return f"{NEWEST}.{source.encode().hex()}"


def all_commits(lake: Lake, table: str, known: Collection[int] = ()) -> list[Commit]:
    """Returns every published batch, oldest first; if its commit has expired, from its rows.

    Such a batch has no state, and its `sync` holds only what each row says. If compaction has
    removed rows, their number is unknown.

    Args:
        known: batches that the caller has: if only these have expired, no rows are read.
    """
    handle = lake.handle(table)
    current = handle.currentSnapshot()
    found: dict[int, Commit] = {}
    for commit in _list_published(handle):
        found.setdefault(commit.batch, commit)
    headed = bool(found)  # no later batch can have expired: snapshots lead back from the newest
    for kept in _all_kept(handle) if current is not None else ():
        found.setdefault(kept.batch, kept)
    missing = set(range(1, max(found, default=1) + 1)) - set(found)
    if headed:
        missing -= set(known)
    if current is not None and missing:
        found = {commit.batch: commit for commit in _read_from_rows(lake, table)} | found
    return [found[batch] for batch in sorted(found)]


def keep_newest(lake: Lake, table: str) -> None:
    """Keeps the newest batch's commit in a property, as the commit itself is about to expire.

    In a shared table, it keeps the newest commit of each source.
    """
    properties = lake.handle(table).properties()
    wanted: dict[str, Collection[str]] = {NEWEST: ()}
    wanted |= {newest_of(name): (name,) for name in sharers(lake.handle(table))}
    changed = {}
    for key, of in wanted.items():
        newest = newest_commit(lake, table, of)
        if newest.state is None:
            continue
        facts = {**asdict(newest), "at": newest.at.isoformat() if newest.at else None}
        text = encode_property(json.dumps(facts, sort_keys=True, default=str))
        if text != properties.get(key):
            changed[key] = text
    if changed:
        lake.set_properties(table, changed)


def _read_from_rows(lake: Lake, table: str) -> Iterator[Commit]:
    compacted_to = int(lake.handle(table).properties().get(COMPACTED_TO) or 0)
    yield from (Commit(batch) for batch in range(1, compacted_to + 1))
    rows = lake.spark.sql(
        f"""
        select
            _cq_batch as batch,
            count(*) as rows,
            max(_cq_source_name) as source_name,
            max(_cq_generation) as generation,
            unix_micros(min(_cq_sync_time)) / 1000000 as started
        from {lake.name(table)}
        group by _cq_batch
        """
    ).collect()
    for row in rows:
        at = dt.datetime.fromtimestamp(row["started"], dt.timezone.utc)
        facts = {"source_name": row["source_name"], "generation": row["generation"]}
        sync = {**facts, "batch": row["batch"], "started_at": at.isoformat()}
        whole = row["batch"] > compacted_to
        yield Commit(row["batch"], sync=sync, rows=row["rows"] if whole else None, at=at)


def batch_of(snapshot: Any) -> int | None:
    """Returns the number of the batch that an Iceberg snapshot holds; None if it holds none."""
    summary = snapshot.summary()
    batch = summary.get(BATCH) or summary.get("published-wap-id")
    return None if batch is None else int(batch)


def _commit(handle: Any, snapshot: Any) -> Commit | None:
    summary = snapshot.summary()
    batch = batch_of(snapshot)
    if batch is None:
        return None
    facts = summary
    if summary.get(BATCH) is None:
        # Published on top of another process's commit: the properties stayed with the original.
        original = handle.snapshot(int(summary.get("source-snapshot-id")))
        facts = original.summary() if original is not None else summary
    sync = facts.get(SYNC)
    return Commit(
        batch=batch,
        snapshot_id=int(snapshot.snapshotId()),
        state=facts.get(STATE),
        sync=json.loads(sync) if sync else None,
        rows=int(summary.get("added-records") or 0),
        at=dt.datetime.fromtimestamp(snapshot.timestampMillis() / 1000, dt.timezone.utc),
    )


def _list_published(handle: Any) -> Iterator[Commit]:
    """Yields the batches whose commits have not expired, newest first."""
    snapshot = handle.currentSnapshot()
    while snapshot is not None:
        found = _commit(handle, snapshot)
        if found is not None:
            yield found
        parent = snapshot.parentId()
        snapshot = handle.snapshot(parent) if parent is not None else None


def _find_kept_by_compaction(handle: Any, of: Collection[str] = ()) -> Commit | None:
    """Returns the newest batch that compaction kept; batches published since may be newer."""
    kept = [one for one in _all_kept(handle) if not of or one.source in of]
    return max(kept, key=lambda one: one.batch, default=None)


def _all_kept(handle: Any) -> Iterator[Commit]:
    properties = handle.properties()
    for key in (NEWEST, *map(newest_of, sharers(handle))):
        text = properties.get(key)
        if text:
            said = json.loads(decode_property(text))
            at = dt.datetime.fromisoformat(said["at"]) if said["at"] else None
            yield Commit(**{**said, "at": at})

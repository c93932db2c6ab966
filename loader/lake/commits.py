"""Reads batches from a raw table's commits, which are the source of truth for state and ledger.

Each batch is one commit. The summary of its Iceberg snapshot contains the batch number
(`strandline.batch`), the state as of that batch (`strandline.state`) and the ledger row
(`strandline.sync`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from loader.errors import TableError
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
"""The property that lists a shared raw table's sources; see :mod:`loader.sync.ownership`."""
ORIGINS = "strandline.origins"
"""The property that records which table of each source the raw table is loaded from."""


@dataclass(frozen=True)
class Commit:
    """A published batch, as its commit describes it.

    Attributes:
        batch: the batch number; 0 if there is no batch yet.
        state: the state (a JSON string) after this batch; None if the commit has expired.
        sync: the values of the batch's ledger row that were known before the commit.
        rows: the number of appended rows.
        at: the commit time.
    """

    batch: int = 0
    snapshot_id: int | None = None
    state: str | None = None
    sync: Mapping[str, Any] | None = None
    rows: int | None = None
    at: dt.datetime | None = None

    @property
    def source(self) -> str | None:
        """The source of the rows, or None if the commit has expired."""
        name = (self.sync or {}).get("source_name")
        return str(name) if name else None


def newest_commit(lake: Lake, table: str, of: Collection[str] = ()) -> Commit:
    """Returns the newest published batch of the sources `of`; empty means all sources.

    Raises a TableError if another program created the table.
    """
    handle = lake.handle(table)
    if handle.currentSnapshot() is None:
        return Commit()
    kept_commit = _find_kept_by_compaction(handle, of)
    for commit in _list_published(handle):
        if of and (commit.source or source_of(lake, table, commit.batch)) not in of:
            continue
        has_expired = (
            commit.state is None and kept_commit is not None and kept_commit.batch == commit.batch
        )
        return kept_commit if kept_commit and has_expired else commit
    rows = lake.frame(table)
    if "_cq_batch" not in rows.columns:
        raise TableError(
            "another program created this table, so it cannot be the raw table",
            where=f"table {lake.schema}.{table}",
            remedy="Rename it, or set another `schema` in the spec. `loader adopt` then takes over "
            "its rows",
        )
    rows = rows.where(f.col(SOURCE_NAME).isin(*of)) if of else rows
    [row] = rows.agg(f.max("_cq_batch").alias("batch")).collect()
    return (
        kept_commit
        if kept_commit and kept_commit.batch == row["batch"]
        else Commit(batch=row["batch"] or 0)
    )


def source_of(lake: Lake, table: str, batch: int) -> str | None:
    """Reads the source of a batch from its rows. Returns None if all its rows were removed."""
    rows = lake.frame(table).where(f.col("_cq_batch") == batch).select(SOURCE_NAME).take(1)
    return str(rows[0][0]) if rows else None


def sharers(handle: Any) -> dict[str, Any]:
    """Returns the key and cursor of each source that shares a raw table; empty if none do."""
    sources: dict[str, Any] = json.loads(decode_property(handle.properties().get(SOURCES) or "{}"))
    return sources


def origins(handle: Any) -> dict[str, str]:
    """Maps each source of a raw table to the name of the table that is loaded from it."""
    recorded: dict[str, str] = json.loads(decode_property(handle.properties().get(ORIGINS) or "{}"))
    return recorded


def newest_of(source: str) -> str:
    """Returns the name of the property that stores a source's newest commit in a shared table."""
    return f"{NEWEST}.{source.encode().hex()}"


def all_commits(lake: Lake, table: str, known: Collection[int] = ()) -> list[Commit]:
    """Returns all published batches, sorted by batch number.

    If a batch's commit has expired, the batch is derived from its rows. It then has no state, and
    its `sync` contains only values from the rows' columns. If compaction has removed rows from the
    batch, `rows` is None.

    Args:
        known: batches that the caller does not need. If only these batches have expired, no rows
            are read.
    """
    handle = lake.handle(table)
    current = handle.currentSnapshot()
    commits: dict[int, Commit] = {}
    for commit in _list_published(handle):
        commits.setdefault(commit.batch, commit)
    # These are the newest commits, without gaps. So only earlier batches can have expired.
    has_commits = bool(commits)
    for kept_commit in _all_kept(handle) if current is not None else ():
        commits.setdefault(kept_commit.batch, kept_commit)
    missing = set(range(1, max(commits, default=1) + 1)) - set(commits)
    if has_commits:
        missing -= set(known)
    if current is not None and missing:
        commits = {commit.batch: commit for commit in _read_from_rows(lake, table)} | commits
    return [commits[batch] for batch in sorted(commits)]


def keep_newest(lake: Lake, table: str) -> None:
    """Copies the newest commit's metadata to a table property, so that it outlives the commit.

    In a shared table, also copies the newest commit of each source.
    """
    properties = lake.handle(table).properties()
    wanted: dict[str, Collection[str]] = {NEWEST: ()}
    wanted |= {newest_of(name): (name,) for name in sharers(lake.handle(table))}
    changed = {}
    for key, sources in wanted.items():
        newest = newest_commit(lake, table, sources)
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
        is_complete = row["batch"] > compacted_to
        yield Commit(row["batch"], sync=sync, rows=row["rows"] if is_complete else None, at=at)


def batch_of(snapshot: Any) -> int | None:
    """Returns the batch number of an Iceberg snapshot, or None if no batch created it."""
    summary = snapshot.summary()
    batch = summary.get(BATCH) or summary.get("published-wap-id")
    return None if batch is None else int(batch)


def list_ancestors(handle: Any, snapshot: Any) -> Iterator[Any]:
    """Yields a snapshot and its ancestors that have not expired, newest first.

    Reads lazily, because each takes a JVM call.

    Args:
        snapshot: may be None.
    """
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = handle.snapshot(parent) if parent is not None else None


def _commit(handle: Any, snapshot: Any) -> Commit | None:
    summary = snapshot.summary()
    batch = batch_of(snapshot)
    if batch is None:
        return None
    facts = summary
    if summary.get(BATCH) is None:
        # Another process committed before this batch was published. Only the staged snapshot
        # contains the batch's metadata.
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
    for snapshot in list_ancestors(handle, handle.currentSnapshot()):
        commit = _commit(handle, snapshot)
        if commit is not None:
            yield commit


def _find_kept_by_compaction(handle: Any, of: Collection[str] = ()) -> Commit | None:
    """Returns the newest commit that was copied to the table properties, if any.

    The table may have later commits.
    """
    kept_commits = [commit for commit in _all_kept(handle) if not of or commit.source in of]
    return max(kept_commits, key=lambda commit: commit.batch, default=None)


def _all_kept(handle: Any) -> Iterator[Commit]:
    properties = handle.properties()
    for key in (NEWEST, *map(newest_of, sharers(handle))):
        text = properties.get(key)
        if text:
            facts = json.loads(decode_property(text))
            at = dt.datetime.fromisoformat(facts["at"]) if facts["at"] else None
            yield Commit(**{**facts, "at": at})

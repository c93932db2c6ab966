"""Compacts the loader's own tables, such as state and ledger, after each run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.spark.named_steps import step

if TYPE_CHECKING:
    from loader.lake.lake import Lake
    from loader.spec.plugins import SourceSpec
    from loader.sync.pipeline import Pipeline
    from loader.sync.stores import Stores

VERSIONS = 10
"""The number of versions to keep of each cursor and of the `loader reconcile` results."""

MANY_FILES = 200
"""A run merges a table's files if there are this many new ones, which takes 1 or 2 seconds."""

TOO_MANY = 5000
"""Merging more files than this takes minutes, so only `loader compact` does it."""

_FILES_AFTER = "strandline.files"
"""The table property with the number of files after the last merge.

Each partition has at least one file, so this number may be high.
"""

_log = logging.getLogger("loader")


@dataclass(frozen=True)
class SystemTable:
    """One of the loader's own tables, such as the ledger.

    Attributes:
        remedy: the remedy if the table is damaged.
        order: the sort order that makes the queries of runs fastest; empty if there is none.
    """

    lake: Lake
    name: str
    remedy: str
    order: str = ""

    @property
    def full_name(self) -> tuple[str, str]:
        return self.lake.schema, self.name

    def count_files(self) -> tuple[int, int]:
        """Returns the current number of data files, and the number after the last merge."""
        if not self.lake.exists(self.name):
            return 0, 0
        records = self.lake.records(self.name)
        after = int(records.handle.properties().get(_FILES_AFTER) or 0)
        return records.files(), min(after, records.files())


def list_system_tables(pipeline: Pipeline) -> list[SystemTable]:
    by_name: dict[tuple[str, str], SystemTable] = {}
    for table in _iterate_tables(pipeline):
        by_name.setdefault(table.full_name, table)
    return list(by_name.values())


def compact_system_tables(pipeline: Pipeline) -> None:
    """Merges the files of system tables with many files, and expires old snapshots.

    Only logs failures, because the next run retries.
    """
    from filelock import Timeout

    for own in list_system_tables(pipeline):
        try:
            files, after = own.count_files()
            if files > TOO_MANY:
                where = f"{own.lake.schema}.{own.name}"
                _log.warning("%s has %s files: run `loader compact` once", where, files)
            elif files >= after + MANY_FILES:
                _compact(pipeline, own)
        except Timeout:
            pass  # another process is writing or compacting the table
        except Exception as error:
            text = pipeline.redact_error(error, f"table {own.lake.schema}.{own.name}")
            _log.warning("system table not compacted: %s", text)


def _iterate_tables(pipeline: Pipeline) -> Iterator[SystemTable]:
    from loader.lake.ledger import REMEDY as OF_LEDGER
    from loader.lake.ledger import TABLE as LEDGER
    from loader.lake.system_tables import STATES
    from loader.reconcile.history import REMEDY as OF_RECONCILED
    from loader.reconcile.history import TABLE as RECONCILED
    from loader.state.lake_table import LakeState
    from loader.sync.pushed_tables import PUSHED
    from loader.sync.pushed_tables import REMEDY as OF_STATES

    for source, _ in pipeline.sources:
        stores = pipeline.open_stores(source)
        order = "table_name asc nulls first, batch asc nulls first"
        yield SystemTable(stores.lake, LEDGER, OF_LEDGER, order)
        yield SystemTable(stores.lake, RECONCILED, OF_RECONCILED)
        if source.where == PUSHED:  # only commands that push tables write this state table
            yield SystemTable(stores.lake, STATES, OF_STATES)
        if isinstance(stores.state, LakeState):
            order = "key asc nulls first, version asc nulls first"
            state = stores.state
            yield SystemTable(state.lake, state.table, state.remedy, order)


def _compact(pipeline: Pipeline, own: SystemTable) -> None:
    from loader.lake.ledger import now
    from loader.lake.locks import lock_table
    from loader.maintenance import snapshot_expiry
    from loader.maintenance.compaction import MIN_SNAPSHOT_AGE, rewrite
    from loader.state.lake_table import LakeState

    with lock_table(own.lake, own.name, timeout=0):
        pass  # If another process is writing, this raises Timeout before any state is pruned.
    for shared in list_backends(pipeline):
        state = shared.stores.state
        if isinstance(state, LakeState) and (state.lake.schema, state.table) == own.full_name:
            shared.prune(VERSIONS)
    with (
        step(f"{own.lake.schema}.{own.name}: compacting"),
        lock_table(own.lake, own.name, timeout=0),
    ):
        rewrite(own.lake, own.name, own.order)
        before = now() - MIN_SNAPSHOT_AGE
        snapshot_expiry.expire_snapshots(own.lake, own.name, int(before.timestamp() * 1000))
        after = own.lake.records(own.name).files()
        if after >= MANY_FILES:
            own.lake.set_properties(own.name, {_FILES_AFTER: str(after)})


@dataclass(frozen=True)
class SharedBackend:
    """A state backend, and the sources whose cursors it stores.

    Attributes:
        stores: the stores of one of these sources.
    """

    stores: Stores
    sources: tuple[str, ...]

    def is_responsible(self, key: str) -> bool:
        """Returns whether a key belongs to these sources. Other specs may share the backend."""
        return key.partition(".")[0] in self.sources

    def prune(self, keep: int) -> list[tuple[str, int]]:
        """Deletes all but the newest `keep` versions of each cursor.

        Returns the number of deleted versions for each table.
        """
        state = self.stores.state
        floors = {
            key: floor for key, floor in state.floors(keep).items() if self.is_responsible(key)
        }
        if not floors:
            return []
        before = Counter(row.key for row in state.rows())
        state.prune(floors)
        after = Counter(row.key for row in state.rows())
        return [(key, before[key] - after[key]) for key in floors]


def list_backends(pipeline: Pipeline) -> list[SharedBackend]:
    by_backend: dict[tuple[str, ...], list[SourceSpec]] = {}
    for source, _ in pipeline.sources:
        by_backend.setdefault(source.state_location, []).append(source)
    return [
        SharedBackend(
            pipeline.open_stores(sources[0]),
            tuple(name for source in sources for name in (source.name, *source.formerly)),
        )
        for sources in by_backend.values()
    ]

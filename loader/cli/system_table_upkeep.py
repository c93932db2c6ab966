"""Keeps state, ledger and the loader's other tables small, after each run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader.lake.lake import Lake
    from loader.spec.plugins import SourceSpec
    from loader.sync.pipeline import Pipeline
    from loader.sync.stores import Stores

VERSIONS = 10
"""How many versions of each cursor, and comparisons of each bucket, to keep."""

MANY_FILES = 200
"""With so many data files, a run puts a table's files together. It takes a second or two."""

TOO_MANY = 5000
"""More files than this take minutes to rewrite: that is for `loader compact`, not for a run."""

_LEAST = "strandline.files"
"""Property: how many files were left when they were last put together: a table that was partitioned
by hand keeps many."""

_log = logging.getLogger("loader")


@dataclass(frozen=True)
class SystemTable:
    """One of the loader's own tables.

    Attributes:
        remedy: the remedy if it is damaged.
        order: how to sort it, for the way in which runs read it; empty if in no order.
    """

    lake: Lake
    name: str
    remedy: str
    order: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Its schema and its name."""
        return self.lake.schema, self.name

    def files(self) -> tuple[int, int]:
        """Returns how many data files it has, and how many it had when they were put together."""
        if not self.lake.exists(self.name):
            return 0, 0
        records = self.lake.records(self.name)
        least = int(records.handle.properties().get(_LEAST) or 0)
        return records.files(), min(least, records.files())


def list_system_tables(pipeline: Pipeline) -> list[SystemTable]:
    """Returns the loader's own tables in the lakes of a spec, each once."""
    found: dict[tuple[str, str], SystemTable] = {}
    for one in _all(pipeline):
        found.setdefault(one.place, one)
    return list(found.values())


def compact_system_tables(pipeline: Pipeline) -> None:
    """Puts the files of tables with many of them together, and drops their old snapshots.

    A failure here is logged, and is no error: the next run tries again.
    """
    from filelock import Timeout

    for own in list_system_tables(pipeline):
        try:
            files, least = own.files()
            if files > TOO_MANY:
                where = f"{own.lake.schema}.{own.name}"
                _log.warning("%s has %s files: run `loader compact` once", where, files)
            elif files >= least + MANY_FILES:
                _keep_small(pipeline, own)
        except Timeout:
            pass  # another process is writing it, or doing the same
        except Exception as problem:
            text = pipeline.redact_error(problem, f"table {own.lake.schema}.{own.name}")
            _log.warning("its files were not put together: %s", text)


def _all(pipeline: Pipeline) -> Iterator[SystemTable]:
    from loader.lake.ledger import REMEDY as OF_LEDGER
    from loader.lake.ledger import TABLE as LEDGER
    from loader.lake.system_tables import STATES
    from loader.reconcile.verified_buckets import REMEDY as OF_RECONCILED
    from loader.reconcile.verified_buckets import TABLE as RECONCILED
    from loader.state.lake_table import LakeState
    from loader.sync.pushed_tables import REMEDY as OF_STATES
    from loader.sync.pushed_tables import SERVER

    for source, _ in pipeline.sources:
        stores = pipeline.stores(source)
        order = "table_name asc nulls first, batch asc nulls first"
        yield SystemTable(stores.lake, LEDGER, OF_LEDGER, order)
        yield SystemTable(stores.lake, RECONCILED, OF_RECONCILED)
        if source.where == SERVER:  # no run looks for it otherwise
            yield SystemTable(stores.lake, STATES, OF_STATES)
        if isinstance(stores.state, LakeState):
            order = "key asc nulls first, version asc nulls first"
            state = stores.state
            yield SystemTable(state.lake, state.table, state.remedy, order)


def _keep_small(pipeline: Pipeline, own: SystemTable) -> None:
    from loader.lake.ledger import now
    from loader.lake.locks import lock_table
    from loader.maintenance import snapshot_expiry
    from loader.maintenance.compaction import READ_BY_LOADERS, rewrite
    from loader.state.lake_table import LakeState

    with lock_table(own.lake, own.name, timeout=0):
        pass  # no process is writing: the next step need not wait
    for shared in list_backends(pipeline):
        state = shared.stores.state
        if isinstance(state, LakeState) and (state.lake.schema, state.table) == own.place:
            shared.prune(VERSIONS)
    with lock_table(own.lake, own.name, timeout=0):
        rewrite(own.lake, own.name, own.order)
        before = now() - READ_BY_LOADERS
        snapshot_expiry.expire(own.lake, own.name, int(before.timestamp() * 1000))
        left = own.lake.records(own.name).files()
        if left >= MANY_FILES:
            own.lake.set_properties(own.name, {_LEAST: str(left)})


@dataclass(frozen=True)
class SharedBackend:
    """One backend, and the sources whose cursors live in it.

    Attributes:
        stores: those of one of the sources.
    """

    stores: Stores
    sources: tuple[str, ...]

    def holds(self, key: str) -> bool:
        """Whether a key belongs to one of the sources; other specs may share the backend."""
        return key.partition(".")[0] in self.sources

    def prune(self, keep: int) -> list[tuple[str, int]]:
        """Deletes all but each cursor's newest versions; returns the number deleted, by table."""
        state = self.stores.state
        floors = {key: floor for key, floor in state.floors(keep).items() if self.holds(key)}
        if not floors:
            return []
        before = Counter(row.key for row in state.rows())
        state.prune(floors)
        after = Counter(row.key for row in state.rows())
        return [(key, before[key] - after[key]) for key in floors]


def list_backends(pipeline: Pipeline) -> list[SharedBackend]:
    """Returns the backends of all sources, each once."""
    found: dict[tuple[str, ...], list[SourceSpec]] = {}
    for source, _ in pipeline.sources:
        found.setdefault(source.state_place, []).append(source)
    return [
        SharedBackend(
            pipeline.stores(sources[0]),
            tuple(name for source in sources for name in (source.name, *source.formerly)),
        )
        for sources in found.values()
    ]

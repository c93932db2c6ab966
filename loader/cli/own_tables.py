"""The loader's own tables, and how they stay small: state and ledger, records of others' state.

Each run adds a file and an Iceberg snapshot to some of them. After some hundred runs, the run
itself puts their files together: a loop needs no `loader compact` for that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.cli.state_stores import backends

if TYPE_CHECKING:
    from loader.lake.lake import Lake
    from loader.sync.pipeline import Pipeline

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
class OwnTable:
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


def own_tables(pipeline: Pipeline) -> list[OwnTable]:
    """Returns the loader's own tables in the lakes of a spec, each once."""
    found: dict[tuple[str, str], OwnTable] = {}
    for one in _all(pipeline):
        found.setdefault(one.place, one)
    return list(found.values())


def keep_small(pipeline: Pipeline) -> None:
    """Puts the files of tables with many of them together, and drops their old snapshots.

    A failure here is logged, and is no error: the next run tries again.
    """
    from filelock import Timeout

    for own in own_tables(pipeline):
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


def _all(pipeline: Pipeline) -> Iterator[OwnTable]:
    from loader.lake.ledger import REMEDY as OF_LEDGER
    from loader.lake.ledger import TABLE as LEDGER
    from loader.lake.system_tables import STATES
    from loader.reconcile.reconciled import REMEDY as OF_RECONCILED
    from loader.reconcile.reconciled import TABLE as RECONCILED
    from loader.state.lake_table import LakeState
    from loader.sync.pushed_tables import REMEDY as OF_STATES
    from loader.sync.pushed_tables import SERVER

    for source, _ in pipeline.sources:
        stores = pipeline.stores(source)
        order = "table_name asc nulls first, batch asc nulls first"
        yield OwnTable(stores.lake, LEDGER, OF_LEDGER, order)
        yield OwnTable(stores.lake, RECONCILED, OF_RECONCILED)
        if source.where == SERVER:  # no run looks for it otherwise
            yield OwnTable(stores.lake, STATES, OF_STATES)
        if isinstance(stores.state, LakeState):
            order = "key asc nulls first, version asc nulls first"
            state = stores.state
            yield OwnTable(state.lake, state.table, state.remedy, order)


def _keep_small(pipeline: Pipeline, own: OwnTable) -> None:
    from loader.lake.ledger import now
    from loader.lake.locks import lock_table
    from loader.maintenance import expiry
    from loader.maintenance.compaction import READ_BY_LOADERS, rewrite
    from loader.state.lake_table import LakeState

    with lock_table(own.lake, own.name, timeout=0):
        pass  # no process is writing: the next step need not wait
    for shared in backends(pipeline):
        state = shared.stores.state
        if isinstance(state, LakeState) and (state.lake.schema, state.table) == own.place:
            shared.prune(VERSIONS)
    with lock_table(own.lake, own.name, timeout=0):
        rewrite(own.lake, own.name, own.order)
        before = now() - READ_BY_LOADERS
        expiry.expire(own.lake, own.name, int(before.timestamp() * 1000))
        left = own.lake.records(own.name).files()
        if left >= MANY_FILES:
            own.lake.set_properties(own.name, {_LEAST: str(left)})

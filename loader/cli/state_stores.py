"""Finds the stores that a state command is about, and locks tables while it changes them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.error_report import did_you_mean
from loader.errors import LockedError, SpecError
from loader.names import explain_refusal, in_the_lake, is_wildcard, match_selection

if TYPE_CHECKING:
    from loader.lake.lease import Lease
    from loader.spec.plugins import SourceSpec
    from loader.sync.pipeline import Pipeline
    from loader.sync.status_readers import StatusReaders
    from loader.sync.stores import Stores


@dataclass(frozen=True)
class Shared:
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


def backends(pipeline: Pipeline) -> list[Shared]:
    """Returns the backends of all sources, each once."""
    found: dict[tuple[str, ...], list[SourceSpec]] = {}
    for source, _ in pipeline.sources:
        found.setdefault(source.state_place, []).append(source)
    return [
        Shared(
            pipeline.stores(sources[0]),
            tuple(name for source in sources for name in (source.name, *source.formerly)),
        )
        for sources in found.values()
    ]


def stores_of(pipeline: Pipeline, table: str) -> Stores:
    """Returns the stores that hold a table's state.

    Raises:
        SpecError: if the name is not `source.table`, or the spec has no such source or table.
    """
    name, dot, rest = table.partition(".")
    _refuse_impossible(table)
    for source, _ in pipeline.sources:
        if source.name == name and dot and rest:
            return pipeline.stores(source)
    names = [source.name for source, _ in pipeline.sources]
    raise SpecError(
        f"{table!r} is not `source.table` with a source of the spec",
        where="loader state",
        remedy=f"Its sources: {', '.join(names)}; `loader state list` shows the tables",
    )


def _refuse_impossible(table: str) -> None:
    """Refuses the key of a table that cannot exist."""
    rest = table.partition(".")[2]
    wrong = explain_refusal(rest) if rest else None
    if wrong is not None:
        raise SpecError(
            wrong,
            where=f"state {table!r}",
            remedy="No table can be named so: leave it out; `loader state list` shows the tables",
        )


def find_key(progress: Sequence[StatusReaders], table: str, where: str) -> str:
    """Returns the key of a table's state; the name of its source may be left out if it is clear.

    Args:
        where: the command, for errors.

    Raises:
        SpecError: if there is no such state, or several sources have one.
    """
    from loader.sync.status_readers import list_state_readers

    _refuse_impossible(table)
    sources = {name for one in progress for name in one.names}
    stored = {row.key for state in list_state_readers(progress) for row in state.rows()}
    keys = sorted(key for key in stored if key.partition(".")[0] in sources)
    if table in keys:
        return table
    wanted = {table.lower(), in_the_lake(table).lower()}
    found = [key for key in keys if key.partition(".")[2].lower() in wanted]
    if not found and not is_wildcard(table):
        found = [key for key in keys if match_selection(key, [table])]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(
            f"{len(found)} tables are called {table!r}",
            where=where,
            remedy=f"Name one with its source: {', '.join(found[:20])}",
        )
    near = did_you_mean(table, keys) or did_you_mean(table, [key.partition(".")[2] for key in keys])
    raise SpecError(
        f"there is no state for {table!r}",
        where=where,
        remedy=f"{near} `loader state list` shows what there is".strip(),
    )


@contextmanager
def lock_tables(pipeline: Pipeline, tables: Sequence[str]) -> Iterator[str]:
    """Locks tables (`source.table`) against runs; yields the run id that holds the locks.

    Raises:
        LockedError: if a run holds one of them; this does not wait for it.
    """
    from loader.lake.lease import Heartbeat
    from loader.lake.locks import create_lease

    run_id = uuid.uuid4().hex[:12]
    leases: list[Lease] = []
    with ExitStack() as stack:
        taken: set[tuple[str, str]] = set()
        for table in tables:
            lake, raw = stores_of(pipeline, table).lake, table.partition(".")[2]
            if (lake.schema, raw) in taken:
                continue  # several sources share it
            taken.add((lake.schema, raw))
            lease = create_lease(lake, raw, f"table {table}", run_id)
            try:
                lease.acquire()
            except LockedError:
                raise LockedError(
                    "a run is syncing this table",
                    where=f"table {table}",
                    remedy="Wait for it, then try again: its end would overwrite the change",
                ) from None
            stack.callback(lease.release)
            leases.append(lease)
        stack.enter_context(Heartbeat(leases))
        yield run_id

"""Caches values from the state and ledger tables, per Iceberg snapshot.

An Iceberg snapshot never changes, so cached values remain valid until another process writes to the
table. A run that finds no new rows reads only the newest snapshot id of each table.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_MAX_TABLES = 32
"""The maximum number of cached tables. A process rarely writes to more than two of them."""

_changing = threading.Lock()
_tables: OrderedDict[str, tuple[int | None, dict[Any, Any]]] = OrderedDict()


def get_cache(handle: Any) -> dict[Any, Any]:
    """Returns the cache for a newly loaded table's current snapshot. Callers may add values."""
    identity, current = str(handle.uuid()), _current(handle)
    with _changing:
        as_of, cache = _tables.pop(identity, (None, {}))
        if as_of != current:
            cache = {}
        _tables[identity] = current, cache
        while len(_tables) > _MAX_TABLES:
            _tables.popitem(last=False)
        return cache


def append_and_note(
    handle: Any, write: Callable[[], None], note: Callable[[dict[Any, Any]], None]
) -> None:
    """Appends to a table and updates the table's cache for the new snapshot.

    If another process writes to the table concurrently, the cache is not updated.

    Args:
        handle: Iceberg's newly loaded handle for the table; `write` commits through it.
        note: adds the appended values to the cache.
    """
    before, cache = _current(handle), dict(get_cache(handle))
    write()
    after = handle.currentSnapshot()
    if after is None or after.parentId() != before:
        return
    note(cache)
    with _changing:
        _tables[str(handle.uuid())] = int(after.snapshotId()), cache


def _current(handle: Any) -> int | None:
    snapshot = handle.currentSnapshot()
    return int(snapshot.snapshotId()) if snapshot is not None else None

"""Creates, alters and appends to system tables, which contain the loader's state and ledger.

If a system table is damaged, the error names it and not the table that is being synced.

Values of state and ledger are cached for each Iceberg snapshot. A snapshot never changes, so they
remain valid until another process writes to the table. A run that finds no new rows reads only the
newest snapshot id of each table.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from filelock import Timeout

from loader.corruption import RECOVERY
from loader.errors import DamagedError, TableError

if TYPE_CHECKING:
    from loader.lake.iceberg_rows import Records
    from loader.lake.lake import Lake

PREFIX = "_cq_"
"""The prefix of system tables. Raw tables cannot have this prefix."""

STATES = "_cq_plugin_state"
"""The append-only table with the states of programs that push tables into the lake."""


RECONCILED = "_cq_reconciled"
"""The append-only table of past comparisons (:mod:`loader.reconcile.history`)."""

HAS_UNREPAIRED = "(not repaired and missed_updates + missed_rows + missed_deletes > 0)"
"""An SQL condition that selects the rows of :data:`RECONCILED` with unrepaired differences."""


class InLake(Protocol):
    """An object that reads and writes a system table."""

    @property
    def lake(self) -> Lake:
        """The namespace of the table."""


_shared = threading.Lock()

Given = ParamSpec("Given")
Owner = TypeVar("Owner", bound=InLake)
Result = TypeVar("Result")


def describe_remedy(stopped: str, table: str) -> str:
    """Returns the remedy for a damaged system table.

    Args:
        stopped: the operations that cannot run until the table is recreated.
    """
    # The spec contains this table's name, so only the user may remove the table.
    if not table.startswith(PREFIX):
        return f"{stopped} are stopped until it is removed and recreated. {RECOVERY}"
    rebuilt = "until `loader state rebuild` (without --select) has recreated it"
    return f"{stopped} are stopped {rebuilt}. {RECOVERY}"


@contextmanager
def report_damage(lake: Lake, table: str, remedy: str) -> Iterator[None]:
    """Converts errors that damaged files cause within this block into an error about this table.

    Raises:
        DamagedError: if the table is damaged.
        TableError: if the warehouse was copied or moved.
    """
    from py4j.protocol import Py4JError  # late import: `status` needs no Spark
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as problem:
        from loader.spark.error_translation import translate_error

        where = f"table {lake.schema}.{table}"
        error = translate_error(problem, where)
        if not isinstance(error, DamagedError):
            raise
        with suppress(Py4JError, PySparkException):
            lake.fresh(table)  # raises a TableError for a moved warehouse
        raise DamagedError(error.what, where=where, remedy=remedy) from problem


def reports_damage(
    table: str, remedy: str
) -> Callable[[Callable[Concatenate[Owner, Given], Result]], Callable[..., Result]]:
    """Returns a decorator that applies :func:`report_damage` to a method."""

    def decorated(
        method: Callable[Concatenate[Owner, Given], Result],
    ) -> Callable[Concatenate[Owner, Given], Result]:
        @wraps(method)
        def inner(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
            with report_damage(self.lake, table, remedy):
                return method(self, *args, **kwargs)

        return inner

    return decorated


def ensure_table(lake: Lake, table: str, schema: str) -> Records:
    """Loads a system table. Creates the table and its namespace if they do not exist.

    Concurrent calls are safe.
    """
    from loader.lake.locks import lock_table

    records = lake.find_records(table)
    if records is not None:
        return records
    lake.prepare()
    with _shared, lock_table(lake, table):
        if not lake.exists(table):
            lake.create(table, schema)
    return lake.records(table)


def add_missing_columns(
    lake: Lake, table: str, records: Records, columns: Mapping[str, str]
) -> None:
    """Adds the columns that a system table lacks if an older version created it.

    Args:
        records: the recently loaded table.
        columns: the types of all columns, keyed by name.
    """
    if not _find_missing(lake, records.handle, columns):
        return
    from loader.lake.locks import lock_table  # late import: `status` needs no Spark
    from loader.rows.version_order import quote_name

    with _shared, lock_table(lake, table):
        for name in _find_missing(lake, lake.handle(table), columns):
            lake.spark.sql(
                f"alter table {lake.name(table)} add column {quote_name(name)} {columns[name]}"
            )


def _find_missing(lake: Lake, handle: Any, columns: Mapping[str, str]) -> list[str]:
    existing = {name.lower() for name in lake.columns_of(handle).names}
    return [name for name in columns if name.lower() not in existing]


def append_rows(
    lake: Lake,
    table: str,
    rows: Sequence[Mapping[str, Any]],
    note: Callable[[dict[Any, Any]], None] | None = None,
) -> None:
    """Appends a few rows to a system table under its lock, without a Spark job.

    Args:
        rows: the values of each row, keyed by column; see
            :meth:`loader.lake.iceberg_rows.Records.append`.
        note: adds the rows to the table's cache (:func:`get_cache`); None if the
            table has no cache.
    """
    with _lock_for_append(lake, table):
        records = lake.records(table)
        if note is None:
            records.append(rows)
        else:
            append_and_note(records.handle, lambda: records.append(rows), note)


@contextmanager
def _lock_for_append(lake: Lake, table: str) -> Iterator[None]:
    from loader.lake.locks import lock_table

    try:
        with _shared, lock_table(lake, table):
            yield
    except Timeout:
        raise TableError(
            f"another process has been writing {lake.schema}.{table} for a minute",
            where=f"table {table}",
            remedy="Run again: the next run records the batches that this run has published",
        ) from None


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

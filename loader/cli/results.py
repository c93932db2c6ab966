"""The results of commands as dataclasses, which :mod:`loader.api` returns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader.errors import LoaderError, one_error

if TYPE_CHECKING:
    from loader.lake.ledger import SyncRecord
    from loader.sync.runner import Outcome


@dataclass(frozen=True)
class TableResult:
    """The result of one table's sync. The ledger ``_cq_syncs`` contains the same values.

    Attributes:
        table: the table as `source.table`.
        status: ``synced``, ``nothing new``, ``recovered``, ``failed``, or ``locked`` if another run
            was writing to the table.
        batch: the number of the appended batch; None if nothing was appended.
        rows_read: the number of rows that the source returned, including redelivered rows.
        cursor: the stored cursor after the sync.
        rows_below_cursor, rows_at_cursor: the number of appended rows with a cursor below the last
            stored cursor, and the number with an equal cursor. A query for higher cursors would
            have missed these rows.
        rows_cursor_unmoved: how many of these rows are updates that did not change the cursor.
        complete_until: the time up to which the raw table contains all committed rows; None if
            unknown.
        error: the error if the table failed or was locked.
    """

    table: str
    status: str
    batch: int | None = None
    rows_read: int | None = None
    rows_appended: int | None = None
    rows_redelivered: int | None = None
    cursor: str | None = None
    seconds: float | None = None
    rows_below_cursor: int | None = None
    rows_at_cursor: int | None = None
    rows_cursor_unmoved: int | None = None
    complete_until: dt.datetime | None = None
    error: LoaderError | None = None


@dataclass(frozen=True)
class BuildResult:
    """The result of a `dbt build`.

    Attributes:
        exit_code: 0 on success, 1 if a node failed or nothing was selected, 2 if dbt did not
            finish.
        succeeded, warned, failed, skipped: the number of models, tests, seeds and snapshots with
            each result.
        failures: dbt's message for each failed node, keyed by node id.
        node_seconds: the execution time of each node, keyed by node id.
        error: the reason why dbt did not finish or selected nothing; None if there is none.
    """

    exit_code: int
    succeeded: int = 0
    warned: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: Mapping[str, str] = field(default_factory=dict)
    node_seconds: Mapping[str, float] = field(default_factory=dict)
    error: LoaderError | None = None

    @property
    def success(self) -> bool:
        """Returns whether dbt finished and no node failed."""
        return self.exit_code == 0


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        tables: the tables' results, sorted by name.
        errors: the distinct table and source errors.
        build: the result of `dbt build`; None if it did not run.
    """

    tables: tuple[TableResult, ...]
    errors: tuple[LoaderError, ...] = ()
    build: BuildResult | None = None

    @property
    def success(self) -> bool:
        """Returns whether all tables were synced and the build, if there was one, succeeded."""
        return not self.errors and (self.build is None or self.build.success)

    def table(self, name: str) -> TableResult:
        """Returns the result of the table `source.table`. Raises KeyError if there is none."""
        return {table.table: table for table in self.tables}[name]

    def raise_if_failed(self) -> None:
        """Raises an error if the run failed.

        Raises:
            LoaderError: if a table, a source or the build failed. If there are several errors, this
                error contains all of them.
        """
        if self.errors:
            raise one_error(self.errors, "run")
        if self.build is not None and not self.build.success:
            failed = "; ".join(f"{node}: {text}" for node, text in self.build.failures.items())
            raise self.build.error or LoaderError(failed or "it failed", where="dbt build")


@dataclass(frozen=True)
class CheckedTable:
    """A table that can be synced, with notes on its cursor and key."""

    table: str
    mode: str
    cursor: str | None
    primary_key: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: the tables that can be synced, and the distinct errors."""

    tables: tuple[CheckedTable, ...]
    errors: tuple[LoaderError, ...]

    @property
    def success(self) -> bool:
        return not self.errors


@dataclass(frozen=True)
class ReconciledTable:
    """The comparison of a table with its source.

    Attributes:
        status: ``equal``, ``differs``, ``repaired``, ``changed`` or ``skipped``.
        synced: the number of rows that were appended before the comparison.
        buckets_compared, buckets: the number of compared buckets, and the total number of buckets.
        rows: the number of the source's rows in the compared buckets.
        missed_updates, missed_rows, missed_deletes: the number of differences of each kind.
        repaired: the number of differences that were repaired.
        columns_left_out: the columns that were not compared.
        sample: the kind and key of each of a few differences.
        skipped: the reason why nothing was compared; empty if the table was compared.
    """

    table: str
    status: str
    synced: int | None
    buckets_compared: int | None
    buckets: int | None
    rows: int | None
    missed_updates: int | None
    missed_rows: int | None
    missed_deletes: int | None
    repaired: int | None
    columns_left_out: tuple[str, ...] | None
    sample: tuple[tuple[str, str], ...]
    skipped: str


@dataclass(frozen=True)
class ReconcileResult:
    """The result of a reconciliation: the compared tables, and the distinct errors."""

    tables: tuple[ReconciledTable, ...]
    errors: tuple[LoaderError, ...]

    @property
    def success(self) -> bool:
        """Returns whether the lake matches the source or was repaired, and no table failed."""
        differing = any(table.status in ("differs", "changed") for table in self.tables)
        return not self.errors and not differing


@dataclass(frozen=True)
class TableStatus:
    """The last attempt to sync a table, as recorded in the ledger.

    Attributes:
        rows_appended: the total over all syncs of the table.
        rows_below_cursor, rows_at_cursor, rows_cursor_unmoved: the total numbers of rows that a
            plain cursor query would have missed; see :class:`TableResult`.
        synced_at: the time of the last successful sync.
        log_bytes: the size of the log that the database retains for `sync_mode: cdc`.
        complete_until: the latest known time up to which the raw table contains all committed rows.
        verified_until: the time since which `loader reconcile` has compared every key, and found it
            equal or repaired it.
        unrepaired: the number of differences that the last comparison of each key found and that
            have not yet been repaired; None if the table was never compared.
    """

    table: str
    status: str
    cursor: str | None
    batch: int | None
    rows_appended: int | None
    rows_below_cursor: int | None
    rows_at_cursor: int | None
    rows_cursor_unmoved: int | None
    synced_at: dt.datetime | None
    log_bytes: int | None
    complete_until: dt.datetime | None
    verified_until: dt.datetime | None
    unrepaired: int | None
    error: str | None


def list_table_results(outcomes: Iterable[Outcome]) -> list[TableResult]:
    """Returns the results of the tables, sorted by name. Omits source errors."""
    return [
        TableResult(
            outcome.table,
            record.status,
            record.batch,
            record.rows_read,
            record.rows_appended,
            record.rows_redelivered,
            record.cursor_high,
            _seconds(record),
            record.rows_below_cursor,
            record.rows_at_cursor,
            record.rows_cursor_unmoved,
            record.complete_until,
            outcome.error,
        )
        for outcome in sorted(outcomes, key=lambda o: o.table)
        if (record := outcome.record) is not None
    ]


def list_errors(outcomes: Iterable[Outcome], ended: LoaderError | None = None) -> list[LoaderError]:
    """Returns the distinct errors. If a source is down, all its tables have the same error."""
    errors = [*(outcome.error for outcome in outcomes), ended]
    return list({str(error): error for error in errors if error is not None}.values())


def _seconds(record: SyncRecord) -> float | None:
    if record.started_at is None or record.finished_at is None:
        return None
    return round((record.finished_at - record.started_at).total_seconds(), 1)

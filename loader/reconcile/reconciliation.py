"""Reconciles tables by comparing contents, to find and repair changes that cursors miss.

Each table is first synced and then compared in the same snapshot of its source. Some snapshots
cannot change (`is_steady`), such as an exported PostgreSQL snapshot. The raw table then contains
all rows that a sync can deliver, so the sync has missed every row that still differs.

If the snapshot can change, or with `sync_mode: cdc`, a row that differs may have changed after the
sync. So the table is synced and compared again, in a later snapshot. The syncs have missed a row if
it still differs and has not changed in the source between the two comparisons.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from loader.lake.ledger import SyncRecord
from loader.reconcile.comparison import Bucket, Comparison
from loader.reconcile.differences import (
    Differences,
    confirm_differences,
    count_differences,
    keep_unchanged,
    materialize,
    narrow_share,
    sample_differences,
)
from loader.reconcile.history import (
    BUCKETS,
    LastComparison,
    VerificationHistory,
    VerifiedBucket,
    choose_buckets,
)
from loader.reconcile.repair import has_too_many_deletes, repair_differences
from loader.rows.window import Window
from loader.sources.contents import KeySelection
from loader.sources.interface import Snapshot
from loader.sync.protocol import sync_locked_table
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import FULL_REFRESH, TablePlan


@dataclass(frozen=True)
class Finding:
    """The result of comparing one table.

    Attributes:
        sample: the kind and key of each of at most :data:`loader.reconcile.differences.SAMPLE_SIZE`
            differences.
        left_out: columns that were not compared, as ``name (type)``.
        skipped: the reason why nothing was compared; empty if the table was compared.
        synced: the number of rows that syncs appended before or during the comparison.
        records: the ledger rows of the second sync and of the repair, if there were any.
        changed: the number of keys that appeared to be missing from the source, but were found
            later, with rows that differ from the raw table. Their buckets are not recorded as
            compared.
        distrusted: whether so many rows are missing from the source that they are not treated as
            deleted. Missed updates and missed rows are still repaired.
    """

    table: str
    buckets: int
    verified: tuple[VerifiedBucket, ...] = ()
    sample: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    skipped: str = ""
    synced: int = 0
    records: tuple[SyncRecord, ...] = ()
    changed: int = 0
    distrusted: bool = False

    def total(self, name: str) -> int:
        """Returns the sum of an attribute over all compared buckets."""
        return sum(getattr(bucket, name) for bucket in self.verified)

    @property
    def has_unrepaired(self) -> bool:
        """Returns whether a compared bucket has differences that were not repaired."""
        return any(bucket.has_unrepaired for bucket in self.verified)


@dataclass
class Reconciliation:
    """Reconciles tables. :func:`loader.sync.runner.run_tables` calls this object for each table.

    Attributes:
        repairs: whether to append differences to the raw table.
        allows_deletes: whether to treat any number of missing rows as deleted.
        per_run: the number of buckets to compare in one run; None compares all buckets.
    """

    repairs: bool = False
    allows_deletes: bool = False
    buckets: int = BUCKETS
    per_run: int | None = None
    _findings: dict[str, Finding] = field(default_factory=dict, init=False)

    @property
    def findings(self) -> list[Finding]:
        """One result for each table: the last one, if the table was retried."""
        return list(self._findings.values())

    def __call__(self, sync: SyncContext) -> SyncRecord | None:
        """Syncs, compares and optionally repairs a table, and records the result.

        If this fails, batches that were already published remain.
        """
        reason = explain_skip(sync.plan)
        if reason:
            self._add(Finding(sync.plan.name, self.buckets, skipped=reason))
            sync.lease.release()
            return None
        with sync.unlock_at_end():
            record = sync_locked_table(sync)
            finding = self.compare(sync)
            appended = finding.synced + (record.rows_appended or 0)
            self._add(replace(finding, synced=appended))
        return record

    def _add(self, finding: Finding) -> None:
        self._findings[finding.table] = finding

    def compare(self, sync: SyncContext, numbers: Sequence[int] | None = None) -> Finding:
        """Compares and optionally repairs a table that was just synced, and records the result.

        Args:
            numbers: the buckets to compare. The default is the `per_run` least recently compared
                buckets.
        """
        plan, lake = sync.plan, sync.lake
        began = time.monotonic()
        sync.report_phase("comparing")
        history = VerificationHistory(lake)
        if numbers is None:
            compared: Mapping[int, LastComparison] = {}
            if self.per_run is not None:  # if there is no limit, all buckets are compared
                found = history.last_comparisons(self.buckets, plan.lake_table)
                compared = found.get((plan.source, plan.lake_table), {})
            last_verified = {
                number: each.at
                for number, each in compared.items()
                if not (self.repairs and each.has_unrepaired)
            }
            numbers = choose_buckets(last_verified, self.buckets, self.per_run)
        buckets, differences = [Bucket(number, 0, 0, ()) for number in numbers], None
        second_sync: SyncRecord | None = None
        repair: SyncRecord | None = None
        with ExitStack() as stack:
            snapshot = sync.snapshot
            if plan.follows_log:  # queries must not read older rows than the sync did
                snapshot = stack.enter_context(snapshot.open_later(plan.table))
            comparison = open_comparison(sync, snapshot)
            left_out = comparison.contents.left_out
            if lake.exists(plan.lake_table):  # the table is missing if the source never had rows
                buckets, share = comparison.compare_buckets(self.buckets, numbers)
                if share is not None:
                    differences, second_sync = find_differences(sync, comparison, share)
        verified = [
            VerifiedBucket(
                sync.run_id,
                plan.source,
                plan.lake_table,
                bucket.number,
                self.buckets,
                sync.opened_at,
                bucket.rows_source,
                bucket.rows_snapshot,
                columns_left_out=", ".join(left_out) or None,
                key_columns=", ".join(plan.key),
            )
            for bucket in buckets
        ]
        appended = (second_sync.rows_appended or 0) if second_sync is not None else 0
        finding = Finding(plan.name, self.buckets, left_out=left_out, synced=appended)
        if differences is not None:
            verified = count_differences(verified, differences, self.buckets)
            finding = replace(
                finding,
                sample=sample_differences(plan, differences),
                changed=len(differences.changed),
                distrusted=not self.allows_deletes and has_too_many_deletes(verified),
            )
            if self.repairs:
                verified, repair = repair_differences(
                    sync, verified, differences, appends_deletes=not finding.distrusted
                )
            uncertain = {KeySelection(self.buckets).number_of(key) for key in differences.changed}
            verified = [bucket for bucket in verified if bucket.bucket not in uncertain]
        seconds = (time.monotonic() - began) / max(len(verified), 1)
        verified = [replace(bucket, seconds=seconds) for bucket in verified]
        sync.lease.confirm()
        history.append(verified)
        records = tuple(record for record in (second_sync, repair) if record is not None)
        return replace(finding, verified=tuple(verified), records=records)


def find_differences(
    sync: SyncContext, comparison: Comparison, share: KeySelection
) -> tuple[Differences | None, SyncRecord | None]:
    """Compares keys and confirms the differences.

    Returns:
        The confirmed differences and the ledger row of a second sync, each None if there is none.
    """
    plan = sync.plan
    sync.report_phase("comparing keys")
    candidates = materialize(comparison.compare_keys(share))
    narrowed = narrow_share(candidates, share)
    if narrowed is None:
        return None, None
    if sync.snapshot.is_steady(plan.table) and not plan.follows_log:
        return confirm_differences(comparison, sync.snapshot, candidates, narrowed), None
    with sync.snapshot.open_later(plan.table) as later:
        record = sync_locked_table(replace(sync, snapshot=later))
        comparison = open_comparison(sync, later)
        candidates = materialize(keep_unchanged(candidates, comparison.compare_keys(narrowed)))
        narrowed = narrow_share(candidates, narrowed)
        if narrowed is None:
            return None, record
        return confirm_differences(comparison, later, candidates, narrowed), record


def open_comparison(sync: SyncContext, snapshot: Snapshot) -> Comparison:
    """Returns a comparison of the raw table with the rows that the spec selects in a snapshot."""
    plan = sync.plan
    wanted = Window(plan.cursor, plan.initial, nulls=plan.options.null_cursor != "exclude")
    contents = snapshot.contents(
        sync.lake.spark, plan.table, plan.key, wanted, unique=plan.is_authoritative
    )
    return Comparison(plan, sync.lake, contents, wanted, snapshot.missing_means_deleted)


def explain_skip(plan: TablePlan) -> str:
    """Returns the reason why a table cannot be reconciled, with a remedy, or ""."""
    if plan.mode == FULL_REFRESH:
        return (
            "sync_mode: full_refresh reads all rows in each run, so there is nothing to reconcile"
        )
    if not plan.key:
        return (
            "it has no primary key to compare rows by. "
            f"Set one in table_options.{plan.table.ref.name}.primary_key"
        )
    return ""

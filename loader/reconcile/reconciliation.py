"""`loader reconcile`: compares contents to find changes that cursors miss, and repairs them.

A table is synced first, then compared in the same snapshot of its source. If that snapshot is
steady (PostgreSQL's exported snapshot), the lake then has everything that cursors can bring, and
rows that still differ were missed. If it is not, a row that differs may just be late: the table is
synced once more, and only rows count that still differ and that the source has not changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.ledger import SyncRecord, now
from loader.lake.raw_table import plan_drift
from loader.reconcile.comparison import GONE, Bucket, Comparison, key_names
from loader.reconcile.differences import (
    Differences,
    certain,
    count_differences,
    materialize,
    narrow_share,
    sample,
    still,
)
from loader.reconcile.verified_buckets import Reconciled, VerifiedBucket, due
from loader.rows.bookkeeping import DELETED, HASH, Stamp, stamp_rows
from loader.rows.row_hash import row_hash
from loader.rows.version_order import quote_name
from loader.rows.window import Bounds, Window
from loader.sources.contents import KeySelection
from loader.sync.engine import sync_locked_table
from loader.sync.plan_window import PlannedBatch
from loader.sync.recover import PriorState
from loader.sync.table_plan import FULL_REFRESH, TablePlan
from loader.sync.table_sync import TableSync


@dataclass(frozen=True)
class Finding:
    """The result of comparing one table.

    Attributes:
        buckets: how many buckets the table's keys are divided into.
        verified: the buckets that were compared.
        sample: some keys that differ, with the kind of difference; at most
            :data:`loader.reconcile.differences.SAMPLE`.
        left_out: columns that were not compared, as ``name (type)``.
        skipped: why nothing was compared.
        synced: rows that the table's syncs appended before or during the comparison.
        changed: keys that were gone in the comparison, but there again with other rows in the
            second look. Their buckets count as not verified.
        distrusted: more of the table's rows are gone than the loader takes for deleted by default.
    """

    table: str
    buckets: int
    verified: tuple[VerifiedBucket, ...] = ()
    sample: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    skipped: str = ""
    synced: int = 0
    changed: int = 0
    distrusted: bool = False

    def total(self, name: str) -> int:
        """Sums a count over all buckets that were compared."""
        return sum(getattr(bucket, name) for bucket in self.verified)

    @property
    def has_unrepaired(self) -> bool:
        """Whether differences remain."""
        return any(bucket.all_missed and not bucket.repaired for bucket in self.verified)


@dataclass
class Reconciliation:
    """The work that :meth:`loader.sync.runner.run_tables` does on each table to reconcile it.

    Attributes:
        repairs: whether to append differences to raw.
        allows_deletes: whether to take missing rows for deleted, however many there are.
        buckets: how many buckets a table's keys are divided into.
        per_run: how many of them to compare in one run; None is all.
        findings: filled during the run, one for each table.
    """

    repairs: bool = False
    allows_deletes: bool = False
    buckets: int = 64
    per_run: int | None = None
    findings: list[Finding] = field(default_factory=list)

    def __call__(self, sync: TableSync) -> SyncRecord | None:
        """Syncs a table, compares it, repairs it if asked to, and records the result.

        Raises:
            TableError: the table could not be synced, read or repaired; what was published stays.
        """
        why = unfit(sync.plan)
        if why:
            self.findings.append(Finding(sync.plan.name, self.buckets, skipped=why))
            sync.lease.release()
            return None
        with sync.unlock_at_end():
            record = sync_locked_table(sync)
            finding = self._compare(sync)
            appended = finding.synced + (record.rows_appended or 0)
            self.findings.append(replace(finding, synced=appended))
        return record

    def _compare(self, sync: TableSync) -> Finding:
        plan, lake = sync.plan, sync.lake
        sync.report_phase("comparing")
        wanted = Window(plan.cursor, plan.initial, nulls=plan.options.null_cursor != "exclude")
        contents = sync.snapshot.contents(
            lake.spark, plan.table, plan.key, wanted, unique=plan.is_authoritative
        )
        reconciled = Reconciled(lake)
        last = {}
        if self.per_run is not None:  # else all are due
            last = reconciled.last(plan.source, plan.lake_table, self.buckets)
        chosen = due(last, self.buckets, self.per_run)
        buckets, share = [Bucket(number, 0, 0, ()) for number in chosen], None
        comparison = Comparison(plan, lake, contents, wanted, sync.snapshot.missing_means_deleted)
        if lake.exists(plan.lake_table):  # else the source had nothing to load
            buckets, share = comparison.buckets(self.buckets, chosen)
        began = now()
        verified = [
            VerifiedBucket(
                sync.run_id,
                plan.source,
                plan.lake_table,
                bucket.number,
                self.buckets,
                began,
                bucket.rows_source,
                bucket.rows_snapshot,
                columns_left_out=", ".join(contents.left_out) or None,
            )
            for bucket in buckets
        ]
        found = Finding(plan.name, self.buckets, left_out=contents.left_out)
        if share is not None:
            differences, appended = differing(sync, comparison, share)
            found = replace(found, synced=appended)
            if differences is not None:
                verified = count_differences(verified, differences, self.buckets)
                found = replace(
                    found,
                    sample=sample(plan, differences),
                    changed=len(differences.changed),
                    distrusted=not self.allows_deletes and too_many_deletes(verified),
                )
                if self.repairs and not found.distrusted:
                    verified = repair_differences(sync, verified, differences)
                unsure = {KeySelection(self.buckets).number_of(key) for key in differences.changed}
                verified = [one for one in verified if one.bucket not in unsure]
        sync.lease.confirm()
        reconciled.append(verified)
        return replace(found, verified=tuple(verified))


def differing(
    sync: TableSync, comparison: Comparison, share: KeySelection
) -> tuple[Differences | None, int]:
    """Returns the confirmed differences (None if none), and how many rows a second sync appended.

    Args:
        share: the keys to look at.
    """
    appended = 0
    sync.report_phase("comparing keys")
    candidates = materialize(comparison.differences(share))
    few = narrow_share(candidates, share)
    if few is not None and not sync.snapshot.is_steady(sync.plan.table):
        appended = sync_locked_table(sync).rows_appended or 0
        candidates = materialize(still(candidates, comparison.differences(few)))
        few = narrow_share(candidates, few)
    if few is None:
        return None, appended
    return certain(comparison, sync.snapshot, candidates, few), appended


def repair_differences(
    sync: TableSync, verified: list[VerifiedBucket], differences: Differences
) -> list[VerifiedBucket]:
    """Appends what differs; returns the buckets, marked as repaired."""
    missed = sum(bucket.all_missed for bucket in verified)
    if not missed:
        return verified
    sync.report_phase("repairing", missed)
    done = repair(sync, differences.rows, differences.gone, missed)
    return [
        replace(one, repaired=True, batch=done.batch) if one.all_missed else one for one in verified
    ]


def too_many_deletes(verified: Sequence[VerifiedBucket]) -> bool:
    """Whether too many rows are gone to trust the source: all, or more than a tenth."""
    rows = sum(one.rows_snapshot for one in verified)
    deletes = sum(one.missed_deletes for one in verified)
    return deletes > 0 and (deletes >= rows or deletes * 10 > rows)


def unfit(plan: TablePlan) -> str:
    """Returns why a table cannot be reconciled, and what to do; empty if it can."""
    if plan.mode == FULL_REFRESH:
        return "sync_mode: full_refresh reads everything at each run: there is nothing to reconcile"
    if not plan.key:
        return (
            "it has no primary key to compare rows by. "
            f"Name one in table_options.{plan.table.ref.name}.primary_key"
        )
    return ""


RECONCILE = "reconcile"
"""The mode of its ledger row."""

_ONE_FILE = 100_000


def repair(sync: TableSync, rows: DataFrame, gone: DataFrame, count: int) -> SyncRecord:
    """Appends what a comparison found, by the steps of a sync.

    The table's lock stays held.

    Args:
        rows: missed updates and missed rows, in the table's columns.
        gone: the keys of missed deletes.
        count: how many there are of both together.

    Returns the ledger row that it wrote.

    Raises:
        TableError: nothing was published.
    """

    def build_rows(stamp: Stamp) -> DataFrame:
        return _build_rows(sync.plan, rows, gone, count, stamp)

    def plan_repair(sync: TableSync, prior: PriorState) -> PlannedBatch:
        lake, plan = sync.lake, sync.plan
        return PlannedBatch(
            Window(),
            Bounds(count),
            plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy),
            mode=RECONCILE,
            state=replace(prior.state, batch=prior.next_batch),
            idle_state=prior.state,
            correction=build_rows,
        )

    done = sync_locked_table(sync, plan_repair)
    if done.batch is None:
        raise TableError(
            "the differences were gone before they could be appended",
            where=f"table {sync.plan.name}",
            remedy="Reconcile again",
        )
    return done


def _build_rows(
    plan: TablePlan, rows: DataFrame, gone: DataFrame, count: int, stamp: Stamp
) -> DataFrame:
    table = plan.table.schema
    names = [f.col(quote_name(name)) for name in table.names]
    full = rows.select(*names, f.lit(False).alias(GONE)).union(_tombstones(plan, gone))
    # In one partition: in a union, both sides would number their rows from the same start.
    full = full.coalesce(1) if count <= _ONE_FILE else full
    return (
        stamp_rows(full, stamp)
        .withColumn(HASH, row_hash(table))
        .withColumn(DELETED, f.col(DELETED) | f.col(GONE))
        .drop(GONE)
    )


def _tombstones(plan: TablePlan, gone: DataFrame) -> DataFrame:
    """Makes tombstones: rows that hold only their key.

    No values: what the source has deleted must not be written again. No cursor: a row that is
    created again could rank below its own tombstone.
    """
    keys = dict(zip(plan.key, key_names(plan), strict=True))
    return gone.select(
        *(
            (f.col(keys[column.name]) if column.name in keys else f.lit(None))
            .cast(column.dataType)
            .alias(column.name)
            for column in plan.table.schema.fields
        ),
        f.lit(True).alias(GONE),
    )

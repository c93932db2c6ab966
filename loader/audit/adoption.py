"""Takes over a table that another tool loaded, as the first batch of a raw table.

An adoption is a first load whose rows come from the copy. The copy is compared with the source in
the snapshot in which the sync planned its window. Rows that match are taken from the copy, and only
rows that differ are read from the source. The copy is read again when the batch is staged. The
number and checksums of its rows must then be the same as in the comparison, because another program
may have changed the copy in between. One commit contains the batch and the state of a first load.
So the next run continues at its cursor and finds late rows as after any first load, and an adoption
that is interrupted has published either everything or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from loader.audit.copied_table import CopyOptions, Open, open_copy
from loader.audit.copy_comparison import VALUES, CopyComparison
from loader.audit.findings import EXTRA
from loader.errors import TableError
from loader.lake.ledger import SyncRecord
from loader.reconcile.comparison import KIND
from loader.reconcile.differences import materialize, narrow_share
from loader.rows.bookkeeping import stamp_rows
from loader.rows.version_order import quote_name
from loader.rows.window import Window
from loader.sources.checksum import spark_total
from loader.sources.contents import BUCKET, CHECKSUM, COUNT, KEY, WANTED, Contents, KeySelection
from loader.sync.plan_window import PlannedBatch, plan_window
from loader.sync.protocol import sync_table
from loader.sync.recover import PriorState
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import FULL_REFRESH, TablePlan

ADOPTION = "adoption"
_BUCKETS = 256


@dataclass(frozen=True)
class Adopted:
    """The result of an adoption.

    Attributes:
        rows: the number of rows in the copy, without deleted rows and old versions.
        differences: the number of rows for each kind of difference. These rows were read from the
            source, or left out if the source does not have them.
    """

    table: str
    rows: int
    differences: Mapping[str, int]


@dataclass
class Adoption:
    """The work that :func:`loader.sync.runner.run_tables` calls for the table to adopt.

    Attributes:
        name: the copy's name, in the form that `loader audit` accepts.
        find_rows: opens the copy in a Spark session.
        adopted: the result; None until the adoption has finished.
    """

    name: str
    find_rows: Callable[[SparkSession, str], Open]
    options: CopyOptions
    adopted: Adopted | None = field(default=None, init=False)

    def __call__(self, sync: SyncContext) -> SyncRecord:
        """Adopts the copy, and returns the ledger row of the batch.

        Raises a TableError if the table cannot be adopted. Nothing was published then.
        """
        with ExitStack() as opened:  # the rows of the copy are read until the batch is published

            def plan_adoption(sync: SyncContext, prior: PriorState) -> PlannedBatch:
                _check_adoptable(sync.plan, prior)
                planned = plan_window(sync, prior)
                rows, check_copied = self._combine(sync, opened)
                return replace(
                    planned,
                    mode=ADOPTION,
                    correction=lambda stamp: stamp_rows(rows, stamp),
                    check_staged=check_copied,
                )

            return sync_table(sync, plan_adoption)

    def _combine(
        self, sync: SyncContext, opened: ExitStack
    ) -> tuple[DataFrame, Callable[[], None]]:
        """Returns the rows in the source's snapshot, taken from the copy as far as possible.

        The returned function checks, once the rows are staged, that the copy has not changed.
        """
        plan, spark = sync.plan, sync.lake.spark
        copy = open_copy(
            self.name, self.find_rows(spark, self.name), plan.table.schema, self.options
        )
        wanted = Window(plan.cursor, plan.initial, nulls=plan.options.null_cursor != "exclude")
        contents = _StoredContents(
            sync.snapshot.contents(
                spark, plan.table, plan.key, wanted, unique=plan.is_authoritative
            )
        )
        _refuse_unproven(plan, self.name, [*copy.not_compared, *contents.left_out])
        cursor = plan.cursor.name if plan.cursor else None
        look = CopyComparison(contents, opened.enter_context(copy.open()), copy, plan.table, cursor)
        whole = KeySelection(_BUCKETS)
        sync.report_phase("comparing")
        (_, rows), share = look.compare_buckets(whole)
        names = plan.table.schema.names
        copied = look.copied_rows(whole)
        differences: dict[str, int] = {}
        equal = contents.sum_equal()
        if share is not None:
            sync.report_phase("comparing keys")
            candidates = materialize(look.compare_keys(share))
            equal = contents.sum_equal(share, candidates)
            share = narrow_share(candidates, share)
        if share is not None:
            kinds = candidates.groupBy(KIND).count().collect()
            differences = {row[KIND]: row["count"] for row in kinds}
            sync.report_phase("reading differences", sum(differences.values()))
            contents.check_storable(share)
            changed = candidates.where(f.col(KIND) != EXTRA).select(KEY)
            patch = materialize(contents.rows(share).join(changed, KEY, "left_semi"))
            copied = copied.join(candidates, KEY, "left_anti")
        seen = Observation()
        copied = copied.observe(
            seen,
            f.count(f.lit(1)).alias("rows"),
            spark_total(f.col(CHECKSUM)).alias("checksum"),
        )
        combined = copied.select(*(f.col(VALUES).getField(name).alias(name) for name in names))
        if share is not None:
            combined = combined.unionByName(patch.select(*map(f.col, map(quote_name, names))))
        self.adopted = Adopted(plan.name, rows, differences)

        def check_copied() -> None:
            staged = seen.get
            if (staged["rows"], int(staged["checksum"] or 0)) != equal:
                raise TableError(
                    f"{self.name} was changed while its rows were compared and read",
                    where=f"table {plan.name}",
                    remedy="Nothing was published. Run again while no program writes to it",
                )

        return combined, check_copied


class _StoredContents(Contents):
    """A source's rows. Stores their sums and hashes when they are compared."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(contents.key, contents.checksum_columns, contents.left_out)
        self._contents = contents

    def sums(self, share: KeySelection, parts: int) -> DataFrame:
        self._sums = materialize(self._contents.sums(share, parts))
        return self._sums

    def hashes(self, share: KeySelection) -> DataFrame:
        self._hashes = materialize(self._contents.hashes(share))
        return self._hashes

    def rows(self, share: KeySelection) -> DataFrame:
        return self._contents.rows(share)

    def check_storable(self, share: KeySelection) -> None:
        self._contents.check_storable(share)

    def sum_equal(
        self, share: KeySelection | None = None, candidates: DataFrame | None = None
    ) -> tuple[int, int]:
        """Returns how many rows match the copy, and the sum of their checksums.

        Args:
            share: a key selection that contains all differences; None if there are none.
            candidates: the keys that differ.
        """
        checksum = f.col(CHECKSUM).cast("decimal(38, 0)").alias(CHECKSUM)
        equal = self._sums.select(BUCKET, COUNT, checksum)
        if share is not None and candidates is not None:
            rest = self._hashes.where(WANTED).join(candidates, KEY, "left_anti")
            part = f.pmod(f.col(BUCKET), f.lit(share.of))
            is_equal = ~part.isin(*share.buckets) if share.buckets is not None else f.lit(False)
            rest = rest.select(f.lit(None).cast("bigint"), f.lit(1).cast("bigint"), checksum)
            equal = equal.where(is_equal).unionAll(rest)
        [(rows, total)] = equal.agg(f.sum(COUNT), f.sum(CHECKSUM)).collect()
        return int(rows or 0), int(total or 0)


def _check_adoptable(plan: TablePlan, prior: PriorState) -> None:
    where = f"table {plan.name}"
    if prior.state.batch:
        raise TableError(
            "the raw table already has batches, so there is nothing to adopt",
            where=where,
            remedy="To compare the raw table with the source, run `loader reconcile --select "
            f"{plan.name}`",
        )
    if plan.follows_log or plan.mode == FULL_REFRESH:
        raise TableError(
            f"a table with `sync_mode: {plan.options.sync_mode}` cannot be adopted, because its "
            "first load must read the source",
            where=where,
            remedy="Adopt it with `sync_mode: incremental` and a cursor_field; then change "
            "sync_mode, if you want to",
        )
    if not plan.key:
        raise TableError(
            "without a primary key, the copy's rows cannot be compared with the source's rows",
            where=where,
            remedy=f"Set table_options.{plan.table.ref.name}.primary_key, or use `loader run`",
        )


def _refuse_unproven(plan: TablePlan, copy: str, columns: list[str]) -> None:
    """Refuses a copy whose values in some columns cannot be compared with the source's values."""
    if columns:
        raise TableError(
            f"these columns of {copy} cannot be proved equal to the source's: {', '.join(columns)}",
            where=f"table {plan.name}",
            remedy="Exclude them with the `columns` option, or load the table with `loader run`",
        )

"""Determines from past comparisons up to which time each table is verified.

The dbt package's macro `_verified_tables` computes the same `verified_until`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.lake.folder_tables import FolderTables
from loader.lake.ledger import TABLE
from loader.lake.system_tables import (
    HAS_UNREPAIRED,
    RECONCILED,
    describe_remedy,
    report_damage,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from loader.lake.lake import Lake

_RELOADS = ("full_refresh", "adoption")
"""The ledger's `mode` for syncs that load all rows again."""

_SYNCS = {
    "source_name": "string",
    "table_name": "string",
    "batch": "long",
    "mode": "string",
    "started_at": "timestamptz",
    "run_id": "string",
}
_COMPARISONS = {
    "run_id": "string",
    "source_name": "string",
    "table_name": "string",
    "bucket": "long",
    "buckets": "long",
    "verified_at": "timestamptz",
    "missed_updates": "long",
    "missed_rows": "long",
    "missed_deletes": "long",
    "repaired": "boolean",
    "batch": "long",
    "columns_left_out": "string",
    "key_columns": "string",
}
_BUCKET = (
    "source_name",
    "table_name",
    "buckets",
    "bucket",
    "columns_left_out",
    "key_columns",
)


@dataclass(frozen=True)
class TableComparison:
    """A summary of a table's comparisons by `loader reconcile` and by the `reconcile` option.

    Attributes:
        verified_until: a time in microseconds. Since then, each key has been compared at least once
            and either matched or was repaired. None if there is no such time. The macro
            `_verified_tables` defines it.
        unrepaired: the number of differences found by each key's last comparison that have not been
            repaired.
    """

    verified_until: int | None
    unrepaired: int


@dataclass(frozen=True)
class _ComparedBucket:
    """The comparisons of a bucket that used the same key and left out the same columns.

    Attributes:
        verified_at: the time of the last comparison that verified the bucket; None if none did.
        unrepaired: the number of differences that the last comparison found but did not repair.
    """

    source_name: str
    table_name: str
    buckets: int
    bucket: int
    columns_left_out: str | None
    key_columns: str | None
    verified_at: int | None
    newest_at: int
    unrepaired: int


class FolderComparisons:
    """Reads the comparisons from a lake in a local folder."""

    def __init__(self, tables: FolderTables) -> None:
        self.tables = tables

    def by_table(self) -> dict[tuple[str, str], TableComparison]:
        """Returns a summary for each table that was ever compared, keyed by source and table."""
        rows = self.tables.read(RECONCILED, _COMPARISONS)
        if rows is None:
            return {}
        import pyarrow as pa
        import pyarrow.compute as pc

        micros = rows["verified_at"].cast(pa.int64())
        missed = pc.add(rows["missed_updates"], pc.add(rows["missed_rows"], rows["missed_deletes"]))
        unrepaired = pc.if_else(pc.is_null(rows["batch"]), missed, rows["missed_deletes"])
        unrepaired = pc.if_else(rows["repaired"], 0, unrepaired)
        rows = rows.append_column("at", micros).append_column("unrepaired", unrepaired)
        is_equal = pc.or_(rows["repaired"], pc.equal(missed, 0))
        rows = self._join_reloads(rows.append_column("is_equal", is_equal))
        is_later = pc.or_kleene(
            pc.is_null(rows["began_at"]), pc.greater_equal(rows["at"], rows["began_at"])
        )
        is_later = pc.or_kleene(is_later, pc.equal(rows["run_id"], rows["reload_run_id"]))
        counts = pc.and_(rows["is_equal"], pc.fill_null(is_later, False))
        verified = pc.if_else(counts, rows["at"], None)
        newest = (
            rows.append_column("verified", verified)
            .sort_by("at")
            .group_by(_BUCKET, use_threads=False)
            .aggregate([("verified", "max"), ("at", "max"), ("unrepaired", "last")])
        )
        columns = (*_BUCKET, "verified_max", "at_max", "unrepaired_last")
        return _summarize(
            _ComparedBucket(*(row[name] for name in columns)) for row in newest.to_pylist()
        )

    def _join_reloads(self, comparisons: pa.Table) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        syncs = self.tables.read(TABLE, _SYNCS)
        if syncs is None:
            nulls = pa.nulls(comparisons.num_rows, pa.int64())
            comparisons = comparisons.append_column("began_at", nulls)
            return comparisons.append_column("reload_run_id", nulls.cast(pa.string()))
        is_reload = pc.is_in(syncs["mode"], pa.array(_RELOADS))
        syncs = syncs.filter(pc.and_(is_reload, pc.is_valid(syncs["batch"])))
        syncs = syncs.append_column("began_at", syncs["started_at"].cast(pa.int64()))
        newest = (
            syncs.sort_by("began_at")
            .group_by(["source_name", "table_name"], use_threads=False)
            .aggregate([("began_at", "last"), ("run_id", "last")])
            .select(["source_name", "table_name", "began_at_last", "run_id_last"])
            .rename_columns(["source_name", "table_name", "began_at", "reload_run_id"])
        )
        return comparisons.join(newest, ["source_name", "table_name"])


class LakeComparisons:
    """Reads the comparisons from any lake with Spark."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def by_table(self) -> dict[tuple[str, str], TableComparison]:
        """Returns a summary for each table that was ever compared, keyed by source and table."""
        remedy = describe_remedy("Syncs continue; comparisons", RECONCILED)
        with report_damage(self.lake, RECONCILED, remedy):
            if not self.lake.exists(RECONCILED):
                return {}
            # A table that an older loader created lacks this column until the next comparison.
            existing = self.lake.frame(RECONCILED).columns
            key_columns = "key_columns" if "key_columns" in existing else "cast(null as string)"
            rows = self.lake.spark.sql(
                f"""
                select
                    compared.source_name,
                    compared.table_name,
                    buckets,
                    bucket,
                    columns_left_out,
                    {key_columns} as key_columns,
                    unix_micros(
                        max(verified_at) filter (
                            where not {HAS_UNREPAIRED}
                                and (
                                    began_at is null
                                    or verified_at >= began_at
                                    or compared.run_id = reloads.run_id
                                )
                        )
                    ) as verified_at,
                    unix_micros(max(verified_at)) as newest_at,
                    max_by(
                        case
                            when repaired then 0
                            when batch is not null then missed_deletes
                            else missed_updates + missed_rows + missed_deletes
                        end,
                        verified_at
                    ) as unrepaired
                from {self.lake.name(RECONCILED)} as compared
                left join ({self._select_reloads()}) as reloads
                    on compared.source_name = reloads.source_name
                    and compared.table_name = reloads.table_name
                group by compared.source_name, compared.table_name, buckets, bucket,
                    columns_left_out, {key_columns}
                """
            ).collect()
        return _summarize(_ComparedBucket(*row) for row in rows)

    def _select_reloads(self) -> str:
        if not self.lake.exists(TABLE):
            return (
                "select '' as source_name, '' as table_name, null as began_at, '' as run_id "
                "where false"
            )
        return f"""
            select
                source_name,
                table_name,
                max(started_at) as began_at,
                max_by(run_id, started_at) as run_id
            from {self.lake.name(TABLE)}
            where mode in {_RELOADS} and batch is not null
            group by source_name, table_name
        """


def _summarize(buckets: Iterable[_ComparedBucket]) -> dict[tuple[str, str], TableComparison]:
    tables: dict[tuple[str, str], list[_ComparedBucket]] = {}
    for bucket in buckets:
        tables.setdefault((bucket.source_name, bucket.table_name), []).append(bucket)
    return {
        name: TableComparison(_find_verified_until(each), _count_unrepaired(each))
        for name, each in tables.items()
    }


def _find_verified_until(buckets: Sequence[_ComparedBucket]) -> int | None:
    """Returns the latest time since which all buckets of one division have been verified.

    Comparisons belong to one division if they used the same number of buckets and left out the same
    columns.
    """
    key = max(buckets, key=lambda each: each.newest_at).key_columns
    divisions: dict[tuple[int, str | None], list[int]] = {}
    for each in buckets:
        if each.verified_at is not None and each.key_columns == key:
            division = divisions.setdefault((each.buckets, each.columns_left_out), [])
            division.append(each.verified_at)
    complete = (min(times) for (count, _), times in divisions.items() if len(times) == count)
    return max(complete, default=None)


def _count_unrepaired(buckets: Sequence[_ComparedBucket]) -> int:
    """Returns the number of differences that the buckets' last comparisons left unrepaired.

    If the number of buckets has changed, only the buckets of the latest comparison count.
    """
    ordered = sorted(buckets, key=lambda each: each.newest_at)
    newest = {each.bucket: each for each in ordered if each.buckets == ordered[-1].buckets}
    return sum(each.unrepaired for each in newest.values())

"""Reads and writes ``_cq_reconciled``, the append-only history of comparisons."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from loader import __version__
from loader.lake.lake import Lake
from loader.lake.locks import lock_table
from loader.lake.system_tables import (
    HAS_UNREPAIRED,
    RECONCILED,
    add_missing_columns,
    append_rows,
    describe_remedy,
    ensure_table,
    reports_damage,
)
from loader.rows.literal import text_literal

TABLE = RECONCILED
BUCKETS = 64
"""The default number of buckets into which a table's keys are divided."""
REMEDY = describe_remedy("Syncs continue; comparisons", TABLE)
_reports_damage = reports_damage(TABLE, REMEDY)

_TYPES = {
    "run_id": "string",
    "source_name": "string",
    "table_name": "string",
    "columns_left_out": "string",
    "key_columns": "string",
    "loader_version": "string",
    "verified_at": "timestamp",
    "repaired": "boolean",
    "seconds": "double",
}


@dataclass(frozen=True)
class VerifiedBucket:
    """A compared bucket, stored as a row in ``_cq_reconciled``.

    The table's columns are these fields, in this order.

    Attributes:
        bucket: the bucket's number: the hash of a key modulo `buckets`.
        verified_at: a time in UTC. The compared version of the rows is not older than this time.
        rows_source: the number of rows in the source that the spec selects.
        rows_snapshot: the number of keys in the raw table before a repair, except keys whose newest
            version is a tombstone.
        repaired: whether all differences were appended to the raw table; false if there were none.
        batch: the batch that contains the appended differences. If there is a batch and `repaired`
            is false, all differences except the missed deletes were appended.
        columns_left_out: columns that were not compared; None if all columns were compared.
        seconds: the duration of the comparison and the repair, divided by the number of compared
            buckets.
        key_columns: the names of the key columns, in the order in which they were hashed.
    """

    run_id: str
    source_name: str
    table_name: str
    bucket: int
    buckets: int
    verified_at: dt.datetime
    rows_source: int
    rows_snapshot: int
    missed_updates: int = 0
    missed_rows: int = 0
    missed_deletes: int = 0
    repaired: bool = False
    batch: int | None = None
    columns_left_out: str | None = None
    loader_version: str = __version__
    seconds: float | None = None
    key_columns: str | None = None

    @property
    def all_missed(self) -> int:
        return self.missed_updates + self.missed_rows + self.missed_deletes

    @property
    def all_repaired(self) -> int:
        """The number of appended differences."""
        if self.batch is None:
            return 0
        return self.all_missed - (0 if self.repaired else self.missed_deletes)

    @property
    def has_unrepaired(self) -> bool:
        """Returns whether differences were found but not repaired."""
        return bool(self.all_missed) and not self.repaired


@dataclass(frozen=True)
class LastComparison:
    """The last comparison of a bucket.

    Attributes:
        at: the time of the comparison in seconds since 1970.
        seconds: the bucket's share of the comparison's duration; 0 if unknown.
        rows: the number of the bucket's keys in the raw table (`VerifiedBucket.rows_snapshot`).
        has_unrepaired: whether differences were found but not repaired.
    """

    at: float
    seconds: float
    rows: int
    has_unrepaired: bool = False


class VerificationHistory:
    """Reads and writes ``_cq_reconciled`` in one lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    @_reports_damage
    def append(self, verified: Sequence[VerifiedBucket]) -> None:
        """Durably appends rows in one commit. Creates the table if it does not exist."""
        types = {f.name: _TYPES.get(f.name, "bigint") for f in fields(VerifiedBucket)}
        columns = ", ".join(f"{name} {type_}" for name, type_ in types.items())
        add_missing_columns(self.lake, TABLE, ensure_table(self.lake, TABLE, columns), types)
        append_rows(self.lake, TABLE, [asdict(row) for row in verified])

    @_reports_damage
    def prune(self, keep: int) -> int:
        """Deletes all but the `keep` newest rows per bucket. Returns the number of deleted rows.

        :func:`choose_buckets` and the dbt test `reconciled_recently` read only the newest row.
        """
        bucket = ("source_name", "table_name", "buckets", "bucket")
        floors = f"""
            select {", ".join(bucket)}, verified_at as floor
            from (
                select
                    *,
                    row_number() over (
                        partition by {", ".join(bucket)} order by verified_at desc, run_id desc
                    ) as age
                from {self.lake.name(TABLE)}
            )
            where age = {keep}
        """
        same = " and ".join(f"verified.{name} = floors.{name}" for name in bucket)
        older = f"{same} and verified.verified_at < floors.floor"
        name = f"{self.lake.name(TABLE)} as verified"
        with lock_table(self.lake, TABLE):
            [row] = self.lake.spark.sql(
                f"select count(*) as n from {name} inner join ({floors}) as floors on {older}"
            ).collect()
            if row["n"]:
                self.lake.spark.sql(
                    f"merge into {name} using ({floors}) as floors on {older} "
                    "when matched then delete"
                )
        return int(row["n"])

    @_reports_damage
    def last_comparisons(
        self, buckets: int, table_name: str | None = None
    ) -> dict[tuple[str, str], dict[int, LastComparison]]:
        """Returns the last comparison of each bucket, keyed by source and table.

        Args:
            buckets: the number of buckets. Comparisons with a different number are ignored.
            table_name: the only table to read; None reads all tables.
        """
        if not self.lake.exists(TABLE):
            return {}
        # A table that an older loader created lacks this column until the next comparison.
        seconds = "seconds" if "seconds" in self.lake.frame(TABLE).columns else "null"
        rows = self.lake.spark.sql(
            f"""
            select
                source_name,
                table_name,
                bucket,
                unix_micros(max(verified_at)) / 1e6 as at,
                max_by(coalesce({seconds}, 0D), verified_at) as seconds,
                max_by(rows_snapshot, verified_at) as rows,
                max_by({HAS_UNREPAIRED}, verified_at) as has_unrepaired
            from {self.lake.name(TABLE)}
            where buckets = {buckets}
                {f"and table_name = {text_literal(table_name)}" if table_name else ""}
            group by source_name, table_name, bucket
            """
        ).collect()
        found: dict[tuple[str, str], dict[int, LastComparison]] = {}
        for row in rows:
            table = found.setdefault((row["source_name"], row["table_name"]), {})
            table[row["bucket"]] = LastComparison(
                row["at"], row["seconds"], row["rows"], row["has_unrepaired"]
            )
        return found


def choose_buckets(
    last_verified: Mapping[int, float], buckets: int, per_run: int | None
) -> tuple[int, ...]:
    """Returns the numbers of `per_run` buckets, or of all buckets, in ascending order.

    Chooses those that were never compared, then those least recently compared.
    """
    order = sorted(range(buckets), key=lambda number: (last_verified.get(number, -1), number))
    return tuple(sorted(order[:per_run]))

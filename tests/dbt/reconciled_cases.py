"""Cases of the generic test `reconciled_recently`: rows of `_cq_reconciled` and the result."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.lake.lake import Lake
from loader.reconcile.history import VerificationHistory, VerifiedBucket
from tests.dbt.rawtables import RawSchema

NONE: tuple[tuple[int, int, float, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True)
class ReconciledCase:
    """One raw table and the test of it.

    Args:
        verified: for each compared bucket: its number, the number of buckets, age in hours, counts.
        status: dbt's status.
        rows: all expected failing rows, column by column.
        arguments: the test's arguments.
        reloaded: how many hours ago a full refresh began.
    """

    verified: tuple[tuple[int, int, float, Mapping[str, Any]], ...] = NONE
    status: str = "pass"
    rows: tuple[Mapping[str, Any], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reloaded: float | None = None


def _all(buckets: int, hours: float) -> tuple[tuple[int, int, float, Mapping[str, Any]], ...]:
    return tuple((number, buckets, hours, {}) for number in range(buckets))


CASES = {
    "reconciled_pass": ReconciledCase((*_all(4, 30), *_all(4, 2))),
    "reconciled_repaired_pass": ReconciledCase(
        (
            *_all(4, 2),
            (1, 4, 9, {"missed_deletes": 3}),
            (2, 4, 1, {"missed_rows": 5, "repaired": True, "batch": 7}),
        )
    ),
    "reconciled_share_pass": ReconciledCase(
        (*_all(4, 30), (2, 4, 1, {}), (3, 4, 1, {})), arguments={"min_share": 0.5}
    ),
    "reconciled_within_pass": ReconciledCase(_all(4, 30), arguments={"within": "48"}),
    "reconciled_never": ReconciledCase(
        (),
        "warn",
        ({"buckets": None, "problem": "never reconciled: run `loader reconcile`"},),
    ),
    "reconciled_late": ReconciledCase(
        (*_all(4, 30), (3, 4, 1, {})),
        "warn",
        (
            {
                "source_name": "shop",
                "bucket": None,
                "buckets_verified": 1,
                "buckets": 4,
                "problem": "not all buckets were verified in the last 24 hours",
            },
        ),
    ),
    # two of four buckets were compared recently; the comparisons before used eight buckets
    "reconciled_divided_anew_pass": ReconciledCase(
        (*_all(8, 5), (0, 4, 2, {}), (1, 4, 1, {})), arguments={"within": 12}
    ),
    "reconciled_divided_anew": ReconciledCase(
        (*_all(8, 13), (0, 4, 2, {}), (1, 4, 1, {})),
        "warn",
        (
            {
                "buckets_verified": 2,
                "buckets": 4,
                "problem": "not all buckets were verified in the last 12 hours",
            },
        ),
        arguments={"within": 12},
    ),
    "reconciled_other_key": ReconciledCase(
        (*_all(2, 3), (0, 2, 1, {"key_columns": "id, line"})),
        "warn",
        ({"buckets_verified": 1, "buckets": 2, "verified_until": None},),
    ),
    "reconciled_reloaded": ReconciledCase(
        (*_all(2, 3), (0, 2, 1, {})), "warn", ({"buckets_verified": 1, "buckets": 2},), reloaded=2
    ),
    "reconciled_not_repaired": ReconciledCase(
        (*_all(4, 3), (1, 4, 2, {"missed_updates": 2, "missed_deletes": 1}), (2, 4, 2, {})),
        "warn",
        (
            {
                "bucket": 1,
                "missed_updates": 2,
                "missed_rows": 0,
                "missed_deletes": 1,
                "problem": "differences that were not repaired: run `loader reconcile --repair`",
            },
        ),
    ),
}


def plant(raw: RawSchema, table: str, case: ReconciledCase) -> None:
    """Writes a case's comparisons and its full refresh, if any."""
    now = dt.datetime.now(dt.timezone.utc)
    rows = [
        VerifiedBucket(
            run_id="run-1",
            source_name="shop",
            table_name=table,
            bucket=bucket,
            buckets=buckets,
            verified_at=now - dt.timedelta(hours=hours),
            rows_source=10,
            rows_snapshot=10,
            **counts,
        )
        for bucket, buckets, hours, counts in case.verified
    ]
    if case.reloaded is not None:
        started = now - dt.timedelta(hours=case.reloaded)
        reload = {"run_id": "reload", "batch": 2, "mode": "full_refresh", "started_at": started}
        raw.syncs(table, [reload])
    if rows:
        VerificationHistory(Lake(raw.spark, raw.schema)).append(rows)

"""Simulates histories of syncs and results of dbt, for pictures and tests of the report.

The numbers come from a generator with a fixed seed, so that the pictures are the same each time.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import replace

from loader.lake.ledger import FAILED, NOTHING_NEW, SYNCED
from loader.report.contents import Report, build_report, choose_periods
from loader.report.history import DAY, HOUR, ComparisonSum, SourceHistory, SyncSum
from loader.report.proofs import DbtResults, FailingRows, Proof
from loader.sync.table_comparisons import TableComparison

NOW = int(dt.datetime(2026, 11, 30, 7, 30, tzinfo=dt.timezone.utc).timestamp()) * 1_000_000
SECOND = 1_000_000
TABLES = {
    "shop": {
        "orders": 42_000,
        "order_items": 118_000,
        "customers": 3_100,
        "payments": 39_000,
        "refunds": 800,
        "shipments": 36_500,
    },
    "crm": {"contacts": 5_400, "deals": 900, "activities": 21_000},
    "billing": {"invoices": 12_000, "invoice_lines": 51_000, "tax_rates": 0},
}
"""The rows that each table gets on a weekday."""

REFUSED = (
    "source shop: no connection to 10.0.4.17:5432: connection refused. Check `url` and firewall"
)
LOCK = "table billing.invoices: another run holds this table (pid 4711 on etl-2 since 02:14)"


def simulate(
    days: int,
    outages: dict[str, list[tuple[int, int, str]]] | None = None,
    stopped: dict[str, int] | None = None,
    every: int = HOUR,
) -> list[SourceHistory]:
    """Returns the history of all tables.

    Args:
        outages: for each table, its failures: start and end in days before now, and the error.
        stopped: for each table, the number of days since it was last tried.
        every: the interval between syncs in microseconds.
    """
    since, length = choose_periods(NOW, days)
    histories = []
    for source, tables in TABLES.items():
        syncs: list[SyncSum] = []
        newest, compared, comparisons = [], {}, []
        for table, weight in tables.items():
            name = f"{source}.{table}"
            dice = random.Random(name)
            own = _simulate_table(
                dice,
                source,
                table,
                weight,
                since,
                length,
                (outages or {}).get(name, []),
                (stopped or {}).get(name, 0),
                every,
            )
            syncs += own
            good = [each for each in own if each.status != FAILED]
            last = max(own, key=lambda each: each.last)
            newest.append(
                {
                    "source_name": source,
                    "table_name": table,
                    "batch": 4_000 + len(own),
                    "rows": sum(each.rows_appended for each in own),
                    "rows_below_cursor": 0,
                    "rows_at_cursor": 0,
                    "rows_cursor_unmoved": 0,
                    "complete_micros": max(each.last for each in good) - 9 * SECOND
                    if source != "crm"
                    else None,
                    "cursor": "2026-11-30 07:29:51.204113",
                    "synced_micros": max(each.last for each in good),
                    "status": last.status,
                    "log_bytes": None,
                    "error": last.error,
                }
            )
            if source == "shop":
                compared[source, table] = TableComparison(NOW - 20 * HOUR, 0)
                comparisons += [
                    ComparisonSum(
                        source,
                        table,
                        (NOW - day * DAY) // length,
                        64,
                        NOW - day * DAY,
                        dice.choice([0, 0, 0, 2]),
                        dice.choice([0, 0, 1]),
                        0,
                        0,
                    )
                    for day in range(min(days, 12), 0, -1)
                ]
                comparisons = [replace(each, repaired=each.missed) for each in comparisons]
        histories.append(SourceHistory(source, (source,), newest, compared, syncs, comparisons))
    return histories


def _simulate_table(
    dice: random.Random,
    source: str,
    table: str,
    weight: int,
    since: int,
    length: int,
    outages: list[tuple[int, int, str]],
    stopped: int,
    every: int,
) -> list[SyncSum]:
    sums = []
    growth = dice.uniform(0.2, 0.9)
    for period in range(since // length, (NOW - stopped * DAY) // length + 1):
        start = max(period * length, since)
        end = min((period + 1) * length, NOW - stopped * DAY)
        times = max((end - start) // every, 1)
        age = (NOW - start) / DAY
        error = next((text for high, low, text in outages if high >= age >= low), None)
        weekday = dt.datetime.fromtimestamp(start / SECOND, dt.timezone.utc).weekday()
        season = (0.45 if weekday >= 5 else 1) * (1 - growth * age / 365 / 1.2)
        rows = round(
            weight * season * dice.uniform(0.85, 1.15) * length / DAY * (times * every / length)
        )
        changed = "added column `channel` string" if table == "orders" and 20 < age <= 21 else None
        late = round(rows * dice.uniform(0, 0.004)) if dice.random() < 0.3 else 0
        micros = round((2.1 + rows / times / 9_000 * 3) * dice.uniform(0.8, 1.3) * times * SECOND)
        empty = SyncSum(
            source, table, period, NOTHING_NEW, None, None, times, start, end - 2 * SECOND
        )
        if error is not None:
            sums.append(replace(empty, status=FAILED, error=error, micros=times * SECOND))
            continue
        sums.append(
            replace(
                empty,
                status=SYNCED if rows else NOTHING_NEW,
                schema_changes=changed,
                micros=micros,
                longest=micros // times * 3,
                lag=round(dice.uniform(4, 40) * SECOND) if source != "crm" else None,
                rows_appended=rows,
                rows_redelivered=round(rows * dice.uniform(0.002, 0.03)) + times,
                rows_below_cursor=late,
                rows_at_cursor=round(late * dice.uniform(0, 0.6)),
                rows_cursor_unmoved=late // 5,
            )
        )
    return sums


def list_proofs(failing: bool = False) -> DbtResults:
    """Returns the results of a build with two dbt tests for each table."""
    proofs = []
    seconds = {}
    for source, tables in TABLES.items():
        for table in tables:
            for name in ("matches_raw", "no_cursor_ties"):
                model = f"{source}_{table}_latest"
                proofs.append(Proof(f"test.shop.{name}_{model}", name, model, "pass", failures=0))
                seconds[f"{name} on {model}"] = 0.4 + len(model) / 20
    for name in ("batches_complete", "inclusive_cursor", "state_consistent"):
        proofs.append(Proof(f"test.strandline.{name}", name, "cq_sync_log", "pass", failures=0))
    if failing:
        rows = FailingRows(
            ("invoice_id", "problem", "_cq_batch"),
            [
                (f"INV-2026-{11800 + 7 * i}", "differs from the raw table", str(3971 + i))
                for i in range(6)
            ],
        )
        broken = next(p for p in proofs if p.id.endswith("matches_raw_billing_invoices_latest"))
        proofs[proofs.index(broken)] = replace(
            broken, status="fail", failures=6, key=("invoice_id",), rows=rows
        )
    return DbtResults("build", "2026-11-30T07:21:09Z", proofs, seconds)


def report_of_a_year() -> Report:
    """Returns a good report of a year, with two incidents that are over."""
    outages = {f"shop.{table}": [(212, 209, REFUSED)] for table in TABLES["shop"]}
    outages["billing.invoices"] = [(96, 91, LOCK)]
    return _build(simulate(365, outages), list_proofs(), 365)


def report_with_incidents() -> Report:
    """Returns a month's report with three current incidents.

    A table has failed for two days, a test fails for six keys, a table was last synced a week ago.
    """
    histories = simulate(30, {"shop.payments": [(2, 0, REFUSED)]}, {"crm.contacts": 7})
    return _build(histories, list_proofs(failing=True), 30)


def good_report() -> Report:
    """Returns a month's report without incidents."""
    return _build(simulate(30), list_proofs(), 30)


def empty_report() -> Report:
    """Returns the report of an empty lake."""
    return _build([SourceHistory("shop", ("shop",), [])], None, 30)


def _build(histories: list[SourceHistory], results: DbtResults | None, days: int) -> Report:
    since, length = choose_periods(NOW, days)
    return build_report(histories, results, NOW, since, length)


REPORTS: dict[str, Callable[[], Report]] = {
    "year": report_of_a_year,
    "incidents": report_with_incidents,
    "good": good_report,
    "empty": empty_report,
}

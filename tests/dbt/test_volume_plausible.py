"""`volume_plausible` warns if yesterday's rows are far more or fewer than on the days before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

TODAY = dt.datetime.now(dt.timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
USUAL = [5_000, 1_000, 1_200, 1_100, 900, 1_300, 1_000, 1_050]
"""Rows of the first load's day, and of seven days after it."""
MORE = "far more rows than on any of the days before"
FEWER = "far fewer rows than on any of the days before"
CASES: dict[str, tuple[list[int], str | None]] = {
    "usual": ([*USUAL, 1_250], None),
    "more": ([*USUAL, 3_901], MORE),
    "at_the_limit": ([*USUAL, 3_900], None),
    "fewer": ([*USUAL, 299], FEWER),
    "nothing": ([*USUAL, 0], FEWER),
    "quiet_weekend": ([*USUAL, 0, 1_100, 0], None),
    "first_rows": ([*[0] * 8, 100], MORE),
    "first_few_rows": ([*[0] * 8, 99], None),
    "young": ([5_000, 1_000, 1_200, 1_100, 900, 1_300, 1_000, 10_000], None),  # six days before
    "excluded": ([*USUAL, 0], None),
}
"""Per table: the rows of each day up to yesterday, and the expected problem."""


def _days(rows: Sequence[int]) -> list[dict[str, Any]]:
    """Returns two syncs of each day; the last day is yesterday."""
    entries: list[dict[str, Any]] = []
    for ago, count in zip(range(len(rows), 0, -1), rows, strict=True):
        start = TODAY - dt.timedelta(days=ago)
        for hour, appended in ((1, count // 2), (23, count - count // 2)):
            at = start + dt.timedelta(hours=hour)
            entries.append(
                {"batch": None, "rows_appended": appended, "started_at": at, "finished_at": at}
            )
    return entries


@pytest.fixture(scope="module")
def ledger(raw: RawSchema) -> RawSchema:
    for table, (rows, _) in CASES.items():
        raw.syncs(table, _days(rows))
    # None of these counts: a day that has not ended, a reload, a backfill, a failed attempt.
    yesterday = TODAY - dt.timedelta(hours=2)
    noise: list[dict[str, Any]] = [
        {"started_at": TODAY + dt.timedelta(seconds=1)},
        {"started_at": yesterday, "mode": "full_refresh"},
        {"started_at": yesterday, "mode": "backfill"},
        {"started_at": yesterday, "status": "failed"},
    ]
    raw.syncs("usual", [{"batch": None, "rows_appended": 9_999, **each} for each in noise])
    return raw


def _test(project: DbtProject, ledger: RawSchema, **arguments: Any) -> Any:
    test = {"strandline.volume_plausible": {"name": "volume", "arguments": arguments}}
    table = {"name": "_cq_syncs", "data_tests": [test]}
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": ledger.schema, "tables": [table]}]},
    )
    return project.run("test", "--select", "source:shop")["volume"]


def test_names_the_tables_and_the_usual_numbers(project: DbtProject, ledger: RawSchema) -> None:
    result = _test(project, ledger, exclude_tables="excluded")
    assert result.status == "warn"
    rows = {row["table_name"]: row for row in project.failing_rows(result)}
    assert {name: row["problem"] for name, row in rows.items()} == {
        name: problem for name, (_, problem) in CASES.items() if problem
    }
    more = rows["more"]
    assert (more["rows_appended"], more["lowest"], more["highest"], more["days"]) == (
        3_901,
        900,
        1_300,
        7,
    )


def test_passes_with_a_larger_factor(project: DbtProject, ledger: RawSchema) -> None:
    excluded = ["excluded", "nothing", "first_rows"]
    assert _test(project, ledger, factor=4, exclude_tables=excluded).status == "pass"


def test_a_factor_that_is_no_number_is_refused(project: DbtProject, ledger: RawSchema) -> None:
    result = _test(project, ledger, factor="3x")
    assert result.status == "error"
    assert 'volume_plausible: factor is "3x". Set it to at least 1' in result.message

"""Tests and `as_of` give the same results in a session with a time zone other than UTC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema, sync_time

ZONE = "spark.sql.session.timeZone"
ZONES = ["America/New_York", "Asia/Tokyo"]
STATE_PROOF = "strandline_state_consistent_cq_state_current_"
AS_OF = (
    "{{{{ config(materialized='table', file_format='iceberg') }}}} "
    "{{{{ strandline.deduped_latest(source('shop', 'right'), 'id', 'at', as_of={as_of}) }}}}"
)


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, raw: RawSchema) -> Iterator[str]:
    """Sets the session's time zone for one test."""
    before = raw.spark.conf.get(ZONE)
    raw.spark.conf.set(ZONE, request.param)
    yield request.param
    raw.spark.conf.set(ZONE, str(before))


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> DbtProject:
    """A correct table and one whose state is an hour ahead, with timestamps, local times, dates."""
    for table, ahead in (("right", 0), ("wrong", 1)):
        raw.create(table, "id int, at timestamp, wall timestamp_ntz, day date")
        batches = []
        for batch in (1, 2):
            at = sync_time(batch) - timedelta(minutes=1)
            # the local time of a zone far in the east
            wall = (at + timedelta(hours=13)).replace(tzinfo=None)
            row = {"id": batch, "at": at, "wall": wall, "day": wall.date()}
            raw.append(table, batch, [*batches, row])
            batches.append(row)
        text = "2025-01-02 23:59:00"
        state = {"cursor_field": "at", "cursor_type": "timestamptz", "generation": 1, "batch": 2}
        cursor = text if not ahead else "2025-01-03 00:59:00"
        raw.states(table, [(1, {**state, "cursor": cursor})])
        window = {"cursor_field": "at", "cursor_type": "timestamptz"}
        first = "2025-01-01 23:59:00"
        raw.syncs(
            table,
            [
                {"batch": 1, "rows_appended": 1, "cursor_high": first, **window},
                {
                    "batch": 2,
                    "rows_appended": 2,
                    "cursor_low": first,
                    "cursor_high": text,
                    **window,
                },
            ],
        )
    key = {"unique_key": "id", "cursor_field": "at"}
    tables = [
        {
            "name": table,
            "config": {"meta": {"strandline": key}},
            "data_tests": [
                {
                    "strandline.no_duplicates": {
                        "name": f"boundary_{table}",
                        "arguments": {"kinds": "at_boundary"},
                    }
                },
                *(
                    {
                        "strandline.cursor_plausible": {
                            "name": f"{column}_{table}",
                            "arguments": {"cursor_field": column},
                        }
                    }
                    for column in ("at", "wall", "day")
                ),
            ],
        }
        for table in ("right", "wrong")
    ]
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": tables}]},
    )
    # the second sync began at 00:00:00 UTC
    before, after = "'2025-01-02 23:59:59'", "'2025-01-03 00:00:00'"
    project.write("models/before.sql", AS_OF.format(as_of=before))
    project.write("models/after.sql", AS_OF.format(as_of=after))
    for column in ("wall", "day"):
        project.write(
            f"models/by_{column}.sql",
            "{{ config(materialized='deduped_history', unique_key='id', "
            f"meta={{'strandline': {{'cursor_field': '{column}'}}}}) }}}} "
            "select * from {{ source('shop', 'right') }}",
        )
    project.write("models/named.sql", AS_OF.format(as_of="'2025-01-03T01:00+01:00'"))
    return project


def test_tests_compare_instants(shop: DbtProject, zone: str) -> None:
    on_records = ("test_name:state_consistent", "test_name:inclusive_cursor")
    results = shop.run("test", "--select", "source:shop", *on_records)
    assert len(results) == 10
    failed = {name: one.message for name, one in results.items() if one.status != "pass"}
    assert set(failed) == {STATE_PROOF}, failed
    [row] = shop.failing_rows(results[STATE_PROOF])
    assert (row["key"], row["problem"]) == ("shop.wrong", "the cursor is ahead of the raw table")


def test_as_of_times_are_utc(shop: DbtProject, zone: str) -> None:
    results = shop.run("run", "--select", "before", "after", "named", "cq_sync_log", "cq_freshness")
    assert {one.status for one in results.values()} == {"success"}, results
    found = {name: len(shop.rows(name)) for name in ("before", "after", "named")}
    assert found == {"before": 1, "after": 2, "named": 2}
    lags = [row["cursor_lag_seconds"] for row in shop.rows("cq_freshness")]
    assert lags == [120, 120]


def test_a_history_by_dates_and_wall_clocks(shop: DbtProject, zone: str) -> None:
    """They count as UTC; otherwise, a version would begin on the wrong day."""
    results = shop.run("run", "--full-refresh", "--select", "by_wall", "by_day")
    assert {one.status for one in results.values()} == {"success"}, results
    for column in ("wall", "day"):
        begun = shop.spark.sql(
            f"select id, unix_seconds(valid_from) from {shop.schema}.by_{column} order by id"
        ).collect()
        midnight, day = 1735776000, 86400  # the second of January
        after = 0 if column == "day" else 12 * 3600 + 59 * 60
        assert [tuple(row) for row in begun] == [(1, midnight + after), (2, midnight + day + after)]

"""All implementations of `verified_until` agree with its definition on random histories."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pytest

from loader.lake.folder_tables import FolderTables, find_warehouse
from loader.lake.lake import Lake
from loader.lake.ledger import Ledger, SyncRecord
from loader.reconcile.history import VerificationHistory, VerifiedBucket
from loader.sync.table_comparisons import FolderComparisons, LakeComparisons
from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema

TABLES = int(os.environ.get("STRANDLINE_TABLES", "300"))
SEED = int(os.environ.get("STRANDLINE_SEED", "1"))
NOW = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
WITHIN = 24
KEYS = range(8)
"""Hashes of keys; a key's bucket is its hash modulo the number of buckets (1, 2 or 4)."""


@dataclass
class History:
    """The comparisons and full refreshes of one table, ordered by time."""

    source: str
    table: str
    compared: list[VerifiedBucket] = field(default_factory=list)
    refreshes: list[SyncRecord] = field(default_factory=list)

    def plan(self, chance: random.Random) -> None:
        """Adds random comparisons and refreshes; the number of buckets changes rarely."""
        ages = [chance.uniform(0, 71) for _ in range(chance.randint(1, 14))]
        # The hour before the limit stays empty, because the tests themselves take time.
        hours = sorted((age + (age > WITHIN - 1) for age in ages), reverse=True)
        buckets, left_out, key = chance.choice((1, 2, 4)), None, "id"
        for number, ago in enumerate(hours):
            at = NOW - dt.timedelta(hours=ago)
            run = f"{self.table}-{number}"
            if chance.random() < 0.1:
                buckets = chance.choice((1, 2, 4))
            if chance.random() < 0.15:
                left_out = chance.choice((None, "price (double)"))
            if chance.random() < 0.1:
                key = chance.choice(("id", "id, line"))
            if chance.random() < 0.15:
                started = at + dt.timedelta(seconds=1)
                batch = chance.choice((number + 1, number + 1, None))
                mode = chance.choice(("full_refresh", "adoption", "incremental"))
                self.refreshes.append(
                    SyncRecord(
                        *(run, self.source, self.table, batch),
                        mode=mode,
                        started_at=started,
                        finished_at=started,
                    )
                )
                if chance.random() < 0.7:
                    continue  # otherwise the same run compares after it
            for bucket in chance.sample(range(buckets), chance.randint(1, buckets)):
                missed = chance.choice((0, 0, 0, 1))
                self.compared.append(
                    VerifiedBucket(
                        *(run, self.source, self.table, bucket, buckets, at, 1, 1),
                        missed_deletes=missed,
                        missed_updates=chance.choice((0, missed)),
                        repaired=bool(missed) and chance.random() < 0.5,
                        columns_left_out=left_out,
                        key_columns=key,
                    )
                )

    def find_verified_until(self) -> dt.datetime | None:
        """Returns the newest time since which comparisons that count have verified all keys."""
        newest = self.compared[-1]
        refresh = max(
            (each for each in self.refreshes if each.mode != "incremental" and each.batch),
            key=lambda each: each.started_at or NOW,
            default=None,
        )
        verified = [
            each
            for each in self.compared
            if (each.repaired or each.all_missed == 0)
            and each.key_columns == newest.key_columns
            and (
                refresh is None
                or refresh.started_at is None
                or each.run_id == refresh.run_id
                or each.verified_at >= refresh.started_at
            )
        ]
        ways = {(each.buckets, each.columns_left_out) for each in verified}
        for time in sorted({each.verified_at for each in verified}, reverse=True):
            for way in ways:
                since = [
                    each
                    for each in verified
                    if each.verified_at >= time and (each.buckets, each.columns_left_out) == way
                ]
                if all(any(key % each.buckets == each.bucket for each in since) for key in KEYS):
                    return time
        return None

    def find_unrepaired(self) -> set[int]:
        """Returns the buckets whose newest comparison left a difference."""
        buckets = self.compared[-1].buckets
        newest = {each.bucket: each for each in self.compared if each.buckets == buckets}
        return {bucket for bucket, each in newest.items() if each.has_unrepaired}


@pytest.fixture(scope="module")
def histories(raw: RawSchema) -> Sequence[History]:
    """Random histories in one lake; two sources share some of the tables."""
    chance = random.Random(SEED)
    histories = []
    for number in range(TABLES):
        for source in ("shop", "branch")[: 1 + (number % 5 == 0)]:
            history = History(source, f"t{number}")
            while not history.compared:
                history.plan(chance)
            histories.append(history)
    lake = Lake(raw.spark, raw.schema)
    VerificationHistory(lake).append([row for each in histories for row in each.compared])
    synced = [
        SyncRecord("first", each.source, each.table, 1, started_at=NOW - dt.timedelta(days=9))
        for each in histories
    ]
    Ledger(lake).append_all([*synced, *(row for each in histories for row in each.refreshes)])
    return histories


def _find_expected(histories: Sequence[History]) -> dict[tuple[str, str], dt.datetime | None]:
    return {(each.source, each.table): each.find_verified_until() for each in histories}


def test_the_histories_cover_each_rule(histories: Sequence[History]) -> None:
    """Some values are known and some are not, and each rule decides some of them."""
    expected = _find_expected(histories).values()
    assert 0.1 < sum(value is None for value in expected) / len(histories) < 0.9
    assert any(len({row.buckets for row in each.compared}) > 1 for each in histories)
    for name, changes in RULES.items():
        found = _find_expected([changes(each) for each in histories])
        assert found != _find_expected(histories), name


def _without_refreshes(each: History) -> History:
    return History(each.source, each.table, each.compared)


def _with_one(each: History, **changes: Any) -> History:
    compared = [VerifiedBucket(**{**vars(row), **changes}) for row in each.compared]
    return History(each.source, each.table, compared, each.refreshes)


RULES = {
    "full refreshes": _without_refreshes,
    "differences": lambda each: _with_one(each, repaired=True),
    "the key": lambda each: _with_one(each, key_columns="id"),
    "columns left out": lambda each: _with_one(each, columns_left_out=None),
    "runs of a refresh": lambda each: _with_one(each, run_id="other"),
}
"""By rule: a function that removes from a history what the rule is about."""


def test_model_and_readers(
    project: DbtProject, raw: RawSchema, histories: Sequence[History]
) -> None:
    """The model `cq_freshness` and the loader's readers have the values of the definition."""
    results = project.run("run", "--select", "cq_sync_log", "cq_freshness")
    assert {one.message for one in results.values() if one.status != "success"} == set()
    expected = _find_expected(histories)
    by_model = {
        (row["source_name"], row["table_name"]): row["verified_until"]
        for row in project.rows("cq_freshness")
    }
    assert _to_micros(by_model) == _to_micros(expected)

    conf = dict(raw.spark.sparkContext.getConf().getAll())
    folder = FolderComparisons(FolderTables(find_warehouse(conf), raw.schema))
    by_spark = LakeComparisons(Lake(raw.spark, raw.schema)).by_table()
    assert folder.by_table() == by_spark
    assert {name: one.verified_until for name, one in by_spark.items()} == _to_micros(expected)


def _to_micros(
    values: dict[tuple[str, str], dt.datetime | None],
) -> dict[tuple[str, str], int | None]:
    return {
        name: None if value is None else round(value.timestamp() * 1_000_000)
        for name, value in values.items()
    }


def test_on_duckdb(project: DbtProject, raw: RawSchema, histories: Sequence[History]) -> None:
    """The macro's SQL, as compiled for Spark, has the same result on DuckDB."""
    project.write(
        "models/verified.sql",
        "{{ config(materialized='table') }} {{ strandline._verified_tables("
        "source('strandline', '_cq_reconciled'), source('strandline', '_cq_syncs')) }}",
    )
    [result] = project.run("run", "--select", "verified").values()
    assert result.status == "success", result.message
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.execute(f"create schema {raw.schema}")
        for name in ("_cq_reconciled", "_cq_syncs"):
            rows = raw.spark.table(f"{raw.schema}.{name}").toArrow()  # noqa: F841
            database.execute(f"create table {raw.schema}.{name} as select * from rows")
        sql = result.sql.replace("`", '"')
        found = database.execute(
            f"select source_name, table_name, verified_until from ({sql}) as found"
        ).fetchall()
    by_duckdb = {(source, table): value for source, table, value in found}
    assert _to_micros(by_duckdb) == _to_micros(_find_expected(histories))


def test_reconciled_recently_reads_it(
    project: DbtProject, raw: RawSchema, histories: Sequence[History]
) -> None:
    """`within` limits the age of `verified_until`, for each source of a table."""
    test = {"strandline.reconciled_recently": {"name": "recent", "arguments": {"within": WITHIN}}}
    table = {"name": "_cq_reconciled", "data_tests": [test]}
    project.write(
        "models/sources.yml",
        {"sources": [{"name": "shop", "schema": raw.schema, "tables": [table]}]},
    )
    result = project.run("test", "--select", "source:shop")["recent"]
    rows = project.failing_rows(result)
    tables = [row for row in rows if row["bucket"] is None]
    limit = NOW - dt.timedelta(hours=WITHIN)
    assert {(row["source_name"], row["table_name"]) for row in tables} == {
        name for name, until in _find_expected(histories).items() if until is None or until < limit
    }
    assert len(tables) < len(histories)
    differences = {
        (row["source_name"], row["table_name"], row["bucket"])
        for row in rows
        if row["bucket"] is not None
    }
    assert differences == {
        (each.source, each.table, bucket) for each in histories for bucket in each.find_unrepaired()
    }

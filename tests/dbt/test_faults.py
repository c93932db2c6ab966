"""Each fault of tests/dbt/faults.py makes its test fail; without a fault, all tests pass.

STRANDLINE_FAULTS=all runs every test for every fault and, with -s, prints the tests that failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.dbt.faults import (
    COLUMNS,
    FAULTS,
    HISTORY,
    HISTORY_PROOF,
    LATEST,
    RAW,
    STATE,
    SYNCS,
    Fault,
)
from tests.dbt.rawtables import RawSchema, Row, sync_time

ALL = os.environ.get("STRANDLINE_FAULTS") == "all"
SETTINGS = {"unique_key": "id", "cursor_field": "updated_at"}
ROW_PROOFS = ["no_cursor_ties", "cursor_plausible", "no_duplicates"]
BATCHES: list[list[Row]] = [
    [{"id": key, "updated_at": sync_time(1), "payload": "a"} for key in (1, 2, 3, 4)],
    [{"id": key, "updated_at": sync_time(2), "payload": "b"} for key in (1, 2)],
    [{"id": 4, "updated_at": sync_time(3), "payload": None, "_deleted": True}],
    [{"id": 1, "updated_at": sync_time(4), "payload": "c"}],
]


class Healthy:
    """A raw table with state and ledger, a latest table and a history, all correct."""

    def __init__(self, project: DbtProject, raw: RawSchema) -> None:
        self.project, self.raw = project, raw
        raw.create("orders", COLUMNS)
        for batch, rows in enumerate(BATCHES, start=1):
            raw.append("orders", batch, rows)
        raw.states("orders", [(batch, state(batch)) for batch in range(1, 5)])
        raw.syncs("orders", [sync(batch) for batch in range(1, 5)])
        for kind in ("latest", "history"):
            project.write(
                f"models/orders_{kind}.sql",
                f"{{{{ config(materialized='deduped_{kind}', unique_key='id', "
                "meta={'strandline': {'cursor_field': 'updated_at'}}) }}\n"
                "select * from {{ source('shop', 'orders') }}",
            )
        project.write(
            "models/schema.yml",
            {
                "sources": [
                    {
                        "name": "shop",
                        "schema": raw.schema,
                        "tables": [
                            {
                                "name": "orders",
                                "config": {"meta": {"strandline": SETTINGS}},
                            }
                        ],
                    }
                ],
                "models": [
                    {
                        "name": "orders_latest",
                        "data_tests": [
                            f"strandline.{proof}"
                            for proof in ["unique_key", "matches_raw", *ROW_PROOFS]
                        ],
                    },
                    {
                        "name": "orders_history",
                        "data_tests": ["strandline.unique_key", "strandline.matches_raw"],
                    },
                ],
            },
        )
        self.manifest = project.parse()
        project.run("run", manifest=self.manifest)

    def named(self, template: str) -> str:
        return template.format(raw=self.raw.schema, marts=self.project.schema)

    def red(self, *proofs: str) -> set[tuple[str, str]]:
        """Runs the named tests, or all; returns those that do not pass, each with its model."""
        select = ["--select", *(f"test_name:{proof}" for proof in proofs)] if proofs else []
        # with this flag, a test lists only the schemas that it needs
        flags = ["--no-populate-cache"] if proofs else []
        results = self.project.run("test", *select, *flags, manifest=self.manifest)
        assert results
        failed = {(n, r) for n, r in results.items() if r.status in ("fail", "warn", "error")}
        return {(proof_of(name), result.tested) for name, result in failed}

    def snapshot(self, table: str) -> int:
        [row] = self.project.spark.sql(
            f"select snapshot_id from {table}.refs where name = 'main'"
        ).collect()
        return int(row[0])

    def put_back(self, table: str, snapshot: int) -> None:
        self.project.spark.sql(f"call lake.system.set_current_snapshot('{table}', {snapshot}L)")


def state(batch: int) -> dict[str, Any]:
    return {
        "batch": batch,
        "cursor": f"{sync_time(batch):%Y-%m-%d %H:%M:%S}",
        "cursor_field": "updated_at",
        "cursor_type": "timestamp",
        "generation": 1,
    }


def sync(batch: int) -> dict[str, Any]:
    low = None if batch == 1 else state(batch - 1)["cursor"]
    rows = len(BATCHES[batch - 1])
    return {
        "batch": batch,
        "cursor_field": "updated_at",
        "cursor_type": "timestamp",
        "cursor_low": low,
        "cursor_high": state(batch)["cursor"],
        "rows_read": rows,
        "rows_appended": rows,
    }


def proof_of(test: str) -> str:
    """Returns the name of the generic test within a dbt test's name."""
    names = [
        *ROW_PROOFS,
        "unique_key",
        "matches_raw",
        "state_consistent",
        "batches_complete",
        "inclusive_cursor",
    ]
    return next((name for name in names if name in test), test)


@pytest.fixture(scope="module")
def healthy(project: DbtProject, raw: RawSchema) -> Healthy:
    return Healthy(project, raw)


def test_all_tests_pass_without_a_fault(healthy: Healthy) -> None:
    assert healthy.red() == set()


def _group_faults() -> Iterator[tuple[str, ...]]:
    """Yields groups of faults that one run can test, because none affects another's test.

    Every test reads the raw table, so its faults are tested one by one. Of the other tables, each
    test reads only one.
    """
    by_table: dict[str, list[str]] = {}
    for name, fault in FAULTS.items():
        by_table.setdefault(fault.table, []).append(name)
    for name in by_table.pop(RAW):
        yield (name,)
    for names in zip_longest(*by_table.values()):
        yield tuple(name for name in names if name)


@pytest.mark.parametrize("wrong", [*_group_faults()], ids=" + ".join)
def test_the_test_of_a_fault_fails(healthy: Healthy, wrong: tuple[str, ...]) -> None:
    """Creates each fault, runs the tests that must find it, and reverts the fault."""
    faults = [FAULTS[name] for name in wrong]
    before = {fault.table: healthy.snapshot(healthy.named(fault.table)) for fault in faults}
    try:
        for fault in faults:
            healthy.project.spark.sql(healthy.named(fault.statement))
            changed = healthy.snapshot(healthy.named(fault.table)) != before[fault.table]
            assert changed, "the fault changed nothing"
        red = healthy.red(
            *(() if ALL else sorted({fault.proof.partition(" ")[0] for fault in faults}))
        )
        print(f"{' + '.join(wrong):45} {', '.join(sorted(proof for proof, _ in red))}")
        assert {(fault.proof.partition(" ")[0], table_of(fault)) for fault in faults} <= red
    finally:
        for table, snapshot in before.items():
            healthy.put_back(healthy.named(table), snapshot)


def table_of(fault: Fault) -> str:
    """Returns the model whose test must find a fault."""
    models = {
        "state_consistent": "cq_state_current",
        "batches_complete": "cq_sync_log",
        "inclusive_cursor": "cq_sync_log",
    }
    rows = HISTORY if fault.table == HISTORY or fault.proof == HISTORY_PROOF else LATEST
    return models.get(fault.proof, rows.rpartition(".")[2])


def test_all_faults_are_reverted(healthy: Healthy) -> None:
    """The tests above have reverted every fault: a remaining one would hide the next."""
    assert healthy.red() == set()
    for table in (RAW, STATE, SYNCS, LATEST, HISTORY):
        assert healthy.project.spark.table(healthy.named(table)).count() > 0

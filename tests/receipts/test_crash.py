"""After a kill at any step, each committed batch has one receipt, and no other batch has."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from loader.lake.receipt import parse_receipt
from loader.sync.fault_injection import STEPS
from tests.crash import shop
from tests.crash.steps import break_off
from tests.crash.workers import Workers
from tests.receipts.keys import create_key
from tests.services import Database
from tests.sync.project import Project

RECOVERING = ("recovered-state", "recovered")
"""Steps that do something only after an earlier crash."""


@pytest.mark.slow
def test_killed_at_every_step(
    project: Project, postgres_database: Database, workers: Workers, tmp_path: Path
) -> None:
    victim, key = workers.take(), create_key(tmp_path)
    steps = {f"{step.replace('-', '_')}_t": step for step in STEPS if step != "windowed"}
    project.lakes = {"lake": {"receipt_signing_key": key.pem}}
    shop.create(postgres_database, [*steps])
    shop.configure(project, postgres_database, [*steps])
    project.run("--concurrency", "4")
    shop.change(postgres_database, [*steps])
    recovering = [f"shop.{table}" for table, step in steps.items() if step in RECOVERING]
    break_off(project, "published", recovering)

    crash_at = ",".join(f"{step}:shop.{table}" for table, step in steps.items())
    victim.start(project, "run", "--concurrency", str(len(steps)), crash_at=crash_at)
    assert victim.died() == signal.SIGKILL
    order = list(STEPS)
    published = {
        table
        for table, step in steps.items()
        if step in RECOVERING or order.index(step) >= order.index("published")
    }
    seen = shop.batches_seen(project, [*steps])
    assert {table for table in steps if len(seen[table]) == 2} == published
    # before any recovery, exactly the published batches have receipts
    found = _verify(project, key.public)
    assert {table: found[table] for table in steps} == {
        table: 2 if table in published else 1 for table in steps
    }

    project.run("--concurrency", "4")
    assert set(_verify(project, key.public).values()) == {2}
    recorded = project.rows(
        "select table_name, batch, receipt from raw._cq_syncs where receipt is not null"
    )
    batches = sorted((table, batch) for table, batch, _ in recorded)
    assert batches == sorted((table, batch) for table in steps for batch in (1, 2))
    for table, batch, receipt in recorded:
        parsed = parse_receipt(receipt)
        assert (parsed.table, parsed.batch) == (f"{project.schema}.{table}", batch)


def _verify(project: Project, key: Path) -> dict[str, int]:
    """Verifies receipts and rows. Returns the number of receipts of each table."""
    ran = project.loader("receipts", "verify", "--key", str(key))
    assert (ran.code, ran.warnings) == (0, []), ran.text
    return {
        event["table"].removeprefix(f"{project.schema}."): event["receipts"]
        for event in ran.events
        if event["event"] == "receipts"
    }


def test_the_ledger_is_rebuilt_with_the_newest_receipt(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    """The other receipts of a lost ledger are only in exported files."""
    key = create_key(tmp_path)
    project.lakes = {"lake": {"receipt_signing_key": key.pem}}
    shop.create(postgres_database, ["orders"])
    shop.configure(project, postgres_database, ["orders"])
    project.run()
    shop.change(postgres_database, ["orders"])
    project.run()
    exported = tmp_path / "exported"
    assert project.loader("receipts", "export", str(exported)).code == 0
    project.spark.sql(f"drop table {project.schema}._cq_syncs purge")
    assert project.loader("state", "rebuild").code == 0
    ran = project.loader("receipts", "verify", "--key", str(key.public))
    assert ran.code == 1
    assert any("batch 1: its receipt is missing: batch 2" in error for error in ran.errors)
    ran = project.loader("receipts", "verify", str(exported), "--data", "--key", str(key.public))
    assert ran.code == 0, ran.text

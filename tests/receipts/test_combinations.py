"""Receipts for all kinds of sources, for masked columns and in each kind of catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loader.connectors.cloudquery.ingest import CloudQueryIngest
from loader.lake.lake import Lake
from loader.lake.receipt import verify_chain
from loader.maintenance.receipt_check import check_rows, read_receipts
from loader.spec.signing_keys import compute_key_id
from loader.spec.spec import load_spec
from loader.sync.ingest import Ingest
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.connectors.cloudquery.test_ingest import Bridge, synced
from tests.connectors.conftest import program as program
from tests.connectors.program import TIME, Program, at
from tests.crash.test_lease import pyiceberg_catalog as pyiceberg_catalog
from tests.crash.test_lease import rest_catalog as rest_catalog
from tests.crash.test_lease import shared_lake as shared_lake
from tests.receipts.keys import Key, create_key
from tests.services import Database
from tests.sync.project import Project

MORE = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "B c": {"type": "string"}},
}
TYPES = """
    id bigint primary key, at timestamptz, day date, wall timestamp, amount numeric(38, 18),
    price real, weight double precision, big numeric, flag boolean, data bytea, doc jsonb,
    name char(9), list int[], texts text[], clock time, one uuid
"""
VALUES = """
    {id}, timestamptz '2025-01-01' + {id} * interval '1.000001 second', '0980-01-02',
    '1891-10-01 00:00:00.000001', -0.000000000000000001, 'NaN', '-0.0', 123456.789, null, '\\x00ff',
    '{{"a": [1, null]}}', 'ab', '{{1, null, 3}}', '{{"a,b", null, ""}}', '23:59:59.999999',
    md5('{id}')::uuid
"""


def _verify(project: Project, key: Key) -> Any:
    return project.loader("receipts", "verify", "--key", str(key.public))


def _insert(database: Database, table: str, *ids: int) -> None:
    for number in ids:
        database.execute(f"insert into {table} values ({VALUES.format(id=number)})")


def test_sources_of_all_kinds(
    project: Project, postgres_database: Database, tmp_path: Path, program: Program
) -> None:
    key = create_key(tmp_path)
    project.lakes = {"lake": {"receipt_signing_key": key.pem}}
    for table in ("masked", "followed", "plain", "keyless"):
        postgres_database.execute(f"create table {table} ({TYPES})")
        _insert(postgres_database, table, *range(1, 6))
    postgres_database.execute("alter table keyless drop constraint keyless_pkey")
    postgres_database.execute("update masked set price = 'infinity', weight = 'nan' where id = 3")
    masks = {"id": "hash", "name": "hash", "doc": "redact", "data": "null", "wall": "year"}
    exact = {"columns": {"exclude": ["big"]}}
    project.jdbc(
        postgres_database,
        ["masked", "followed", "plain", "keyless"],
        "db",
        table_options={
            "masked": {"cursor_field": "at", "mask": masks, **exact},
            "followed": {"sync_mode": "cdc", **exact},
            "plain": {"cursor_field": "at", **exact},
            "keyless": {"cursor_field": "at", **exact},
        },
    )
    project.sources[-1]["mask_key"] = "k" * 32
    nested = {"id": {"type": "integer"}, "updated_at": TIME, "more": MORE}
    more = {"a": 0.1, "B c": "x"}
    program.stream("items", [{"id": 1, "updated_at": at(1), "more": more}], nested)
    program.configure()
    folder = project.folder / "data" / "docs"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(
        '{"id": 1, "m": {"x": {"y": [1.5, -0.0]}}, "e": [], "t": "a"}\n{"id": 2, "m": null}\n'
    )
    project.add("disk", "file", ["docs"], {"path": "data", "format": "json"})
    project.run()
    _serve(project, synced(project.folder, 1, {"id": 1, "note": "a"}, {"id": 2, "note": None}))

    for table in ("masked", "followed", "plain", "keyless"):
        _insert(postgres_database, table, 6, 7)
        postgres_database.execute(
            f"update {table} set price = 1.5, at = timestamptz '2025-02-01' where id = 2",
            f"delete from {table} where id = 3",
            f"update {table} set flag = true where id = 4",
            f"alter table {table} add column later text default 'later'",
        )
    program.rows["items"] += [{"id": 2, "updated_at": at(2), "more": {"a": None}}]
    (folder / "2.json").write_text('{"id": 3, "m": {"x": {"y": [null]}, "z": 1}}\n')
    program.run()
    _serve(project, synced(project.folder, 2, {"id": 1, "note": "b"}, {"id": 3, "note": ""}))
    project.run(
        "--from",
        "2025-01-01 00:00:00",
        "--to",
        "2025-01-01 00:00:10",
        "--chunk",
        "2 seconds",
        "--select",
        "db.plain",
    )
    ran = project.loader("reconcile", "--repair", "--allow-deletes", "--select", "db.*")
    assert ran.code == 0, ran.text
    project.run("--full-refresh", "--select", "db.*")
    ran = _verify(project, key)
    assert (ran.code, ran.warnings) == (0, []), ran.text
    ran = project.loader("compact", "--expire-days", "0")
    assert ran.code == 0, ran.text
    ran = _verify(project, key)
    assert (ran.code, ran.warnings) == (0, []), ran.text
    raws = [name for name in project.lake().tables() if not name.startswith("_cq")]
    for name in raws:
        project.spark.sql(f"update {project.schema}.{name} set id = null where _cq_batch = 1")
    ran = _verify(project, key)
    assert {e["where"] for e in ran.events if e["event"] == "error"} == {
        f"table {project.schema}.{name}, batch 1" for name in raws
    }, ran.text


def _serve(project: Project, *sessions: dict[str, Any]) -> None:
    bridge: Any = Bridge(*sessions)
    spec = load_spec(project.folder / "loader.yml", needs_source=False)
    CloudQueryIngest(bridge, Ingest(spec, project.spark, "lake", Watch(), lambda _: None)).run()
    assert bridge.errors == [None] * len(sessions)


def test_each_kind_of_catalog(
    project: Project, postgres_database: Database, tmp_path: Path, shared_lake: Lake
) -> None:
    """Each kind of catalog stores the receipt with the batch."""
    key = create_key(tmp_path)
    project.schema, project.lakes = shared_lake.schema, {"lake": {"receipt_signing_key": key.pem}}
    postgres_database.execute(f"create table plain ({TYPES})")
    project.jdbc(
        postgres_database,
        ["plain"],
        table_options={"plain": {"cursor_field": "at", "columns": {"exclude": ["big"]}}},
    )
    for number in range(1, 4):
        _insert(postgres_database, "plain", number)
        pipeline = Pipeline(load_spec(project.folder / "loader.yml"), shared_lake.spark)
        [outcome] = run_tables(pipeline, Watch())
        assert outcome.error is None, outcome.error
    public = key.private.public_key()
    keys = {compute_key_id(public): public}

    def verify() -> list[str]:
        stored = read_receipts(shared_lake)
        chain = stored.receipts["raw.plain"]
        assert [receipt.batch for receipt in chain] == [1, 2, 3]
        found = [*stored.findings, *verify_chain(chain, keys)]
        found += check_rows(shared_lake, "plain", chain, (), stored.snapshots["raw.plain"])
        return [f"{finding.batch}: {finding.text}" for finding in found]

    assert verify() == []
    shared_lake.spark.sql("update raw.plain set flag = true where _cq_batch = 2")
    assert verify() == ["2: values in its 1 row were changed"]

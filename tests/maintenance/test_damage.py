"""A table whose metadata was cut off stops no command for the others, and can be brought back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from loader.errors import DamagedError, LoaderError
from loader.lake.system_tables import append_rows
from loader.maintenance.rebuild import quarantine_table
from loader.spark.error_translation import clear
from tests.services import Database
from tests.sync.project import Project, Ran

TOLD = "its metadata cannot be read: v"


@pytest.fixture
def metadata(project: Project, postgres_database: Database, warehouse: Path) -> Path:
    """Two tables with two batches each; the metadata of orders is cut off, as by a power cut."""
    for table in ("orders", "items"):
        postgres_database.execute(
            f"create table {table} (id int primary key, version bigint)",
            f"insert into {table} values (1, 1)",
        )
    options = {name: {"cursor_field": "version"} for name in ("orders", "items")}
    project.jdbc(postgres_database, ["orders", "items"], table_options=options)
    project.run()
    for table in ("orders", "items"):
        postgres_database.execute(f"insert into {table} values (2, 2)")
    project.run()
    folder = warehouse / project.schema / "orders" / "metadata"
    newest = folder / f"v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"
    newest.write_bytes(newest.read_bytes()[:200])
    return folder


def _told_once(ran: Ran, where: str) -> None:
    """The command failed with one error, which names the table and the file."""
    assert ran.code == 1, ran.text
    [error] = ran.errors
    assert error.startswith(f"{where}: {TOLD}"), error
    assert ".metadata.json is damaged or missing. Other tables are not affected." in error


def test_the_other_tables_go_on(
    project: Project, postgres_database: Database, metadata: Path
) -> None:
    where = f"table {project.schema}.orders"
    for arguments in ((), ("--keep-versions", "1")):
        ran = project.loader("compact", *arguments)
        _told_once(ran, where)
        done = {e["table"]: e for e in ran.events if e["event"] == "compacted"}
        assert set(done) == {
            "shop.items",
            *(f"{project.schema}.{name}" for name in ("_cq_state", "_cq_syncs")),
        }
        assert not done["shop.items"]["note"]
    project.spark.sql(f"delete from {project.schema}._cq_syncs where table_name = 'items'")
    ran = project.loader("state", "rebuild")
    _told_once(ran, where)
    assert [(e["table"], e["syncs_added"]) for e in ran.events if e["event"] == "rebuilt"] == [
        ("shop.items", 2)
    ]
    assert project.loader("compact", "--select", "shop.items").code == 0

    for table in ("orders", "items"):
        postgres_database.execute(f"insert into {table} values (3, 3)")
    ran = project.loader("run")
    _told_once(ran, "table shop.orders")
    assert ran.table("shop.items")["appended"] == 1

    # as docs/recovery.md says, "A damaged table"
    newest = metadata / f"v{(metadata / 'version-hint.text').read_text().strip()}.metadata.json"
    newest.rename(newest.with_suffix(".damaged"))
    before = int(newest.name.removeprefix("v").partition(".")[0]) - 1
    (metadata / "version-hint.text").write_text(str(before))
    ran = project.run()
    assert any("state was ahead of the data" in text for text in ran.warnings)
    assert sorted(project.rows("select id from raw.orders")) == [(1,), (2,), (3,)]
    assert project.loader("compact").code == 0


def test_a_damaged_model_keeps_versions_but_stops_nothing(
    project: Project, metadata: Path, warehouse: Path
) -> None:
    """Nobody can say which versions it needs, so none go; files and Iceberg snapshots do."""
    marts = f"mart_{project.schema.removeprefix('raw_')}"
    project.spark.sql(f"create namespace {marts}")
    project.spark.sql(f"create table {marts}.latest (id int) using iceberg")
    (warehouse / marts / "latest/metadata/v1.metadata.json").write_text("{")
    ran = project.loader("compact", "--keep-versions", "1")
    assert ran.code == 1
    assert "An error occurred while calling" not in ran.text
    assert [error.partition(":")[0] for error in ran.errors] == [
        f"table {project.schema}.orders",
        f"table {marts}.latest",
    ]
    done = {e["table"]: e["note"] for e in ran.events if e["event"] == "compacted"}
    assert done["shop.items"] == f"table {marts}.latest cannot be read: it may need any version"


def _newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime_ns)


def _metadata(folder: Path) -> Path:
    """The table's current metadata file."""
    version = (folder / "metadata/version-hint.text").read_text().strip()
    return folder / f"metadata/v{version}.metadata.json"


def _cut(file: Path, size: int | None) -> None:
    """Cuts a file off, or deletes it."""
    if size is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])


@pytest.fixture
def compared(project: Project, postgres_database: Database, warehouse: Path) -> Path:
    """Two tables, synced and compared; returns the schema's folder."""
    options = {name: {"cursor_field": "version"} for name in ("orders", "items")}
    for table in options:
        postgres_database.execute(
            f"create table {table} (id int primary key, version bigint)",
            f"insert into {table} values (1, 1)",
        )
    project.jdbc(postgres_database, list(options), table_options=options)
    project.run()
    assert project.loader("reconcile", "--buckets", "2", "--per-run", "1").code == 0
    return warehouse / project.schema


def _told(ran: Ran, where: str, stopped: str) -> None:
    """There is one error: it names the damaged table, and not those that are being synced."""
    assert ran.code == 1, ran.text
    [error] = ran.errors
    assert error.startswith(f"{where}: its "), error
    assert (
        f"{stopped} are stopped until `loader state rebuild` (without --select) has created it "
        "again" in error
    )


@pytest.mark.parametrize("how", ["metadata cut off", "manifest list gone"])
def test_a_damaged_ledger_is_named_and_made_anew(
    project: Project, postgres_database: Database, compared: Path, how: str
) -> None:
    ledger, folder = f"{project.schema}._cq_syncs", compared / "_cq_syncs"
    before = project.rows("select table_name, batch from raw._cq_syncs where batch is not null")
    if how == "metadata cut off":
        _cut(_metadata(folder), 200)
    else:
        _cut(_newest(folder, "metadata/snap-*.avro"), None)
    postgres_database.execute("insert into items values (2, 2)")
    for command in (("run",), ("status",), ("state", "rebuild", "--select", "shop.items")):
        _told(project.loader(*command), f"table {ledger}", "All syncs into this schema")
    ran = project.loader("compact", "--keep-versions", "1")
    assert {error.partition(":")[0] for error in ran.errors} == {f"table {ledger}"}, ran.errors

    ran = project.loader("state", "rebuild")
    assert ran.code == 0, ran.text
    [warning] = ran.warnings
    assert warning.startswith(f"{ledger}: its metadata cannot be read: ")
    kept = Path(warning.rpartition(" is in ")[2])
    assert kept.parent == compared / "_cq_damaged"
    assert list(kept.glob("metadata_damaged/*.metadata.json"))
    project.run()
    # with its manifest list gone, the batch was published before the ledger could be written
    rows = project.rows("select table_name, batch from raw._cq_syncs where batch is not null")
    assert sorted(rows) == sorted([*before, ("items", 2)])
    assert sorted(project.rows("select id from raw.items")) == [(1,), (2,)]
    assert project.loader("compact", "--keep-versions", "1").code == 0
    assert not project.loader("state", "rebuild").warnings


def test_damaged_state_and_comparisons_are_named_and_made_anew(
    project: Project, postgres_database: Database, compared: Path
) -> None:
    _cut(_metadata(compared / "_cq_reconciled"), 200)
    postgres_database.execute("insert into items values (2, 2)")
    compare = ("reconcile", "--buckets", "2", "--per-run", "1")
    where = f"table {project.schema}._cq_reconciled"
    _told(project.loader(*compare), where, "Syncs go on; comparisons")
    assert project.run().table("shop.items")["status"] == "nothing new"  # reconcile synced it
    _cut(_metadata(compared / "_cq_state"), None)
    postgres_database.execute("insert into items values (3, 3)")
    for command in (("run",), ("state", "list")):
        where = f"state table {project.schema}._cq_state"
        _told(project.loader(*command), where, "All syncs that keep their cursors there")
    ran = project.loader("state", "rebuild")
    assert ran.code == 0, ran.text
    assert [warning.partition(": ")[0] for warning in ran.warnings] == [
        f"{project.schema}._cq_reconciled",
        f"{project.schema}._cq_state",
    ]
    assert project.run().table("shop.items")["appended"] == 1
    assert project.loader(*compare).code == 0


def _told_of(project: Project, column: str) -> list[LoaderError]:
    """Reads a column of the table t, by Spark and without it; returns what a user reads."""
    lake, found = project.lake(), []
    for read in (
        lambda: project.spark.table(lake.name("t")).collect(),
        lambda: lake.records("t").select([column], {}, {}),
    ):
        with pytest.raises((Py4JError, PySparkException)) as lost:
            read()
        found.append(clear(lost.value, "table t"))
    return found


@pytest.mark.parametrize(
    ("pattern", "size", "part"),
    [
        ("metadata/v*.metadata.json", None, "metadata"),
        ("metadata/snap-*.avro", 0, "metadata"),
        ("metadata/*-m0.avro", None, "metadata"),
        ("metadata/*-m0.avro", 0, "metadata"),
        ("metadata/*-m0.avro", 3000, "metadata"),
        ("data/*.parquet", None, "data"),
        ("data/*.parquet", 0, "data"),
        ("data/*.parquet", 600, "data"),
    ],
)
def test_every_file_of_a_table_counts(
    project: Project, warehouse: Path, pattern: str, size: int | None, part: str
) -> None:
    """By Spark and without it: whatever is lost, the error says that the table is damaged."""
    lake = project.lake()
    lake.prepare()
    lake.create("t", "id bigint, text string")
    append_rows(lake, "t", [{"id": n, "text": str(n)} for n in range(3)])
    _cut(_newest(warehouse / project.schema, f"t/{pattern}"), size)
    for found in _told_of(project, "id"):
        assert isinstance(found, DamagedError), f"{found}"
        assert re.fullmatch(rf"its {part} cannot be read: .+ is damaged or missing", found.what)
        assert "Java" not in str(found)


def test_a_flipped_bit_is_found_without_a_second_file(project: Project, warehouse: Path) -> None:
    """Parquet's own sums tell, by Spark and without it; Hadoop's lie beside no file."""
    lake = project.lake()
    lake.prepare()
    lake.create("t", "id bigint, text string")
    append_rows(lake, "t", [{"id": 1, "text": "unmistakable"}])
    folder = warehouse / project.schema / "t"
    assert not list(folder.rglob(".*.crc"))
    file = _newest(folder, "data/*.parquet")
    written = file.read_bytes()
    file.write_bytes(written.replace(b"unmistakable", b"unmistakaBle", 1))
    assert file.read_bytes() != written
    for found in _told_of(project, "text"):
        assert isinstance(found, DamagedError), f"{found}"
        assert re.fullmatch(r"its data cannot be read: .+ is damaged or missing", found.what)


def test_a_damaged_table_is_put_aside_in_a_catalog_of_names(
    spark: SparkSession, postgres_database: Database, tmp_path: Path
) -> None:
    """Where the catalog, and not a folder, knows the tables: its name becomes free."""
    from tests.crash.test_lease import _shared_lake

    lake = _shared_lake(spark, postgres_database, tmp_path)
    lake.create("_cq_syncs", "id bigint")
    append_rows(lake, "_cq_syncs", [{"id": 1}])
    assert quarantine_table(lake, "_cq_syncs") is None
    # Gone rather than cut off: Iceberg reads a cut one again and again, for a minute.
    _newest(tmp_path / "shared/raw/_cq_syncs/metadata", "*.metadata.json").unlink()
    done = quarantine_table(lake, "_cq_syncs")
    assert done is not None
    assert "stays where it was" in done
    lake.create("_cq_syncs", "id bigint")
    assert lake.frame("_cq_syncs").count() == 0

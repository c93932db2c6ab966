"""A damaged table does not affect commands on other tables, and it can be repaired."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from loader.errors import DamagedError, LoaderError
from loader.lake.system_tables import append_rows
from loader.maintenance.rebuild_state import quarantine_table
from loader.spark.error_translation import translate_error
from tests.services import Database, Postgres
from tests.sync.original import Original
from tests.sync.project import Project, Ran

TOLD = "its metadata cannot be read: v"


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[Database]:
    """The database of all tests that sync."""
    with postgres.database("damaged") as database:
        yield database


@pytest.fixture(scope="module")
def original(
    spark: SparkSession,
    warehouse: Path,
    database: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Original]:
    """Two tables with two batches each, which `loader reconcile` has compared."""
    folder = tmp_path_factory.mktemp("damaged")
    project = Project(folder, spark, "raw_damaged")
    for table in ("orders", "items"):
        database.execute(
            f"create table {table} (id int primary key, version bigint)",
            f"insert into {table} values (1, 1)",
        )
    options = {name: {"cursor_field": "version"} for name in ("orders", "items")}
    project.jdbc(database, ["orders", "items"], table_options=options)
    project.run()
    for table in ("orders", "items"):
        database.execute(f"insert into {table} values (2, 2)")
    project.run()
    assert project.loader("reconcile", "--buckets", "2", "--per-run", "1").code == 0
    original = Original(project, database, warehouse, folder / "copy")
    yield original
    original.remove()


@pytest.fixture
def shop(original: Original, tmp_path: Path) -> Project:
    """Restores the project for one test."""
    return original.again(tmp_path)


def _truncate_metadata(shop: Project, warehouse: Path) -> Path:
    """Truncates the metadata of orders, as after a power cut. Returns the metadata folder."""
    _truncate(_find_metadata(warehouse / shop.schema / "orders"), 200)
    return warehouse / shop.schema / "orders" / "metadata"


def _assert_one_error(ran: Ran, where: str) -> None:
    """Checks that the command failed with one error, which names the table and the file."""
    assert ran.code == 1, ran.text
    [error] = ran.errors
    assert error.startswith(f"{where}: {TOLD}"), error
    assert ".metadata.json is damaged or missing. Other tables are not affected." in error


def test_other_tables_are_synced_and_compacted(
    shop: Project, database: Database, warehouse: Path
) -> None:
    metadata = _truncate_metadata(shop, warehouse)
    where = f"table {shop.schema}.orders"
    for arguments in ((), ("--keep-versions", "1")):
        ran = shop.loader("compact", *arguments)
        _assert_one_error(ran, where)
        done = {e["table"]: e for e in ran.events if e["event"] == "compacted"}
        assert set(done) == {
            "shop.items",
            *(f"{shop.schema}.{name}" for name in ("_cq_reconciled", "_cq_state", "_cq_syncs")),
        }
        assert not done["shop.items"]["note"]
    shop.spark.sql(f"delete from {shop.schema}._cq_syncs where table_name = 'items'")
    ran = shop.loader("state", "rebuild")
    _assert_one_error(ran, where)
    assert [(e["table"], e["syncs_added"]) for e in ran.events if e["event"] == "rebuilt"] == [
        ("shop.items", 2)
    ]
    assert shop.loader("compact", "--select", "shop.items").code == 0

    for table in ("orders", "items"):
        database.execute(f"insert into {table} values (3, 3)")
    ran = shop.loader("run")
    _assert_one_error(ran, "table shop.orders")
    assert ran.table("shop.items")["appended"] == 1

    # the steps in docs/recovery.md, "A damaged table"
    newest = metadata / f"v{(metadata / 'version-hint.text').read_text().strip()}.metadata.json"
    newest.rename(newest.with_suffix(".damaged"))
    before = int(newest.name.removeprefix("v").partition(".")[0]) - 1
    (metadata / "version-hint.text").write_text(str(before))
    ran = shop.run()
    assert any("state was ahead of the data" in text for text in ran.warnings)
    assert sorted(shop.rows("select id from raw.orders")) == [(1,), (2,), (3,)]
    assert shop.loader("compact").code == 0


def test_a_damaged_model_only_prevents_the_removal_of_versions(
    shop: Project, warehouse: Path
) -> None:
    """The model may need any version, so none is removed. The raw table is still compacted."""
    _truncate_metadata(shop, warehouse)
    marts = f"mart_{shop.schema}"
    shop.spark.sql(f"create namespace {marts}")
    shop.spark.sql(f"create table {marts}.latest (id int) using iceberg")
    (warehouse / marts / "latest/metadata/v1.metadata.json").write_text("{")
    ran = shop.loader("compact", "--keep-versions", "1")
    assert ran.code == 1
    assert "An error occurred while calling" not in ran.text
    assert [error.partition(":")[0] for error in ran.errors] == [
        f"table {shop.schema}.orders",
        f"table {marts}.latest",
    ]
    done = {e["table"]: e["note"] for e in ran.events if e["event"] == "compacted"}
    assert done["shop.items"] == f"table {marts}.latest cannot be read, so it may need any version"


def _find_newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime_ns)


def _find_metadata(folder: Path) -> Path:
    """Returns the table's current metadata file."""
    version = (folder / "metadata/version-hint.text").read_text().strip()
    return folder / f"metadata/v{version}.metadata.json"


def _truncate(file: Path, size: int | None) -> None:
    """Truncates a file, or deletes it if `size` is None."""
    if size is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])


def _assert_stopped(ran: Ran, where: str, stopped: str) -> None:
    """Checks that the only error names the damaged table, and no table that was being synced."""
    assert ran.code == 1, ran.text
    [error] = ran.errors
    assert error.startswith(f"{where}: its "), error
    assert (
        f"{stopped} are stopped until `loader state rebuild` (without --select) has recreated it"
        in error
    )


@pytest.mark.parametrize("how", ["metadata cut off", "manifest list gone"])
def test_a_damaged_ledger_is_named_and_rebuilt(
    shop: Project, database: Database, warehouse: Path, how: str
) -> None:
    ledger, folder = f"{shop.schema}._cq_syncs", warehouse / shop.schema / "_cq_syncs"
    before = shop.rows("select table_name, batch from raw._cq_syncs where batch is not null")
    if how == "metadata cut off":
        _truncate(_find_metadata(folder), 200)
    else:
        _truncate(_find_newest(folder, "metadata/snap-*.avro"), None)
    database.execute("insert into items values (3, 3)")
    for command in (("run",), ("status",), ("state", "rebuild", "--select", "shop.items")):
        _assert_stopped(shop.loader(*command), f"table {ledger}", "All syncs into this schema")
    ran = shop.loader("compact", "--keep-versions", "1")
    assert {error.partition(":")[0] for error in ran.errors} == {f"table {ledger}"}, ran.errors

    ran = shop.loader("state", "rebuild")
    assert ran.code == 0, ran.text
    [warning] = ran.warnings
    assert warning.startswith(f"{ledger}: its metadata cannot be read: ")
    kept = Path(warning.rpartition(" are in ")[2])
    assert kept.parent == warehouse / shop.schema / "_cq_damaged"
    assert list(kept.glob("metadata_damaged/*.metadata.json"))
    shop.run()
    # with its manifest list gone, the batch was published before the ledger could be written
    rows = shop.rows("select table_name, batch from raw._cq_syncs where batch is not null")
    assert sorted(rows) == sorted([*before, ("items", 3)])
    assert sorted(shop.rows("select id from raw.items")) == [(1,), (2,), (3,)]
    assert shop.loader("compact", "--keep-versions", "1").code == 0
    assert not shop.loader("state", "rebuild").warnings


def test_damaged_state_and_comparisons_are_named_and_rebuilt(
    shop: Project, database: Database, warehouse: Path
) -> None:
    folder = warehouse / shop.schema
    _truncate(_find_metadata(folder / "_cq_reconciled"), 200)
    database.execute("insert into items values (3, 3)")
    compare = ("reconcile", "--buckets", "2", "--per-run", "1")
    where = f"table {shop.schema}._cq_reconciled"
    _assert_stopped(shop.loader(*compare), where, "Syncs continue; comparisons")
    assert shop.run().table("shop.items")["status"] == "nothing new"  # reconcile synced it
    _truncate(_find_metadata(folder / "_cq_state"), None)
    database.execute("insert into items values (4, 4)")
    for command in (("run",), ("state", "list")):
        where = f"state table {shop.schema}._cq_state"
        _assert_stopped(shop.loader(*command), where, "All syncs that keep their cursors there")
    ran = shop.loader("state", "rebuild")
    assert ran.code == 0, ran.text
    assert [warning.partition(": ")[0] for warning in ran.warnings] == [
        f"{shop.schema}._cq_reconciled",
        f"{shop.schema}._cq_state",
    ]
    assert shop.run().table("shop.items")["appended"] == 1
    assert shop.loader(*compare).code == 0


def _read_errors(project: Project, column: str) -> list[LoaderError]:
    """Reads a column of table t with Spark and without it. Returns the errors that users see."""
    lake, found = project.lake(), []
    for read in (
        lambda: project.spark.table(lake.name("t")).collect(),
        lambda: lake.records("t").select([column], {}, {}),
    ):
        with pytest.raises((Py4JError, PySparkException)) as lost:
            read()
        found.append(translate_error(lost.value, "table t"))
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
def test_any_damaged_file_is_reported_as_damage(
    project: Project, warehouse: Path, pattern: str, size: int | None, part: str
) -> None:
    """Whichever file is damaged, the error says so, with Spark and without."""
    lake = project.lake()
    lake.prepare()
    lake.create("t", "id bigint, text string")
    append_rows(lake, "t", [{"id": n, "text": str(n)} for n in range(3)])
    _truncate(_find_newest(warehouse / project.schema, f"t/{pattern}"), size)
    for found in _read_errors(project, "id"):
        assert isinstance(found, DamagedError), f"{found}"
        assert re.fullmatch(rf"its {part} cannot be read: .+ is damaged or missing", found.what)
        assert "Java" not in str(found)


def test_a_flipped_bit_is_found_without_checksum_files(project: Project, warehouse: Path) -> None:
    """Parquet's own checksums detect it, with Spark and without. Hadoop writes no .crc files."""
    lake = project.lake()
    lake.prepare()
    lake.create("t", "id bigint, text string")
    append_rows(lake, "t", [{"id": 1, "text": "unmistakable"}])
    folder = warehouse / project.schema / "t"
    assert not list(folder.rglob(".*.crc"))
    file = _find_newest(folder, "data/*.parquet")
    written = file.read_bytes()
    file.write_bytes(written.replace(b"unmistakable", b"unmistakaBle", 1))
    assert file.read_bytes() != written
    for found in _read_errors(project, "text"):
        assert isinstance(found, DamagedError), f"{found}"
        assert re.fullmatch(r"its data cannot be read: .+ is damaged or missing", found.what)


def test_a_damaged_table_is_quarantined_in_a_catalog_of_names(
    spark: SparkSession, postgres_database: Database, tmp_path: Path
) -> None:
    """In a catalog that stores the tables' names, quarantine frees the name for a new table."""
    from tests.crash.test_lease import _shared_lake

    lake = _shared_lake(spark, postgres_database, tmp_path)
    lake.create("_cq_syncs", "id bigint")
    append_rows(lake, "_cq_syncs", [{"id": 1}])
    assert quarantine_table(lake, "_cq_syncs") is None
    # Deleted rather than truncated, because Iceberg retries a truncated file for a minute.
    _find_newest(tmp_path / "shared/raw/_cq_syncs/metadata", "*.metadata.json").unlink()
    done = quarantine_table(lake, "_cq_syncs")
    assert done is not None
    assert "are still in their folder" in done
    lake.create("_cq_syncs", "id bigint")
    assert lake.frame("_cq_syncs").count() == 0

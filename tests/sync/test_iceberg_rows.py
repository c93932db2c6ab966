"""Reading and writing state and ledger rows with Iceberg's API gives the same result as Spark."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from loader.errors import TableError
from loader.lake.ledger import TABLE, Ledger, SyncRecord
from loader.lake.system_tables import append_rows
from tests.services import Database
from tests.sync.project import Project

UTC = dt.timezone.utc
COLUMNS = "name string, small bigint, large bigint, yes boolean, at timestamp"
ROWS: list[dict[str, Any]] = [
    {
        "name": "Ebbe 'n' \\Flut\\ 🌊 " + "x" * 40,
        "small": 1,
        "large": 2**62,
        "yes": True,
        "at": dt.datetime(2025, 1, 1, 23, 59, 59, 123456, UTC),
    },
    {"name": None, "small": None, "large": -1, "yes": False, "at": None},
    {"small": 0, "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)},
]


def test_spark_and_iceberg_read_each_others_rows(project: Project) -> None:
    lake = project.lake()
    lake.prepare()
    for table in ("ours", "sparks"):
        lake.create(table, COLUMNS)
    append_rows(lake, "ours", ROWS)
    names = COLUMNS.replace(",", "").split()[::2]
    wanted = [tuple(row.get(name) for name in names) for row in ROWS]
    micros = "name, small, large, yes, unix_micros(at)"
    reported = project.rows(f"select {micros} from raw.ours")
    assert [row[:4] for row in reported] == [row[:4] for row in wanted]
    assert [row[4] for row in reported] == [1735775999123456, None, -1]
    project.spark.sql(f"insert into {lake.name('sparks')} select * from {lake.name('ours')}")
    for table in ("ours", "sparks"):
        found = lake.records(table).select(names, {}, {})
        assert [tuple(row.values()) for row in found] == wanted
        plain = lake.records(table).select(names[3::-1], {}, {})  # converted in one JVM call
        assert [tuple(row.values()) for row in plain] == [row[3::-1] for row in wanted]
        assert lake.records(table).select(["large"], {"name": None, "yes": False}, {}) == [
            {"large": -1}
        ]
        assert lake.records(table).select(["small"], {}, {"small": 1}) == [{"small": 1}]
    # The statistics that prune files are equal, too.
    facts = "content, file_format, spec_id, record_count, value_counts, null_value_counts"
    facts += ", lower_bounds, upper_bounds"
    [ours] = project.rows(f"select {facts} from raw.ours.files")
    [sparks] = project.rows(f"select {facts} from raw.sparks.files")
    assert ours == sparks


def test_the_newest_batches_of_all_tables(project: Project) -> None:
    ledger = Ledger(project.lake())
    ledger.prepare()
    batches = [("shop", "a, b", 1), ("shop", "a, b", 3), ("shop", "c", None), ("x)", "a, b", 2)]
    ledger.append_all(
        [SyncRecord("r", source, table, batch, rows_read=1) for source, table, batch in batches]
    )
    found = {("shop", "a, b"): 3, ("x)", "a, b"): 2}
    assert ledger._by_iceberg(ledger.lake.records(TABLE)) == ledger._by_spark() == found


def test_a_table_that_is_created_concurrently_is_found(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = project.lake()
    assert lake.find_records("t") is None  # the namespace does not exist, either
    lake.prepare()
    assert lake.find_records("t") is None
    exists = lake.exists

    def create_first(table: str) -> bool:
        lake.create(table, "id bigint")
        return exists(table)

    monkeypatch.setattr(lake, "exists", create_first)
    found = lake.find_records("t")
    assert found is not None
    assert found.select(["id"], {}, {}) == []


def test_rows_that_were_deleted_are_not_read(project: Project) -> None:
    lake = project.lake()
    lake.prepare()
    lake.create("t", "id bigint, part string", {"write.delete.mode": "merge-on-read"})
    append_rows(lake, "t", [{"id": 1, "part": "a"}, {"id": 2, "part": "b"}])
    project.spark.sql(f"delete from {lake.name('t')} where id = 2")
    assert project.rows("select content from raw.t.files order by 1") == [(0,), (1,)]
    assert lake.records("t").select(["id"], {}, {}) == [{"id": 1}]
    # After an administrator alters the table, rows can still be appended.
    project.spark.sql(f"alter table {lake.name('t')} add partition field part")
    project.spark.sql(f"alter table {lake.name('t')} add column note string")
    append_rows(lake, "t", [{"id": 3, "part": "c"}])
    assert project.rows("select id, part, note from raw.t order by id") == [
        (1, "a", None),
        (3, "c", None),
    ]


def test_rows_that_were_deleted_from_a_later_file_are_not_read(project: Project) -> None:
    """To apply the deletes, Iceberg reads one more column from that file than from the first."""
    lake = project.lake()
    lake.prepare()
    lake.create("t", "id bigint, part string", {"write.delete.mode": "merge-on-read"})
    append_rows(lake, "t", [{"id": 1, "part": "a"}])
    append_rows(lake, "t", [{"id": 2, "part": "b"}, {"id": 3, "part": "c"}, {"id": 5, "part": "c"}])
    project.spark.sql(f"delete from {lake.name('t')} where id = 2")
    for added in ([], [{"id": 4, "part": "a"}]):
        if added:
            append_rows(lake, "t", added)
        found = lake.records("t").select(["id"], {}, {})
        assert sorted(row["id"] for row in found) == [1, 3, *[4 for _ in added], 5]


def test_a_sync_that_finds_no_rows_starts_no_spark_job(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key, c int)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    scheduler: Any = project.spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    assert project.run().table("shop.t")["status"] == "nothing new"
    assert scheduler.numTotalJobs() == before
    assert project.rows("select count(*) from raw._cq_syncs") == [(2,)]


def test_tables_with_other_types_and_partitions(project: Project) -> None:
    lake = project.lake()
    lake.prepare()
    at = dt.datetime(2025, 1, 1, 9, 30, 0, 500000, dt.timezone(dt.timedelta(hours=9)))
    rows = [{"id": n, "part": part, "at": at} for n, part in enumerate("abba")]
    for name, columns, tail in (
        ("cut", "id bigint, part string, at timestamp", "partitioned by (part)"),
        (
            "days",
            "id bigint, part string, at timestamp",
            "partitioned by (days(at), bucket(3, id))",
        ),
        ("ours", "AT timestamp_ntz, ID int, more string, PART string", ""),
        ("theirs", "id decimal(38, 0), part string not null, at string", "partitioned by (id)"),
    ):
        project.spark.sql(f"create table {lake.name(name)} ({columns}) using iceberg {tail}")
        append_rows(lake, name, rows)
        found = project.rows(
            f"select int(id), part, timestamp(at) = '{at}' from raw.{name} sort by 1"
        )
        assert sorted(found) == [(0, "a", True), (1, "b", True), (2, "b", True), (3, "a", True)]
        # Filters apply to partition columns and to other columns.
        assert len(project.rows(f"select id from raw.{name} where part = 'b'")) == 2
        found = lake.records(name).select(["id", "at"], {"part": "b"}, {"id": 2})
        assert found[0]["id"] == 2
        assert str(found[0]["at"]).startswith("2025-01-01 00:30:00.5")
    # Rows can still be appended after the partition field is dropped.
    project.spark.sql(f"alter table {lake.name('cut')} drop partition field part")
    append_rows(lake, "cut", rows[:1])
    assert project.rows("select count(*) from raw.cut where part = 'a'") == [(3,)]
    with pytest.raises(TableError, match="it has no column note"):
        append_rows(lake, "cut", [{"id": 1, "note": "x"}])

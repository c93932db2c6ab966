"""The `file` connector: what changed is what was written since, or what a column says."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pytest

from tests.sync.project import Project

DAY = dt.datetime(2025, 1, 1, tzinfo=dt.timezone.utc)


def _write(file: Path, text: str, day: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    stamp = (DAY + dt.timedelta(days=day, microseconds=0)).timestamp()
    os.utime(file, (stamp, stamp))
    return file


def _files(project: Project, form: str, **tables: dict[str, object]) -> None:
    own = {"path": "data", "format": form, "table_options": tables}
    project.add("drop", "file", list(tables) or ["*"], own)


def _raw(project: Project, columns: str) -> list[tuple[object, ...]]:
    return project.rows(f"select {columns}, _cq_batch from raw.orders order by _cq_batch, _cq_seq")


def test_a_csv_is_read_when_it_is_new_or_written_again(project: Project) -> None:
    folder = project.folder / "data" / "orders"
    _write(folder / "b.csv", "id,name\n1,first\n2,first\n", 0)
    _write(folder / "_ignored.csv", "id,name\n99,no\n", 0)
    _files(project, "csv", orders={"primary_key": "id", "columns": "id int, name string"})
    first = project.run().table("drop.orders")
    assert (first["appended"], first["cursor"]) == (2, "2025-01-01 00:00:00")

    again = project.run().table("drop.orders")
    assert (again["status"], again["redelivered"]) == ("nothing new", 2)

    # a later file: in the order of modification, whatever its name; of a key twice the last wins
    _write(folder / "a.csv", "id,name\n3,x\n3,y\n3,z\n", 2)
    _write(folder / "c.csv", "id,name\n3,w\n", 1)
    assert project.run().table("drop.orders")["appended"] == 4
    assert _raw(project, "id, name")[2:] == [(3, "w", 2), (3, "x", 2), (3, "y", 2), (3, "z", 2)]

    # the same time: it shares the cursor; written again: all its rows have a new time
    _write(folder / "d.csv", "id,name\n4,tie\n", 2)
    assert project.run().table("drop.orders")["appended"] == 1
    _write(folder / "b.csv", "id,name\n1,second\n2,first\n", 3)
    assert project.run().table("drop.orders")["appended"] == 2
    assert _raw(project, "id, name")[-2:] == [(1, "second", 4), (2, "first", 4)]
    assert project.state("drop.orders")["cursor"] == "2025-01-04 00:00:00"
    [(path,)] = project.rows("select distinct _file_path from raw.orders where _cq_batch = 4")
    assert path.endswith("data/orders/b.csv")


def test_a_column_as_cursor_in_json_with_maps_and_structs(project: Project) -> None:
    rows = [
        {"id": 1, "at": "2025-01-01 10:00:00", "tags": {"a": "1", "b": "2"}, "who": {"n": [1]}},
        {"id": 2, "at": "2025-01-02 10:00:00", "tags": {}, "who": None},
    ]
    columns = "id int, at timestamp, tags map<string, string>, who struct<n: array<int>>"
    folder = project.folder / "data" / "orders"
    _write(folder / "1.json", "\n".join(map(json.dumps, rows)), 0)
    options = {"cursor_field": "at", "primary_key": "id", "columns": columns}
    _files(project, "json", orders=options)
    assert project.run().table("drop.orders")["cursor"] == "2025-01-02 10:00:00"
    assert project.run().table("drop.orders")["status"] == "nothing new"
    assert _raw(project, "id, tags, who.n") == [
        (1, {"a": "1", "b": "2"}, [1], 1),
        (2, {}, None, 1),
    ]
    # the map says the same in another order; another row does say something new
    rows = [
        {"id": 2, "at": "2025-01-02 10:00:00", "tags": {}, "who": None},
        {"id": 3, "at": "2025-01-02 10:00:00", "tags": {"b": "2", "a": "1"}, "who": {"n": []}},
    ]
    _write(folder / "2.json", "\n".join(map(json.dumps, rows)), 1)
    assert project.run().table("drop.orders")["appended"] >= 1
    assert {row[0] for row in _raw(project, "id")} == {1, 2, 3}


def test_parquet_and_a_single_file_and_a_glob(project: Project) -> None:
    data = project.folder / "data"
    project.spark.range(5).selectExpr("id", "cast(id as int) as v").write.parquet(
        str(data / "orders")
    )
    _write(data / "single.parquet", "", 0).write_bytes(
        next((data / "orders").glob("part-*")).read_bytes()
    )
    _write(data / "logs" / "x-1.csv", "a,b\n1,2\n", 0)
    _write(data / "logs" / "y-1.csv", "a,b\n3,4\n", 0)
    _files(
        project,
        "parquet",
        orders={},
        single={},
        globbed={"path": "logs/x-*.csv", "format": "csv"},
    )
    ran = project.run()
    assert ran.table("drop.orders")["appended"] == 5
    assert ran.table("drop.single")["appended"] >= 1
    assert ran.table("drop.globbed")["appended"] == 1
    assert {w.split(":")[1] for w in ran.warnings} == {" no primary key"}
    again = project.run()
    assert {e["status"] for e in again.events if e["event"] == "table"} == {"nothing new"}


def test_what_is_wrong_with_files_is_told_one_by_one(project: Project) -> None:
    data = project.folder / "data"
    _write(data / "orders" / "1.csv", "id,name\n1,a\n", 0)
    (data / "empty").mkdir()
    _write(data / "broken" / "1.parquet", "this is no parquet", 0)
    _write(data / "taken" / "1.csv", "id,_file_path\n1,a\n", 0)
    tables: dict[str, dict[str, object]] = {
        "orders": {},
        "empty": {},
        "declared": {"path": "empty", "columns": "id int"},
        "broken": {"format": "parquet"},
        "gone": {"path": "nowhere/*.csv"},
        "unknown": {"path": "orders", "format": "exel"},
        "taken": {},
        "ddl": {"path": "orders", "columns": "id whole"},
    }
    _files(project, "csv", **tables)
    ran = project.loader("run")
    assert ran.code == 1
    assert ran.table("drop.orders")["appended"] == 1
    assert ran.table("drop.declared")["status"] == "nothing new"
    told = {e["where"].split()[1]: e for e in ran.events if e["event"] == "error"}
    for name, what in {
        "drop.empty": "Unable to infer schema for CSV",
        "drop.broken": "is not a Parquet file",
        "drop.gone": "Path does not exist",
        "drop.unknown": "Spark has no reader for the format 'exel'",
        "drop.taken": "the files have a column '_file_path', which the loader writes itself",
        "drop.ddl": 'Unsupported data type "WHOLE"',
    }.items():
        assert what in told[name]["what"]
        assert told[name]["remedy"]
    assert set(told) == {f"drop.{name}" for name in tables} - {"drop.orders", "drop.declared"}


@pytest.mark.parametrize("column", ["price", "_file_modified_at"])
def test_cursor_columns_of_files(project: Project, column: str) -> None:
    _write(project.folder / "data" / "orders.csv", "id,price\n1,1.25\n2,\n3,10.5\n", 0)
    options = {"cursor_field": column, "columns": "id int, price decimal(10, 2)"}
    _files(project, "csv", orders=options)
    first = project.run().table("drop.orders")
    expected = {"price": "10.50", "_file_modified_at": "2025-01-01 00:00:00"}[column]
    assert (first["appended"], first["cursor"]) == (3, expected)
    assert project.run().table("drop.orders")["status"] == "nothing new"

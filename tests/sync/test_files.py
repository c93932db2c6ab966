"""The `file` connector finds new and changed files; the cursor is the file time or a column."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import socket
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import CursorField, Window
from loader.sources.file.options import FileOptions
from loader.sources.file.source import FileSource
from tests.sync.project import Project

DAY = dt.datetime(2025, 1, 1, tzinfo=dt.timezone.utc)


def _write(file: Path, text: str, day: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (_stamp(day), _stamp(day)))
    return file


def _write_bytes(file: Path, content: bytes, day: int) -> None:
    _write(file, "", day)
    file.write_bytes(content)
    os.utime(file, (_stamp(day), _stamp(day)))


def _stamp(day: int) -> float:
    return (DAY + dt.timedelta(days=day)).timestamp()


def _configure(project: Project, form: str, **tables: dict[str, object]) -> None:
    own = {"path": "data", "format": form, "table_options": tables}
    project.add("drop", "file", list(tables) or ["*"], own)


def _read_raw(project: Project, columns: str) -> list[tuple[object, ...]]:
    return project.rows(f"select {columns}, _cq_batch from raw.orders order by _cq_batch, _cq_seq")


def test_a_csv_is_read_when_it_is_new_or_written_again(project: Project) -> None:
    folder = project.folder / "data" / "orders"
    _write(folder / "b.csv", "id,name\n1,first\n2,first\n", 0)
    _write(folder / "_ignored.csv", "id,name\n99,no\n", 0)
    _configure(project, "csv", orders={"primary_key": "id", "column_types": "id int, name string"})
    first = project.run().table("drop.orders")
    assert (first["appended"], first["cursor"]) == (2, "2025-01-01 00:00:00")

    again = project.run().table("drop.orders")
    assert (again["status"], again["redelivered"]) == ("nothing new", 0)

    # Newer files are read in the order of their times, not of their names.
    _write(folder / "a.csv", "id,name\n3,x\n3,y\n3,z\n", 2)
    _write(folder / "c.csv", "id,name\n3,w\n", 1)
    assert project.run().table("drop.orders")["appended"] == 4
    assert _read_raw(project, "id, name")[2:] == [
        (3, "w", 2),
        (3, "x", 2),
        (3, "y", 2),
        (3, "z", 2),
    ]

    # A new file whose time equals the cursor is read; a rewritten file is read completely.
    _write(folder / "d.csv", "id,name\n4,tie\n", 2)
    assert project.run().table("drop.orders")["appended"] == 1
    _write(folder / "b.csv", "id,name\n1,second\n2,first\n", 3)
    assert project.run().table("drop.orders")["appended"] == 2
    assert _read_raw(project, "id, name")[-2:] == [(1, "second", 4), (2, "first", 4)]
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
    options = {"cursor_field": "at", "primary_key": "id", "column_types": columns}
    _configure(project, "json", orders=options)
    assert project.run().table("drop.orders")["cursor"] == "2025-01-02 10:00:00"
    assert project.run().table("drop.orders")["status"] == "nothing new"
    assert _read_raw(project, "id, tags, who.n") == [
        (1, {"a": "1", "b": "2"}, [1], 1),
        (2, {}, None, 1),
    ]
    # A second file repeats the row at the cursor and adds one whose map has another key order.
    rows = [
        {"id": 2, "at": "2025-01-02 10:00:00", "tags": {}, "who": None},
        {"id": 3, "at": "2025-01-02 10:00:00", "tags": {"b": "2", "a": "1"}, "who": {"n": []}},
    ]
    _write(folder / "2.json", "\n".join(map(json.dumps, rows)), 1)
    assert project.run().table("drop.orders")["appended"] >= 1
    assert {row[0] for row in _read_raw(project, "id")} == {1, 2, 3}


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
    _configure(
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


def test_names_that_look_like_patterns_are_names(project: Project) -> None:
    """A name such as a browser's second download, report[1].csv, is not used as a glob pattern."""
    folder = project.folder / "data"
    for name, number in (("report[1].csv", 1), ("report1.csv", 2), ("a{b,c}/x.csv", 3)):
        _write(folder / name, f"id\n{number}\n", 0)
    _configure(project, "csv")
    project.run()
    for name, number in (("report[1]", 1), ("report1", 2), ("a{b,c}", 3)):
        assert project.rows(f"select id from raw.`{name}`") == [(str(number),)], name


def test_links_out_of_the_folder_and_special_files_are_rejected(
    project: Project, tmp_path: Path
) -> None:
    """Rejects links to paths outside the folder, non-files, and names that Java cannot decode."""
    data = project.folder / "data"
    secret = _write(tmp_path / "outside" / "secret.csv", "id\nsesame\n", 0)
    secret.chmod(0o600)
    wrong = ("linked", "folder", "deep", "loop", "pipe", "socket", "device", "nowhere", "latin")
    wrong = (*wrong, "summary", "chosen")
    for name in ("orders", "other", *wrong[2:]):
        _write(data / name / "1.csv", "id\n1\n", 0)
    (data / "linked.csv").symlink_to(secret)
    (data / "folder").symlink_to(secret.parent)
    (data / "deep" / "more").mkdir()
    (data / "deep" / "more" / "2.csv").symlink_to("../../../outside/secret.csv")
    (data / "loop" / "latest").symlink_to(".")
    (data / "summary" / "_metadata_x").symlink_to(secret.parent)  # Spark does not ignore it
    (data / "chosen" / "more").symlink_to(secret.parent)  # the filter applies only to files
    (data / "nowhere" / "2.csv").symlink_to("3.csv")
    os.mkfifo(data / "pipe" / "2.csv")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(data / "socket" / "s"))
    (data / "device" / "2.csv").symlink_to("/dev/zero")
    latin = os.fsencode(data) + b"/latin/caf\xe9.csv"
    Path(os.fsdecode(latin)).write_text("id\n2\n")
    Path(os.fsdecode(os.fsencode(data) + b"/gr\xfcn.csv")).write_text("id\n2\n")
    # These are accepted: a link within the folder, hidden files, and files outside the filter.
    (data / "orders" / "2.csv").symlink_to("../other/1.csv")
    (data / "orders" / "_2.csv").symlink_to(secret)
    (data / "orders" / "new.txt").symlink_to(secret)
    os.mkfifo(data / "orders" / ".pipe")
    _write(data / "orders" / "a%2F b{1,2}*?[x];#é.csv", "id\n3\n", 0)
    chosen: dict[str, object] = {"options": {"pathGlobFilter": "*.csv"}}
    _configure(project, "csv", orders=chosen, chosen=chosen)
    project.sources[0]["tables"] = ["*"]
    project.write()
    ran = project.loader("run")
    assert ran.code == 1
    assert sorted(project.rows("select id from raw.orders")) == [("1",), ("1",), ("3",)]
    reported = {
        e["where"].removeprefix("table drop."): e for e in ran.events if e["event"] == "error"
    }
    for name, what in {
        "linked": "linked.csv is a link to a path outside the folder",
        "folder": "folder is a link to a path outside the folder",
        "deep": "more/2.csv is a link to a path outside the folder",
        "loop": "latest is a link to a folder that contains it",
        "summary": "_metadata_x is a link to a path outside the folder",
        "chosen": "more is a link to a path outside the folder",
        "pipe": "2.csv is a named pipe, not a file",
        "socket": "s is a socket, not a file",
        "device": "2.csv is a link to a path outside the folder",
        "nowhere": "2.csv is a link without a target",
        "latin": "latin/caf\\xe9.csv is not UTF-8, so Java cannot read the file",
        "gr\\xfcn": "gr\\xfcn.csv is not UTF-8, so Java cannot read the file",
    }.items():
        assert what in reported[name]["what"]
        assert reported[name]["remedy"]
    assert set(reported) == {*wrong, "gr\\xfcn"}
    assert "sesame" not in ran.text

    # follow_links accepts such links; a table's path may also name the other folder itself.
    own = {"path": "data", "format": "csv", "follow_links": True}
    project.add("drop", "file", ["linked", "deep"], own)
    project.add("named", "file", ["above"], {**own, "table_options": {}, "follow_links": False})
    project.sources[1]["spec"]["table_options"] = {"above": {"path": "../outside/*.csv"}}
    project.write()
    project.run()
    for table in ("linked", "deep", "above"):
        assert ("sesame",) in project.rows(f"select id from raw.{table}"), table


def test_each_bad_table_has_its_own_error(project: Project) -> None:
    data = project.folder / "data"
    _write(data / "orders" / "1.csv", "id,name\n1,a\n", 0)
    (data / "empty").mkdir()
    _write(data / "broken" / "1.parquet", "this is no parquet", 0)
    _write(data / "taken" / "1.csv", "id,_file_path\n1,a\n", 0)
    tables: dict[str, dict[str, object]] = {
        "orders": {},
        "empty": {},
        "declared": {"path": "empty", "column_types": "id int"},
        "broken": {"format": "parquet"},
        "gone": {"path": "nowhere/*.csv"},
        "unknown": {"path": "orders", "format": "exel"},
        "taken": {},
        "ddl": {"path": "orders", "column_types": "id whole"},
    }
    _configure(project, "csv", **tables)
    ran = project.loader("run")
    assert ran.code == 1
    assert ran.table("drop.orders")["appended"] == 1
    assert ran.table("drop.declared")["status"] == "nothing new"
    reported = {e["where"].split()[1]: e for e in ran.events if e["event"] == "error"}
    for name, what in {
        "drop.empty": "Unable to infer schema for CSV",
        "drop.broken": "is not a Parquet file",
        "drop.gone": "Path does not exist",
        "drop.unknown": "Spark has no reader for the format 'exel'",
        "drop.taken": "the files have a column '_file_path', which the loader writes itself",
        "drop.ddl": 'Unsupported data type "WHOLE"',
    }.items():
        assert what in reported[name]["what"]
        assert reported[name]["remedy"]
    assert set(reported) == {f"drop.{name}" for name in tables} - {"drop.orders", "drop.declared"}


@pytest.mark.parametrize("column", ["price", "_file_modified_at"])
def test_cursor_columns_of_files(project: Project, column: str) -> None:
    _write(project.folder / "data" / "orders.csv", "id,price\n1,1.25\n2,\n3,10.5\n", 0)
    options = {"cursor_field": column, "column_types": "id int, price decimal(10, 2)"}
    _configure(project, "csv", orders=options)
    first = project.run().table("drop.orders")
    expected = {"price": "10.50", "_file_modified_at": "2025-01-01 00:00:00"}[column]
    assert (first["appended"], first["cursor"]) == (3, expected)
    assert project.run().table("drop.orders")["status"] == "nothing new"


def test_columns_of_csv_files_are_matched_by_name(project: Project) -> None:
    folder = project.folder / "data" / "orders"
    _write(folder / "a.csv", "id,name\n1,one\n", 0)
    _write(folder / "b [1] 50%.csv", "NAME,id\ntwo,2\n", 1)
    _write(folder / "empty.csv", "", 1)
    _configure(project, "csv", orders={"primary_key": "id", "options": {"inferSchema": "true"}})
    project.run()
    assert _read_raw(project, "id, name") == [(1, "one", 1), (2, "two", 1)]

    # A new column in the middle, a nested folder, compression, and a byte order mark.
    _write(folder / "2025" / "c.csv", "name,price,id\nthree,3.5,3\n", 2)
    packed = _write(folder / "d.csv.gz", "", 2)
    packed.write_bytes(gzip.compress("\ufeff\nid,name\n4,four\n".encode()))
    os.utime(packed, (_stamp(3), _stamp(3)))
    assert project.run().table("drop.orders")["appended"] == 2
    assert _read_raw(project, "id, name, price")[2:] == [(3, "three", 3.5, 2), (4, "four", None, 2)]
    again = project.run().table("drop.orders")
    assert (again["status"], again["redelivered"]) == ("nothing new", 0)


def test_files_that_are_already_loaded_are_not_opened_again(project: Project) -> None:
    data, written = project.folder / "data", project.folder / "written"
    project.spark.range(2).selectExpr("id", "'a' as v").coalesce(1).write.parquet(str(written))
    [parquet] = written.glob("part-*")
    contents = {
        "csv": b"id,v\n0,a\n1,a\n",
        "json": b'{"id":0,"v":"a"}\n{"id":1,"v":"a"}\n',
        "parquet": parquet.read_bytes(),
    }
    for form, content in contents.items():
        for number, day in enumerate((0, 1, 1)):
            _write_bytes(data / form / f"{number}.{form}", content, day)
    tables: dict[str, dict[str, object]] = {f: {"format": f, "primary_key": "id"} for f in contents}
    _configure(project, "csv", **tables)
    project.run()
    project.run()

    # Paths, sizes and times stay the same, but the content is invalid: opening it would fail.
    for form, content in contents.items():
        for number, day in enumerate((0, 1, 1)):
            _write_bytes(data / form / f"{number}.{form}", b"\xff" * len(content), day)
    ran = project.run()
    for form in contents:
        entry = ran.table(f"drop.{form}")
        assert (entry["status"], entry["redelivered"]) == ("nothing new", 0), form

    # A file with the same time but a different size is read.
    for form, content in contents.items():
        for number, day in enumerate((0, 1, 1)):
            _write_bytes(data / form / f"{number}.{form}", content, day)
    _write(data / "csv" / "2.csv", "id,v\n0,a\n1,changed\n", 1)
    _write(data / "json" / "2.json", '{"id":1,"v":"changed"}\n', 1)
    ran = project.run()
    for form, appended in (("csv", 2), ("json", 1), ("parquet", 0)):
        assert ran.table(f"drop.{form}")["appended"] >= appended, form
    for form in ("csv", "json"):
        assert ("changed",) in project.rows(f"select v from raw.{form}"), form
    # Another new file with the same time is read.
    _write(data / "csv" / "3.csv", "id,v\n7,new\n", 1)
    project.run()
    assert project.rows("select v from raw.csv where id = '7'") == [("new",)]


def test_a_file_that_was_just_written_is_opened_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the same size may replace it within one tick of the file system's clock."""
    file = _write(project.folder / "data" / "orders" / "1.csv", "id,v\n1,a\n", 0)
    _configure(project, "csv", orders={"primary_key": "id"})
    for seconds, value in (("01.9", "a"), ("02.0", "b"), ("09.0", "c")):
        clock = Cursor.parse(f"2025-01-01 00:00:{seconds}", CursorType.TIMESTAMPTZ)
        monkeypatch.setattr("loader.sources.file.snapshot.read_clock", lambda _, now=clock: now)
        _write(file, f"id,v\n1,{value}\n", 0)
        project.run()
    # "c" is not read, because the second listing was two seconds after the file's time.
    assert project.rows("select v from raw.orders order by _cq_batch") == [("a",), ("b",)]


def test_rows_are_numbered_in_the_order_in_which_they_were_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark reads large splits first and in parallel, whether of one file or of several files."""
    session = spark.newSession()
    session.conf.set("spark.sql.files.maxPartitionBytes", "200")
    session.conf.set("spark.sql.files.openCostInBytes", "40")
    expected: list[str] = []
    for name, day, rows in (("b", 0, 5), ("a", 2, 300), ("c", 1, 40), ("d", 1, 60)):
        keys = [f"{day}{name}{number}" for number in range(rows)]
        _write(tmp_path / "orders" / f"{name}.csv", "\n".join(["id", *keys, ""]), day)
    for name, day, rows in (("b", 0, 5), ("c", 1, 40), ("d", 1, 60), ("a", 2, 300)):
        expected += [f"{day}{name}{number}" for number in range(rows)]
    source = FileSource("drop", FileOptions(path=str(tmp_path), format="csv"), session, tmp_path)
    table = source.describe(source.tables()[0])
    window = Window(CursorField("_file_modified_at", CursorType.TIMESTAMPTZ))
    with source.snapshot([table]) as snapshot:
        read = snapshot.read(session, table, window, snapshot.bounds(table, window))
        found = read.select("id", "_cq_seq").collect()
    assert [row[0] for row in found] != expected
    assert [row[0] for row in sorted(found, key=lambda row: row[1])] == expected
    assert len({row[1] for row in found}) == len(expected)


def test_columns_that_only_some_files_have(project: Project) -> None:
    data = project.folder / "data"

    def parquet(path: str, day: int, *columns: str) -> None:
        written = data / "written"
        frame = project.spark.range(1).selectExpr(*columns).coalesce(1)
        frame.write.mode("overwrite").parquet(str(written))
        target = data / path
        target.parent.mkdir(parents=True, exist_ok=True)
        next(written.glob("part-*")).replace(target)
        os.utime(target, (_stamp(day), _stamp(day)))

    parquet("orders/1.parquet", 0, "1 as id")
    parquet("parts/at=2025-01-01/1.parquet", 0, "1 as id")
    for kind in ("json", "orc"):
        (data / kind).mkdir()
    _write(data / "json" / "1.json", '{"id": 1}', 0)
    tables: dict[str, dict[str, object]] = {
        "orders": {"primary_key": "id"},
        "parts": {"primary_key": "id"},
        "json": {"primary_key": "id", "format": "json"},
    }
    _configure(project, "parquet", **tables)
    project.run()
    parquet("orders/2.parquet", 1, "'two' as name", "2 as id")
    parquet("parts/at=2025-01-02/2.parquet", 1, "2 as id", "'two' as name")
    _write(data / "json" / "2.json", '{"name": "two", "id": 2}', 1)
    project.run()
    for table in tables:
        rows = project.rows(f"select id, name from raw.{table} order by id")
        assert rows == [(1, None), (2, "two")], table
    assert project.rows("select cast(max(at) as string) from raw.parts") == [("2025-01-02",)]


def test_files_that_do_not_fit_are_refused(project: Project) -> None:
    data = project.folder / "data"
    _write(data / "bare" / "1.csv", "1,a\n2,b\n", 0)
    _write(data / "bare" / "2.csv", "3,c,more\n", 1)
    _write(data / "half" / "1.csv", "id,name\n1,a\n2", 0)
    _write(data / "cut" / "1.json", '{"id": 1}\n{"id": ', 0)
    _write(data / "other" / "1.csv", "ID,Title\n1,a\n", 0)
    _write(data / "other" / "2.csv", "Key,Title\n1,a\n", 1)
    _write(data / "stray" / "day=1" / "1.csv", "id\n1\n", 0)
    _write(data / "stray" / "2.csv", "id\n2\n", 0)
    tables: dict[str, dict[str, object]] = {
        "bare": {"options": {"header": "false"}},
        "half": {},
        "cut": {"format": "json"},
        "other": {"column_types": "id int, name string"},
        "stray": {},
    }
    _configure(project, "csv", **tables)
    ran = project.loader("run")
    reported = {e["where"].split()[1].strip(","): e for e in ran.events if e["event"] == "error"}
    for name, what in {
        "drop.bare": "Malformed CSV record",
        "drop.half": "Malformed CSV record: 2",
        "drop.cut": "Unexpected end-of-input",
        "other": "2.csv has none of the table's columns: it has Key, Title",
        "drop.stray": "1 of its files are outside the folders named column=value",
    }.items():
        assert what in reported[name]["what"], reported[name]
        assert reported[name]["remedy"], reported[name]
    assert set(reported) == {"drop.bare", "drop.half", "drop.cut", "other", "drop.stray"}
    assert ran.code == 1

    # With these reader options, the same files are read.
    tables["bare"]["options"] = {"header": "false", "MODE": "PERMISSIVE"}
    tables["other"]["options"] = {"enforceSchema": "true"}
    tables["stray"]["options"] = {"recursiveFileLookup": "true"}
    # A column name that contains a line break.
    _write(data / "lines" / "1.csv", '"a\nb",id\nx,1\n', 0)
    _write(data / "lines" / "2.csv", 'id,"a\nb"\n2,y\n', 0)
    tables["lines"] = {"options": {"multiLine": "true"}, "column_types": "id int"}
    names = ("bare", "other", "stray", "lines")
    _configure(project, "csv", **{name: tables[name] for name in names})
    ran = project.run()
    assert [ran.table(f"drop.{name}")["appended"] for name in names] == [3, 2, 2, 2]
    assert project.rows("select id from raw.lines order by id") == [(1,), (2,)]


def test_reader_options_select_the_files(project: Project) -> None:
    folder = project.folder / "data" / "orders"
    _write(folder / "deep" / "er" / "a.csv", "id\n1\n", 0)
    _write(folder / "b.csv", "id\n2\n", -5)
    _write(folder / "c.txt", "no table at all", 9)
    options = {"pathGlobFilter": "*.csv", "modifiedAfter": "2024-12-30T00:00:00"}
    _configure(project, "csv", orders={"primary_key": "id", "options": options})
    first = project.run().table("drop.orders")
    assert (first["appended"], first["cursor"]) == (1, "2025-01-01 00:00:00")
    # With recursiveFileLookup: false, files in subfolders are not read.
    options = {"pathGlobFilter": "*.csv", "recursiveFileLookup": "false"}
    _configure(project, "csv", orders={"primary_key": "id", "options": options})
    _write(folder / "d.csv", "id\n4\n", 1)
    _write(folder / "deep" / "e.csv", "id\n5\n", 2)
    assert project.run().table("drop.orders")["cursor"] == "2025-01-02 00:00:00"
    assert {row[0] for row in _read_raw(project, "id")} == {"1", "2", "4"}


def test_a_file_that_is_moved_in_with_an_older_time(project: Project) -> None:
    folder = project.folder / "data" / "orders"
    _write(folder / "a.csv", "id,name\n1,a\n", 5)
    _write(folder / "b.csv", "id,name\n2,b\n", 8)
    own = {"primary_key": "id", "initial_cursor": "2025-01-02"}
    _configure(project, "csv", orders=own)
    assert project.run().table("drop.orders")["appended"] == 2
    assert project.run().table("drop.orders")["status"] == "nothing new"

    _write(folder / "c.csv", "id,name\n3,c\n2,old\n", 6)
    _write(folder / "before.csv", "id,name\n9,no\n", 0)
    ran = project.run().table("drop.orders")
    assert (ran["appended"], ran["redelivered"]) == (2, 0)
    assert project.state("drop.orders")["cursor"] == "2025-01-09 00:00:00"
    # A deleted file and one without rows append nothing, and are not checked again.
    (folder / "a.csv").unlink()
    _write(folder / "none.csv", "id,name\n", 7)
    assert project.run().table("drop.orders")["appended"] == 0
    mark = project.state("drop.orders")["mark"]
    assert project.run().table("drop.orders")["appended"] == 0
    assert (mark["files"], project.state("drop.orders")["mark"]) == (3, mark)
    # A file is replaced by an older one; an older file arrives together with a newer one.
    _write(folder / "c.csv", "id,name\n3,older\n", 4)
    _write(folder / "d.csv", "id,name\n4,d\n", 7)
    _write(folder / "e.csv", "id,name\n5,e\n", 9)
    assert project.run().table("drop.orders")["appended"] == 3
    assert [row[:2] for row in _read_raw(project, "id, name")] == [
        ("1", "a"),
        ("2", "b"),
        ("3", "c"),
        ("2", "old"),
        ("3", "older"),
        ("4", "d"),
        ("5", "e"),
    ]
    # After `state set`, the next sync starts at this cursor.
    project.loader("state", "set", "drop.orders", "2025-01-21")
    _write(folder / "f.csv", "id,name\n6,f\n", 19)
    assert project.run().table("drop.orders")["status"] == "nothing new"
    _write(folder / "g.csv", "id,name\n7,g\n", 18)
    assert project.run().table("drop.orders")["appended"] == 0

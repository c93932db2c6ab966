"""The content of files is read exactly, or the table fails with one clear error."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import os
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loader.sources.file.json_key_case import find_miscased_key
from tests.sync.project import Project, Ran


def _write(file: Path, content: str | bytes, time: int = 1_735_689_600) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(file, (time, time))


def _configure(project: Project, form: str, **tables: dict[str, object]) -> None:
    own = {"path": "data", "format": form, "table_options": tables}
    project.add("drop", "file", list(tables) or ["*"], own)


def _list_errors(ran: Ran) -> dict[str, str]:
    """Returns the error and remedy of each failed table, by table."""
    errors = [event for event in ran.events if event["event"] == "error"]
    named = [event["where"].removeprefix("table ").split()[0].strip(",") for event in errors]
    return {
        name.removeprefix("drop."): f"{event['what']}. {event['remedy']}"
        for name, event in zip(named, errors, strict=True)
    }


def test_a_json_number_is_never_rounded(project: Project) -> None:
    data = project.folder / "data"
    lost = {
        "mixed": '{"v":1.5}\n{"v":12345678901234567890}\n',
        "long": '{"id":7220000000000000001,"v":0.1234567890123456789}\n',
        "money": '{"v":12345678901234.567}\n',
        "infinite": '{"v":1e400}\n',
        "text": '{"v":"x"}\n{"v":0.1234567890123456789}\n',
        "deep": '{"v":[{"w":1.5}]}\n{"v":[{"w":9007199254740993}]}\n',
        "quoted": "{'v':0.1234567890123456789}\n",
        "inside": '{"v":"x"}\n{"v":{"a":[0.1234567890123456789]}}\n',
    }
    kept = {
        "double": '{"v":0.30000000000000004}\n{"v":-1.7976931348623157e+308}\n{"v":1e2}\n',
        "whole": '{"v":7220000000000000001,"n":"1.12345678901234567890"}\n',
        "big": '{"v":12345678901234567890}\n',
    }
    for name, text in {**lost, **kept}.items():
        _write(data / name / "1.json", text)
    declared = {"path": "long", "column_types": "id bigint, v decimal(38, 20)"}
    rounds = {"path": "long", "column_types": "v double"}
    tables: dict[str, dict[str, object]] = {name: {} for name in (*lost, *kept)}
    _configure(project, "json", **tables, declared=declared, rounds=rounds)
    ran = project.loader("run")
    reported = _list_errors(ran)
    assert {
        name: "has more digits than a double" in what for name, what in reported.items()
    } == dict.fromkeys(lost, True)
    assert "column v.w" in ran.text
    assert "the number 9007199254740993 of file:" in reported["deep"]
    assert "in the table's `column_types`: decimal(38, 20)" in reported["mixed"]
    names = (*kept, "declared", "rounds")
    values = [project.rows(f"select cast(v as string) from raw.{name}") for name in names]
    assert values == [
        [("0.30000000000000004",), ("-1.7976931348623157E308",), ("100.0",)],
        [("7220000000000000001",)],
        [("12345678901234567890",)],
        [("0.12345678901234567890",)],
        [("0.12345678901234568",)],
    ]


def test_lines_longer_than_the_limit_are_rejected(project: Project) -> None:
    """Spark's line reader silently drops longer lines; without a limit, Java runs out of memory."""
    data = project.folder / "data"
    limit = 2000
    longest, longer = b"x" * (limit - 2), b"x" * (limit - 1)
    _write(data / "fits" / "1.csv", b"id,v\r\n1," + longest + b"\r\n\n2,\x00\r\n")
    _write(data / "fits" / "2.csv.gz", gzip.compress(b"id,v\n3," + longest))
    _write(data / "plain" / "1.csv", b"id,v\n1,a\n2," + longer + b"\n3,b\n")
    _write(data / "packed" / "1.csv", "id,v\n1,a\n")
    _write(data / "packed" / "2.csv.gz", gzip.compress(b"id,v\n1," + longer))
    _write(data / "json" / "1.json", b'{"v":"' + longer + b'"}\n')
    _write(data / "declared" / "1.json", b'{"v":"a"}\n{"v":"' + longer + b'"}\n{"v":"b"}\n')
    _write(data / "text" / "1.txt.gz", gzip.compress(b"a\n\x00" + longer + b"x\nb\n"))
    _write(data / "bare" / "1.csv", b"1,a\n2," + longer)
    _write(data / "open" / "1.csv", b'id,v\n1,a\n2,"' + b"a\n" * limit + b"b,c\n" * limit)
    _write(data / "head" / "1.csv.gz", gzip.compress(b"x" * (17 << 20)))
    tables: dict[str, dict[str, object]] = {
        "fits": {},
        "plain": {},
        "packed": {},
        "json": {"format": "json"},
        "declared": {"format": "json", "column_types": "v string"},
        "text": {"format": "text"},
        "bare": {"options": {"header": "false"}},
        "open": {"options": {"multiLine": "true"}},
        "head": {},
    }
    own = {"path": "data", "format": "csv", "line_limit": limit, "table_options": tables}
    project.add("drop", "file", list(tables), own)
    ran = project.loader("run")
    reported = _list_errors(ran)
    for name, what in {
        "plain": "line 3 of file:",
        "packed": "line 2 of file:",
        "json": "line 1 of file:",
        "declared": "line 2 of file:",
        "text": "line 2 of file:",
        "bare": "line 2 of file:",
        "open": "has more than 2,000 characters",
        "head": "does not end within 16,777,216 bytes",
    }.items():
        assert what in reported[name], reported
        assert name == "head" or "raise line_limit" in reported[name]
    assert "/packed/2.csv.gz has more than 2,000 bytes" in reported["packed"]
    assert set(reported) == tables.keys() - {"fits"}
    assert project.rows("select id, length(v) from raw.fits order by id") == [
        ("1", limit - 2),
        ("2", 1),
        ("3", limit - 2),
    ]
    # With a higher limit, the same line is read.
    project.add("drop", "file", ["declared"], {**own, "line_limit": limit + 100})
    project.run()
    assert project.rows("select max(length(v)) from raw.declared") == [(limit - 1,)]


def test_files_that_spark_would_misread_are_rejected(project: Project) -> None:
    data = project.folder / "data"
    csv: dict[str, dict[str, object]] = {
        name: {}
        for name in (
            "fine",
            "open",
            "latin",
            "wide",
            "packed",
            "zipped",
            "colon",
            "late",
            "slash",
            "tar",
            "tgz",
        )
    }
    json: dict[str, dict[str, object]] = {
        name: {"format": "json"}
        for name in (
            "two",
            "comma",
            "arrays",
            "behind",
            "bytes",
            "whole",
            "stored",
            "rest",
            "twice",
            "cases",
            "nested",
            "within",
        )
    }
    json["whole"]["options"] = {"multiLine": "true"}
    declared = {"column_types": "id int, v string"}
    json["rest"] |= declared
    json["letters"] = {"format": "json", "column_types": "ID int, v string"}
    json["inner"] = {"format": "json", "column_types": "id int, o array<struct<a:int>>"}
    json["outside"] = {"format": "json", "column_types": "id int, o struct<a:int>"}
    many = {"multiLine": "true"}
    json["listed"] = {"format": "json", "column_types": "id int, v string", "options": many}
    json["places"] = {"format": "json", "column_types": "id int, o struct<ID:int>"}
    json["mapped"] = {"format": "json", "column_types": "id int, m map<string,struct<a:int>>"}
    json["dated"] = {
        "format": "json",
        "column_types": "id int, at date",
        "options": {"dateFormat": "dd.MM.yyyy"},
    }
    json |= {name: {"format": "json"} for name in ("escaped", "single", "places_found", "empty")}
    json |= {name: {"format": "json"} for name in ("apostrophe", "unnamed", "unnamed_top", "blank")}
    several = {"multiLine": "true"}
    json["braces_json"] = {"format": "json", "options": several}
    csv["braces"] = {"options": several}
    json["comment"] = {"format": "json", "options": {"allowComments": "true"}}
    json["again"] = {"format": "json", "column_types": "id int, o struct<a:int>"}
    json["deep"] = {"format": "json", "column_types": f"id int, o {_nest_type('int')}"}
    json["kept"] = {"format": "json", "column_types": "id int, type string, m map<string,string>"}
    json["broad"] = {"format": "json", "column_types": ", ".join(f"c{n} int" for n in range(700))}
    csv |= {"open_declared": dict(declared), "bare": {"options": {"header": "false"}}}
    csv["too_broad"] = {}
    csv["text"] = {"format": "text"}
    csv["tar_text"] = {"format": "text"}
    csv["zip_bare"] = {"options": {"header": "false"}}
    _configure(project, "csv", same={}, **csv, **json)
    _write(data / "same.2025-01.csv", "id\n1\n")
    _write(data / "Same.2025-02.csv", "id\n2\n")
    _write(data / "same" / "1.csv", "id\n3\n")
    _write(
        data / "fine" / "1.csv", 'id,v\n1,"say ""hi"", x"\n2,5" pipe\n3,"a"b\n4,"\\"\n5,"\\""x"\n'
    )
    _write(data / "slash" / "1.csv", 'id,v\n1,"C:\\"\n2,5\\" pipe\n3,"say \\"hi\\""\n')
    _write(data / "open" / "1.csv", 'id,v\n1,"hello\nworld, more"\n')
    _write(data / "open_declared" / "1.csv", 'id,v\n1,"hello\n2,x\n')
    _write(data / "bare" / "1.csv", '1,"hello\nworld, more"\n')
    _write(data / "latin" / "1.csv", "id,v\n1,café\n".encode("latin-1"))
    _write(data / "late" / "1.csv", b"id,v\n" + b"1,abcdef\n" * 9999 + "2,é\n".encode("latin-1"))
    _write(data / "text" / "1.txt", "café\n".encode("latin-1"))
    _write(data / "wide" / "1.csv", "id,v\n1,café\n".encode("utf-16"))
    _write(data / "packed" / "1.csv", gzip.compress(b"id,v\n1,a\n"))
    _write(data / "zipped" / "1.csv", b"PK\x03\x04aaaa\n1,2\n")
    _write(data / "too_broad" / "1.csv", ",".join(f"c{n}" for n in range(20_481)) + "\n")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("1.csv"))
    _write(data / "tar" / "1.csv.tar", archive.getvalue())
    _write(data / "tgz" / "1.tar.gz", gzip.compress(archive.getvalue()))
    _write(data / "tar_text" / "1.tar", archive.getvalue())
    _write(data / "zip_bare" / "1.zip", b"PK\x03\x04aaaa,1\n1,2\n")
    _write(data / "colon" / "at10:00.csv", "id,v\n1,a\n")
    _write(data / "two" / "1.json", '{"id":1}{"id":2}\n')
    _write(data / "comma" / "1.json", '{"id":1},{"id":2}\n')
    _write(data / "arrays" / "1.json", '[{"id":1}] [{"id":2}]\n')
    _write(data / "behind" / "1.json", '{"id":1}]{"id":2}\n')
    _write(data / "rest" / "1.json", '{"id":1}\n{"id":2} and more\n')
    _write(data / "bytes" / "1.json", '{"id":1,"v":"café"}\n'.encode("latin-1"))
    _write(data / "whole" / "1.json", '{"id":1}\n{"id":2}\n')
    _write(data / "stored" / "1.json", gzip.compress(b'{"id":1}\n'))
    _write(data / "nested" / "1.json", '{"a":[{"b":1}]}\n{"a":[{"B":1}]}\n')
    quoted = """{"b":1,"s":'"B": 1',"d":2}\n"""
    _write(data / "within" / "1.json", r'{"b":1,"s":"\"B\":1","c":{"D":1},"d":2}' + f"\n{quoted}")
    _write(data / "inner" / "1.json", '{"id":1,"o":[{"a":5},{"A":6}]}\n')
    _write(data / "outside" / "1.json", '{"id":1,"o":{"a":5,"ID":3},"rest":{"O":1,"A":{"o":1}}}\n')
    _write(data / "listed" / "1.json", '[{"id":1,"v":"a"},\n{"id":2,"V":"b"}]\n')
    _write(data / "letters" / "1.json", '{"ID":1,"v":"a"}\n{"v":"id","id":2}\n')
    _write(data / "twice" / "1.json", '{"id":1,"v":"g","v":"h"}\n')
    _write(data / "places" / "1.json", '{"id":1,"o":{"ID":7}}\n{"ID":2,"o":{"ID":8}}\n')
    _write(data / "places_found" / "1.json", '{"id":1,"o":{"ID":7}}\n')
    _write(data / "places_found" / "2.json", '{"ID":2,"o":{"ID":8}}\n')
    _write(data / "mapped" / "1.json", '{"id":1,"m":{"x":{"A":2}}}\n')
    _write(data / "dated" / "1.json", '{"id":1,"At":"30.12.2024"}\n')
    _write(data / "escaped" / "1.json", '{"gr\\u00f6\\u00dfe":1}\n{"Gr\\u00f6\\u00dfe":2}\n')
    _write(data / "single" / "1.json", "{'id':1}\n{'ID':2}\n")
    _write(data / "apostrophe" / "1.json", """{"id":1,"v":"x"}\n{"v":'a"b',"ID":2}\n""")
    _write(data / "comment" / "1.json", '{"id":1}\n/* " */{"ID":2}\n')
    _write(data / "again" / "1.json", '{"id":1,"o":{"a":1},"o":{"A":2}}\n')
    _write(data / "deep" / "1.json", '{"id":1,"o":' + '{"o":' * 35 + '{"A":1}' + "}" * 36 + "\n")
    _write(data / "unnamed" / "1.json", '{"id":1,"o":{"":5,"a":"\\":"}}\n')
    _write(data / "unnamed_top" / "1.json", """{'id':1,'' : 5}\n""")
    _write(data / "blank" / "1.json", '{"id":1,"o":"","p":["","\\"\\":",":"]}\n')
    _write(data / "braces" / "1{2}[3].csv", 'id,v\n1,"a\nb"\n')
    _write(data / "braces_json" / "1{2}[3].json", '{"id":1,\n"v":2}')
    # These keys are not columns: in an empty object, in a map, and in text that is itself JSON.
    _write(data / "empty" / "1.json", '{"id":1,"o":{"ID":{}}}\n')
    page = '<a href=\\"x\\">' * 3000
    kept = '{"id":1,"type":{"Type":"' + page + '"},"m":{"Id":"5"}}\n'
    _write(data / "kept" / "1.json", kept)
    _write(data / "broad" / "1.json", '{"c0":1,"other":{"C1":2}}\n')
    _write(data / "cases" / "1.json", '{"id":1}\n')
    _write(data / "cases" / "2.json", '{"ID":1}\n')
    ran = project.loader("run")
    reported = _list_errors(ran)
    expected = {
        "twice": "the column 'v' exists twice: a key is repeated",
        "cases": "a key differs from a column only in case, ",
        "nested": "a key differs from a column only in case, ",
        "letters": "a key differs from a column only in case, id, in file:",
        "places": "a key differs from a column only in case, ID, in file:",
        "places_found": "a key differs from a column only in case, ",
        "mapped": "a key differs from a column only in case, A, in file:",
        "dated": "a key differs from a column only in case, At, in file:",
        "escaped": "a key differs from a column only in case, ",
        "single": "a key differs from a column only in case, ",
        "apostrophe": "a key differs from a column only in case, ID, in file:",
        "comment": "a key differs from a column only in case, ",
        "again": "a key differs from a column only in case, A, in file:",
        "deep": "a key differs from a column only in case, A, in file:",
        "inner": "a key differs from a column only in case, A, in file:",
        "listed": "a key differs from a column only in case, V, in file:",
        "slash": "a quote follows a backslash within a quoted value, in file:",
        "Same": "Same.2025-02.csv, same, same.2025-01.csv. To read them as one table, move",
        "open": "1.csv: 1,\"hello. If values span several lines, set the reader's option mul",
        "open_declared": "a quote is still open where a line ends, in file:",
        "bare": "a quote is still open where a line ends, in file:",
        "latin": "latin/1.csv contains bytes that are not UTF-8. Set the reader's option",
        "late": "late/1.csv contains bytes that are not UTF-8. Set the reader's option",
        "text": "text/1.txt contains bytes that are not UTF-8. Set the reader's option",
        "wide": "wide/1.csv contains bytes that are not UTF-8. Set the reader's option",
        "bytes": "bytes/1.json contains bytes that are not UTF-8. Set the reader's option",
        "packed": "packed/1.csv is a gzip file without the usual extension. Rename it",
        "stored": "stored/1.json is a gzip file without the usual extension. Rename it",
        "zipped": "zipped/1.csv is a zip archive, which Spark cannot read. Unpack it",
        "too_broad": "a line has more than 20,480 columns. Correct the file",
        "tar": "tar/1.csv.tar is a tar archive, which Spark cannot read. Unpack it",
        "tgz": "tgz/1.tar.gz is a tar archive, which Spark cannot read. Unpack it",
        "tar_text": "tar_text/1.tar is an archive, which Spark cannot read. Unpack it",
        "zip_bare": "zip_bare/1.zip is an archive, which Spark cannot read. Unpack it",
        "colon": "the file 'at10:00.csv' of ",
        "two": 'two/1.json: {"id":1}{"id":2}. Write each value on a separate line',
        "comma": "text follows a JSON value, in file:",
        "arrays": "text follows a JSON value, in file:",
        "behind": "text follows a JSON value, in file:",
        "rest": "text follows a JSON value, in file:",
        "whole": "text follows a JSON value, in file:",
        "unnamed": "a JSON key is an empty string, in file:",
        "unnamed_top": "a JSON key is an empty string, in file:",
        "braces_json": "Spark interprets the name of a file as a pattern (Input Pattern file:",
    }
    assert set(reported) == set(expected), ran.text
    for name, what in expected.items():
        assert what in reported[name], reported[name]
    assert project.rows("select id, v from raw.fine order by id") == [
        ("1", 'say "hi", x'),
        ("2", '5" pipe'),
        ("3", '"a"b'),
        ("4", "\\"),
        ("5", '\\"x'),
    ]
    assert project.rows("select id, o.a from raw.outside") == [(1, 5)]
    assert project.rows("select o, p[1] from raw.blank") == [("", '"":')]
    assert project.rows("select id, v from raw.braces") == [("1", "a\nb")]
    _configure(project, "csv", same={}, fine={})
    checked = project.loader("check")
    assert (checked.code, set(_list_errors(checked))) == (1, {"Same"})


def test_json_keys_are_checked_by_an_expression_that_does_not_grow(spark: SparkSession) -> None:
    lines, asked = spark.createDataFrame([], "value string"), []
    for columns in ("id int", "id int, o struct<o:struct<o:struct<a:array<int>>>>"):
        schema = spark.createDataFrame([], columns).schema
        read: Any = lines.select(find_miscased_key(f.col("value"), schema, {}).alias("found"))
        plan = read._jdf.queryExecution().analyzed().toString()
        asked.append((plan.count("from_json("), plan.count("lambdafunction(")))
    assert asked[0] == asked[1]


def _nest_type(leaf: str) -> str:
    """Returns the type of 35 nested objects, the innermost of which contains a field `a`."""
    return "struct<o:" * 35 + f"struct<a:{leaf}>" + ">" * 35


def test_a_changed_type_does_not_duplicate_rows_without_a_key(project: Project) -> None:
    data = project.folder / "data"
    options = {"format": "csv", "options": {"inferSchema": "true"}}
    _configure(project, "json", json={}, csv=options)
    _write(data / "json" / "1.json", '{"id":1,"v":5}\n{"id":1,"v":5}\n')
    _write(data / "csv" / "1.csv", "id,v\n1,5\n")
    project.run()
    for time, value in ((1_735_689_600, '"x"'), (1_735_689_700, '"y"')):
        _write(data / "json" / f"{value[1]}.json", f'{{"id":2,"v":{value}}}\n', time)
        _write(data / "csv" / f"{value[1]}.csv", f"id,v\n2,{value}\n", time)
        project.run()
    project.run()
    assert project.rows("select id, count(*) from raw.json group by id order by id") == [
        (1, 2),
        (2, 2),
    ]
    assert project.rows("select v, v__string from raw.csv order by id, v__string") == [
        (5, None),
        (None, "x"),
        (None, "y"),
    ]


def test_reader_options_are_applied(project: Project) -> None:
    data = project.folder / "data"
    _write(data / "same.1.csv", "id,v\n1,a\n")
    _write(data / "same.2.csv", "v,id\nb,2\n")
    _write(data / "long" / "1.csv", 'id,"v\nw"\r\n1,"hello\nworld, ""more"""\r\n')
    _write(data / "long" / "2.csv", '"v\nw",id\n"x\n\ny",2\n')
    _write(data / "latin" / "1.csv", "id,v\n1,café\n".encode("latin-1"))
    _write(data / "wide" / "1.csv", "id,v\n1,café\n2,x\n".encode("utf-16"))
    _write(data / "letter" / "1.csv", 'id,v\n1,"a\n')
    _write(data / "lines" / "1.csv", 'id,v\n1,"a\n')
    _write(data / "slash" / "1.csv", 'id|v\n1|"say \\"hi|\\""\n')
    _write(data / "empty" / "1.csv", 'id,v\n1,""\n2,\n')
    _write(data / "single" / "1.csv", "id,v\n1,'it''s \"'\n")
    _write(data / "comment" / "1.csv", '# "open\nid,v\n1,a\n')
    options: dict[str, dict[str, str]] = {
        "long": {"multiLine": "true"},
        "latin": {"encoding": "ISO-8859-1"},
        "wide": {"encoding": "UTF-16"},
        "letter": {"quote": ""},
        "lines": {"multiLine": "false"},
        "slash": {"escape": "\\", "sep": "|"},
        "comment": {"comment": "#"},
        "single": {"quote": "'"},
        "empty": {"nullValue": "\\N"},
    }
    tables: dict[str, dict[str, object]] = {n: {"options": o} for n, o in options.items()}
    _configure(project, "csv", same={"path": "same.*.csv"}, **tables)
    project.run()
    read = {
        n: project.rows(f"select id, v from raw.{n} order by id") for n in options if n != "long"
    }
    assert read == {
        "latin": [("1", "café")],
        "wide": [("1", "café"), ("2", "x")],
        "letter": [("1", '"a')],
        "lines": [("1", "a")],
        "slash": [("1", 'say "hi|"')],
        "comment": [("1", "a")],
        "single": [("1", "it's \"")],
        "empty": [("1", ""), ("2", None)],
    }
    assert project.rows("select id, v from raw.same order by id") == [("1", "a"), ("2", "b")]
    assert project.rows("select id, `v\nw` from raw.long order by id") == [
        ("1", 'hello\nworld, "more"'),
        ("2", "x\n\ny"),
    ]


def test_parquet_types_that_spark_does_not_merge(project: Project) -> None:
    data = project.folder / "data"

    def write(path: str, types: dict[str, pa.DataType], *rows: dict[str, object]) -> None:
        file = data / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(types.items())), file)

    tables = ("nanos", "below", "clash", "within")
    keyed: dict[str, dict[str, object]] = {name: {"primary_key": "id"} for name in tables}
    orc: dict[str, object] = {"format": "orc", "primary_key": "id"}
    _configure(project, "parquet", wide={"primary_key": "s"}, orc=orc, **keyed)
    for number, kind in enumerate(("int", "bigint")):
        rows = project.spark.range(1).selectExpr(f"cast({number} as {kind}) as id", "'a' as v")
        rows.write.orc(str(data / "orc" / str(number)))
    narrow = {"id": pa.int32(), "f": pa.float32(), "d": pa.decimal128(5, 2), "s": pa.string()}
    write("wide/1.parquet", narrow, {"id": 1, "f": 1.5, "d": Decimal("1.25"), "s": "a"})
    at = dt.datetime(1960, 2, 28, 12, 0, 0, 123456)
    zoned = {"id": pa.int64(), "at": pa.timestamp("ns"), "on": pa.timestamp("ns", tz="UTC")}
    row = {"at": at, "on": at.replace(tzinfo=dt.timezone.utc)}
    write("nanos/1.parquet", zoned, {"id": 1, **row}, {"id": 2, "at": None, "on": None})
    table = pa.table({"id": [1], "at": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))})
    (data / "below").mkdir()
    pq.write_table(table, data / "below" / "1.parquet")
    write("clash/1.parquet", {"id": pa.int64(), "v": pa.int64()}, {"id": 1, "v": 1})
    write("clash/2.parquet", {"id": pa.int64(), "v": pa.string()}, {"id": 2, "v": "x"})
    write("within/1.parquet", {"id": pa.int64(), "v": pa.list_(pa.timestamp("ns"))}, {"id": 1})
    reported = _list_errors(project.loader("run"))
    assert set(reported) == {"below", "clash", "within", "orc"}
    assert "its files have different types for id (" in reported["orc"]
    assert (
        "column at of below contains a timestamp with sub-microsecond precision. Write it in"
        in reported["below"]
    )
    assert "the column v is bigint in file:" in reported["clash"]
    assert "clash/2.parquet. Write it with one type in all files" in reported["clash"]
    assert "has times in nanoseconds within a nested value" in reported["within"]

    wide = {"s": pa.string(), "id": pa.int64(), "f": pa.float64(), "d": pa.decimal128(9, 2)}
    write("wide/2.parquet", wide, {"id": 2**40, "f": 0.1, "d": Decimal("1234567.25"), "s": "b"})
    micros = {"id": pa.int64(), "at": pa.timestamp("us"), "n": pa.string()}
    write("nanos/2.parquet", micros, {"id": 3, "at": at, "n": "new"})
    orc["column_types"] = "id bigint"
    declared = "id bigint, s string, d decimal(9, 2)"
    declared_types: dict[str, object] = {"path": "wide", "column_types": declared}
    _configure(
        project,
        "parquet",
        wide={"primary_key": "s"},
        nanos={"primary_key": "id"},
        orc=orc,
        reported=declared_types,
    )
    ran = project.run()
    assert [ran.table(f"drop.{name}")["status"] for name in ("wide", "nanos")] == ["synced"] * 2
    assert project.rows("select id, f, d, s from raw.wide order by id") == [
        (1, 1.5, Decimal("1.25"), "a"),
        (2**40, 0.1, Decimal("1234567.25"), "b"),
    ]
    times = "select id, cast(at as string), cast(on as string), n from raw.nanos order by id"
    assert project.rows("select id from raw.orc order by id") == [(0,), (1,)]
    text = "1960-02-28 12:00:00.123456"
    assert project.rows(times) == [
        (1, text, text, None),
        (2, None, None, None),
        (3, text, None, "new"),
    ]
    assert project.rows("select id, s, d from raw.reported order by id") == project.rows(
        "select id, s, d from raw.wide order by id"
    )
    assert project.run().table("drop.wide")["status"] == "nothing new"

"""The `file` connector: what files hold is read as it is meant, or refused with one clear error."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from tests.sync.project import Project, Ran


def _write(file: Path, content: str | bytes, time: int = 1_735_689_600) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(file, (time, time))


def _files(project: Project, form: str, **tables: dict[str, object]) -> None:
    own = {"path": "data", "format": form, "table_options": tables}
    project.add("drop", "file", list(tables) or ["*"], own)


def _told(ran: Ran) -> dict[str, str]:
    """Returns what is said of each table that failed, with the remedy."""
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
    declared = {"path": "long", "columns": "id bigint, v decimal(38, 20)"}
    rounds = {"path": "long", "columns": "v double"}
    tables: dict[str, dict[str, object]] = {name: {} for name in (*lost, *kept)}
    _files(project, "json", **tables, declared=declared, rounds=rounds)
    ran = project.loader("run")
    told = _told(ran)
    assert {
        name: "has more digits than a double" in what for name, what in told.items()
    } == dict.fromkeys(lost, True)
    assert "column v.w" in ran.text
    assert "the number 9007199254740993 of file:" in told["deep"]
    assert "Declare the table's `columns`" in told["mixed"]
    names = (*kept, "declared", "rounds")
    values = [project.rows(f"select cast(v as string) from raw.{name}") for name in names]
    assert values == [
        [("0.30000000000000004",), ("-1.7976931348623157E308",), ("100.0",)],
        [("7220000000000000001",)],
        [("12345678901234567890",)],
        [("0.12345678901234567890",)],
        [("0.12345678901234568",)],
    ]


def test_what_would_be_misread_is_refused(project: Project) -> None:
    data = project.folder / "data"
    csv: dict[str, dict[str, object]] = {
        name: {} for name in ("fine", "open", "latin", "wide", "packed", "zipped", "colon", "late")
    }
    json: dict[str, dict[str, object]] = {
        name: {"format": "json"}
        for name in ("two", "comma", "arrays", "behind", "bytes", "whole", "stored", "rest")
    }
    json["whole"]["options"] = {"multiLine": "true"}
    declared = {"columns": "id int, v string"}
    json["rest"] |= declared
    csv |= {"open_declared": dict(declared), "bare": {"options": {"header": "false"}}}
    csv["text"] = {"format": "text"}
    _files(project, "csv", same={}, **csv, **json)
    _write(data / "same.2025-01.csv", "id\n1\n")
    _write(data / "Same.2025-02.csv", "id\n2\n")
    _write(data / "same" / "1.csv", "id\n3\n")
    _write(data / "fine" / "1.csv", 'id,v\n1,"say ""hi"", x"\n2,5" pipe\n3,"a"b\n4,"\\"\n')
    _write(data / "open" / "1.csv", 'id,v\n1,"hello\nworld, more"\n')
    _write(data / "open_declared" / "1.csv", 'id,v\n1,"hello\n2,x\n')
    _write(data / "bare" / "1.csv", '1,"hello\nworld, more"\n')
    _write(data / "latin" / "1.csv", "id,v\n1,café\n".encode("latin-1"))
    _write(data / "late" / "1.csv", b"id,v\n" + b"1,abcdef\n" * 9999 + "2,é\n".encode("latin-1"))
    _write(data / "text" / "1.txt", "café\n".encode("latin-1"))
    _write(data / "wide" / "1.csv", "id,v\n1,café\n".encode("utf-16"))
    _write(data / "packed" / "1.csv", gzip.compress(b"id,v\n1,a\n"))
    _write(data / "zipped" / "1.csv", b"PK\x03\x04aaaa\n1,2\n")
    _write(data / "colon" / "at10:00.csv", "id,v\n1,a\n")
    _write(data / "two" / "1.json", '{"id":1}{"id":2}\n')
    _write(data / "comma" / "1.json", '{"id":1},{"id":2}\n')
    _write(data / "arrays" / "1.json", '[{"id":1}] [{"id":2}]\n')
    _write(data / "behind" / "1.json", '{"id":1}]{"id":2}\n')
    _write(data / "rest" / "1.json", '{"id":1}\n{"id":2} and more\n')
    _write(data / "bytes" / "1.json", '{"id":1,"v":"café"}\n'.encode("latin-1"))
    _write(data / "whole" / "1.json", '{"id":1}\n{"id":2}\n')
    _write(data / "stored" / "1.json", gzip.compress(b'{"id":1}\n'))
    ran = project.loader("run")
    told = _told(ran)
    expected = {
        "Same": "Same.2025-02.csv, same, same.2025-01.csv. To read them as one table, move",
        "open": "1.csv: 1,\"hello. If values go over several lines, set the reader's option mul",
        "open_declared": "a quote is still open where a line ends, in file:",
        "bare": "a quote is still open where a line ends, in file:",
        "latin": "latin/1.csv holds bytes that are not UTF-8. Name the encoding",
        "late": "late/1.csv holds bytes that are not UTF-8. Name the encoding",
        "text": "text/1.txt holds bytes that are not UTF-8. Name the encoding",
        "wide": "wide/1.csv holds bytes that are not UTF-8. Name the encoding",
        "bytes": "bytes/1.json holds bytes that are not UTF-8. Name the encoding",
        "packed": "packed/1.csv is a gzip file, and its name does not say so. Rename it",
        "stored": "stored/1.json is a gzip file, and its name does not say so. Rename it",
        "zipped": "zipped/1.csv is a zip archive, and its name does not say so. Unpack it",
        "colon": "the file 'at10:00.csv' of ",
        "two": 'two/1.json: {"id":1}{"id":2}. Write each value on a line of its own',
        "comma": "something stands behind a JSON value, in file:",
        "arrays": "something stands behind a JSON value, in file:",
        "behind": "something stands behind a JSON value, in file:",
        "rest": "something stands behind a JSON value, in file:",
        "whole": "something stands behind a JSON value, in file:",
    }
    assert set(told) == set(expected), ran.text
    for name, what in expected.items():
        assert what in told[name], told[name]
    assert project.rows("select id, v from raw.fine order by id") == [
        ("1", 'say "hi", x'),
        ("2", '5" pipe'),
        ("3", '"a"b'),
        ("4", "\\"),
    ]
    _files(project, "csv", same={}, fine={})
    checked = project.loader("check")
    assert (checked.code, set(_told(checked))) == (1, {"Same"})


def test_a_changed_type_does_not_bring_rows_without_a_key_again(project: Project) -> None:
    data = project.folder / "data"
    options = {"format": "csv", "options": {"inferSchema": "true"}}
    _files(project, "json", json={}, csv=options)
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

"""Inner fields of structs, arrays and maps change: the raw table is altered to match."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import Any

from loader.rows.bookkeeping import COLUMNS
from tests.sync.project import Project, Ran

OWN = {*COLUMNS, "_file_modified_at", "_file_path"}


class Files:
    """JSON files whose times are an hour apart; each sync declares the columns anew."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.number = 0
        (project.folder / "data" / "t").mkdir(parents=True)

    def sync(self, columns: str, *rows: dict[str, Any]) -> Ran:
        """Writes a file if there are rows, and syncs."""
        if rows:
            self.number += 1
            file = self.project.folder / "data" / "t" / f"{self.number}.json"
            file.write_text("\n".join(map(json.dumps, rows)))
            at = dt.datetime(2025, 1, 1, self.number, tzinfo=dt.timezone.utc).timestamp()
            os.utime(file, (at, at))
        options = {"t": {"primary_key": "id", "column_types": columns}}
        own = {"path": "data", "format": "json", "table_options": options}
        self.project.add("drop", "file", ["t"], own)
        return self.project.run()

    def types(self) -> dict[str, str]:
        """Returns the raw table's columns."""
        fields = self.project.lake().frame("t").schema.fields
        return {f.name: f.dataType.simpleString() for f in fields if f.name not in OWN}

    def raw(self, columns: str) -> list[tuple[Any, ...]]:
        """Returns the raw table's rows, in order of arrival."""
        rows = self.project.lake().frame("t").orderBy("_cq_batch", "_cq_seq")
        found = rows.selectExpr(*columns.split(", ")).collect()
        return [tuple(row.asDict(recursive=True).values()) for row in found]

    def reported(self) -> str:
        """Returns the ledger's note on the newest batch."""
        [(reported,)] = self.project.rows("select max_by(schema_changes, batch) from raw._cq_syncs")
        return str(reported)


def test_fields_are_added_dropped_and_widened_at_any_depth(project: Project) -> None:
    files = Files(project)
    old = {"s": {"a": 1, "b": "x"}, "l": [{"x": 1}, None], "m": {"k": {"v": 1}}, "n": [1, None]}
    nothing = {"s": None, "l": None, "m": None, "n": []}
    files.sync(
        "id int, s struct<a: int, b: string>, l array<struct<x: int>>, "
        "m map<string, struct<v: int>>, n array<int>",
        {"id": 1, **old},
        {"id": 2, **nothing},
    )
    columns = (
        "id int, n array<bigint>, s struct<`c d`: struct<e: date>, a: bigint>, "
        "l array<struct<y: string, x: bigint>>, m map<string, struct<w: decimal(5,2), v: bigint>>"
    )
    # Rows that are read again are unchanged, except for the field that they lost.
    new: dict[str, Any] = {
        "s": {"a": 2**40, "c d": {"e": "2025-01-31"}},
        "l": [{"y": "y", "x": 2**40}],
        "m": {"k": {"w": 1.25, "v": 2**40}, "n": None},
        "n": [2**40],
    }
    ran = files.sync(columns, {"id": 3, **new}, {"id": 4, **nothing}).table("drop.t")
    assert (ran["appended"], ran["redelivered"]) == (3, 1)
    assert files.reported() == (
        "widened n.element int to bigint; added s.c d struct<e:date>; "
        "widened s.a int to bigint; dropped s.b string; added l.element.y string; "
        "widened l.element.x int to bigint; added m.value.w decimal(5,2); "
        "widened m.value.v int to bigint"
    )
    assert files.types() == {
        "id": "int",
        "s": "struct<a:bigint,b:string,c d:struct<e:date>>",
        "l": "array<struct<x:bigint,y:string>>",
        "m": "map<string,struct<v:bigint,w:decimal(5,2)>>",
        "n": "array<bigint>",
    }
    day = dt.date(2025, 1, 31)
    assert files.raw("id, s.a, s.b, s.`c d`.e, l.x, l.y, m['k'].v as v, m['k'].w as w, n") == [
        (1, 1, "x", None, [1, None], [None, None], 1, None, [1, None]),
        (2, None, None, None, None, None, None, None, []),
        (1, 1, None, None, [1, None], [None, None], 1, None, [1, None]),
        (3, 2**40, None, day, [2**40], ["y"], 2**40, 1.25, [2**40]),
        (4, None, None, None, None, None, None, None, []),
    ]
    # a null struct is not a struct of nulls
    assert files.raw("id, s is null as s, l[1] is null as l, size(m) as m")[-2:] == [
        (3, False, True, 2),
        (4, True, True, -1),
    ]
    again = files.sync(columns).table("drop.t")
    assert (again["status"], again["redelivered"]) == ("nothing new", 0)


def test_an_inner_type_change_may_need_a_type_specific_column(
    project: Project,
) -> None:
    files = Files(project)
    files.sync("id int, s struct<a: int>, m map<string, int>", {"id": 1, "s": {"a": 1}, "m": {}})
    files.sync(
        "id int, s struct<a: string>, m map<string, string>",
        {"id": 2, "s": {"a": "x"}, "m": {"k": "v"}},
    )
    assert files.reported() == (
        "changed s struct<a:int> to struct<a:string>, in s__struct; "
        "changed m map<string,int> to map<string,string>, in m__map_string_string"
    )
    files.sync(
        "id int, s struct<a: string, b: int>, m map<string, string>", {"id": 3, "s": {"b": 1}}
    )
    assert files.reported() == (
        "changed s struct<a:string> to struct<a:string,b:int>, in s__struct"
    )
    files.sync(
        "id int, s struct<a: int>, m map<string, int>", {"id": 4, "s": {"a": 4}, "m": {"k": 4}}
    )
    assert files.types() == {
        "id": "int",
        "s": "struct<a:int>",
        "m": "map<string,int>",
        "s__struct": "struct<a:string,b:int>",
        "m__map_string_string": "map<string,string>",
    }
    newest = files.raw("id, s, m, s__struct, m__map_string_string")
    assert {row[0]: row[1:] for row in newest} == {
        # each file is read again with the next one, and its rows differ then
        1: (None, None, {"a": "1", "b": None}, {}),
        2: (None, None, {"a": "x", "b": None}, {"k": "v"}),
        3: ({"a": None}, None, None, None),
        4: ({"a": 4}, {"k": 4}, None, None),
    }


def test_a_type_that_spark_infers_differently_after_a_new_file(project: Project) -> None:
    files = Files(project)
    folder = project.folder / "data" / "t"
    (folder / "1.json").write_text('{"id": 1, "v": 1}')
    own = {"path": "data", "format": "json", "table_options": {"t": {"primary_key": "id"}}}
    project.add("drop", "file", ["t"], own)
    project.run()
    assert files.types() == {"id": "bigint", "v": "bigint"}
    (folder / "2.json").write_text('{"id": 2, "v": "text"}')
    ran = project.run().table("drop.t")
    assert (ran["status"], files.reported()) == (
        "synced",
        "changed v bigint to string, in v__string",
    )

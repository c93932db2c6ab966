"""Edits of a generated file, including comments, survive the next run of codegen."""

from __future__ import annotations

import copy
import re
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.codegen.merging import ABSENT, ThreeWay, identities, is_keyed, same
from loader.codegen.yaml_style import document
from loader.codegen.yaml_text import YamlText

Data = dict[str, Any]

NAMES = st.sampled_from(["a", "b", "c", "on", "2024", "we ird", "naïve"])
WORDS = st.sampled_from(
    ["x", "it's", 'say "so"', "a: b", "# no comment", "yes", "{{ var('x') }}", "- y", "1.5", " z "]
)
TESTS = st.sampled_from(["strandline.one", "strandline.two", "strandline.three", "not_null"])


@st.composite
def _tables(draw: st.DrawFn) -> list[Data]:
    tables = []
    for name in draw(st.lists(NAMES, unique=True, max_size=4)):
        table: Data = {"name": name, "description": draw(WORDS)}
        meta: Data = {}
        if draw(st.booleans()):
            meta["unique_key"] = draw(st.lists(NAMES, unique=True, min_size=1, max_size=3))
        if draw(st.booleans()):
            meta["cursor_field"] = draw(NAMES)
        if meta:
            table["config"] = {"meta": {"strandline": meta}}
        tests = draw(st.lists(TESTS, unique=True, max_size=4))
        if tests:
            table["data_tests"] = tests
        table["columns"] = [
            {"name": column, "data_type": draw(WORDS)}
            for column in draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
        ]
        tables.append(table)
    return tables


def _generated(tables: list[Data]) -> Data:
    freshness = {"warn_after": {"count": 1, "period": "day"}}
    shop = {"name": "shop", "schema": "raw", "config": {"freshness": freshness}, "tables": tables}
    return {"sources": [shop]}


GENERATED = _tables().map(_generated)


@st.composite
def _edited(draw: st.DrawFn, data: Data) -> Data:
    """Edits the data like a user: changes, deletions, additions, another order."""
    mine = copy.deepcopy(data)
    [shop] = mine["sources"]
    for _ in range(draw(st.integers(0, 6))):
        tables = shop["tables"]
        edit = draw(st.sampled_from(["add table", "source", "table", "test", "column", "order"]))
        if edit == "add table":
            tables.append({"name": "mine", "description": draw(WORDS)})
        elif edit == "source":
            key = draw(st.sampled_from(["description", "schema", "loader"]))
            shop[key] = draw(WORDS)
        elif tables:
            _edit_table(draw, tables, draw(st.integers(0, len(tables) - 1)), edit)
    return mine


def _edit_table(draw: st.DrawFn, tables: list[Data], place: int, edit: str) -> None:
    table = tables[place]
    if edit == "table":
        key = draw(st.sampled_from(["description", "config", "data_tests", "columns", "meta", ""]))
        if not key:
            del tables[place]
        elif key in ("description", "meta"):
            table[key] = draw(WORDS)
        else:
            table.pop(key, None)
    elif edit == "test":
        tests = table.setdefault("data_tests", [])
        name = draw(TESTS)
        own = {name: {"config": {"severity": draw(WORDS)}}}
        known = [i for i, test in enumerate(tests) if test == name]
        if not known:
            tests.append(draw(st.sampled_from(["mine.test", own])))
        elif draw(st.booleans()):
            del tests[known[0]]
        else:
            tests[known[0]] = own
    elif edit == "column" and table.get("columns"):
        columns = table["columns"]
        column = draw(st.sampled_from(columns))
        if draw(st.booleans()):
            columns.remove(column)
        else:
            column[draw(st.sampled_from(["description", "data_type"]))] = draw(WORDS)
    elif edit == "order" and table.get("columns"):
        table["columns"] = draw(st.permutations(table["columns"]))


@st.composite
def _written(draw: st.DrawFn, data: Data) -> str:
    """Writes the data in a random layout, with random comments and blank lines."""
    layout = draw(st.sampled_from(["ours", "block", "mixed", "brackets"]))
    if layout == "ours":
        text = document(data, "Written by codegen", (2, 6))
    else:
        flow = {"block": False, "mixed": None, "brackets": True}[layout]
        text = yaml.safe_dump(
            data,
            default_flow_style=flow,
            sort_keys=False,
            allow_unicode=True,
            width=10**6,
            indent=draw(st.sampled_from([2, 4])),
        )
    lines = []
    for number, line in enumerate(text.splitlines()):
        where = draw(st.sampled_from(["", "", "", "", "above", "behind", "blank"]))
        if where == "above":
            lines.append(f"{' ' * draw(st.integers(0, 8))}# comment {number}")
        if where == "blank":
            lines.append("")
        lines.append(f"{line}  # comment {number}" if where == "behind" and line else line)
    return draw(st.sampled_from(["\n", "\n", "\r\n"])).join(lines) + draw(
        st.sampled_from(["", "\n"])
    )


def _flat(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns every node by path: containers as their type, other values as they are."""
    if isinstance(value, dict):
        parts = {str(key): item for key, item in value.items()}
    elif is_keyed(path) and isinstance(value, list):
        parts = dict(zip(identities(path, value), value, strict=True))
    else:
        return {path: value}
    found: dict[tuple[str, ...], Any] = {path: type(value)}
    for name, part in parts.items():
        found |= _flat(part, (*path, name))
    return found


def _comments(text: str) -> list[str]:
    return sorted(re.findall(r"# comment \d+", text))


def _merge(base: Data, text: str, new: Data) -> str:
    mine = YamlText(text, "sources.yml")
    return mine.update_to(ThreeWay(mine.has_comment).merge(base, mine.data, new))


@settings(max_examples=150, deadline=None)
@given(base=GENERATED, new=GENERATED, data=st.data())
def test_no_edit_is_lost_and_a_second_run_changes_nothing(
    base: Data, new: Data, data: st.DataObject
) -> None:
    edited = data.draw(_edited(base))
    text = data.draw(_written(edited))
    assert same(yaml.safe_load(text), edited)

    result = _merge(base, text, new)

    was, mine, now, then = map(_flat, (base, edited, new, yaml.safe_load(result)))
    for path, value in mine.items():
        if path not in was or (was[path] != value and not isinstance(value, type)):
            assert then[path] == value, f"the edit at {path} is lost"
    deleted = {path for path in was if path not in mine}
    assert not [path for path in deleted if path in then], "what was deleted is back"
    for path, value in now.items():
        above = {path[:length] for length in range(len(path) + 1)}
        if path not in was and not above & deleted:
            assert path in then, f"{path} is new, and missing"
        elif mine.get(path, ABSENT) == was.get(path, ABSENT) and isinstance(value, str):
            assert path not in mine or then[path] == value, f"nobody touched {path}"
    assert set(_comments(text)) == set(_comments(result))
    assert _merge(new, result, new) == result


@settings(max_examples=50, deadline=None)
@given(base=GENERATED, new=GENERATED)
def test_without_edits_the_file_equals_the_generated_one(base: Data, new: Data) -> None:
    text = document(base, "Written by codegen", (2, 6))
    merged = yaml.safe_load(_merge(base, text, new))
    assert _flat(merged) == _flat(new)  # regardless of the order of tables, columns, tests


@settings(max_examples=50, deadline=None)
@given(base=GENERATED, data=st.data())
def test_without_changes_every_byte_stays(base: Data, data: st.DataObject) -> None:
    text = data.draw(_written(data.draw(_edited(base))))
    assert _merge(base, text, base) == text


@settings(max_examples=50, deadline=None)
@given(base=GENERATED, new=GENERATED, data=st.data())
def test_without_a_manifest_no_edit_is_overwritten(
    base: Data, new: Data, data: st.DataObject
) -> None:
    edited = data.draw(_edited(base))
    result = _merge({}, data.draw(_written(edited)), new)
    then = _flat(yaml.safe_load(result))
    for path, value in _flat(edited).items():
        assert then[path] == value

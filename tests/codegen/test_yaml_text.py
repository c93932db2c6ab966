"""An update of a YAML file changes only the entries that differ, and no other byte."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from loader.codegen.merging import ThreeWay
from loader.codegen.yaml_text import EditRefused, YamlText
from loader.errors import SpecError


def apply_target(text: str, target: dict[str, Any]) -> str:
    result = YamlText(text, "a.yml").update_to(target)
    assert yaml.safe_load(result) == target
    return result


def test_a_new_table_is_inserted_after_its_neighbour() -> None:
    text = (
        "sources:\n"
        "- name:  shop   # ours\n"
        "  tables:\n"
        "    - name: a\n"
        "      description: >\n"
        "        folded\n"
        "        text\n"
        "    # about b\n"
        "    - name: b\n"
        "\n"
        "# the end\n"
    )
    tables = [{"name": "a", "description": "folded text\n"}, {"name": "n", "columns": []}]
    target = {"sources": [{"name": "shop", "tables": [*tables, {"name": "b"}]}]}
    new = "\n    - name: n\n      columns: []\n"
    assert apply_target(text, target) == text.replace("        text\n", f"        text\n{new}")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a: 1", "a: 1\nb: 2"),
        ("a: 1\n", "a: 1\nb: 2\n"),
        ("a: 1\r\n", "a: 1\r\nb: 2\r\n"),
        ("a: 1 # one\n\n# end", "a: 1 # one\nb: 2\n\n# end"),
        ("{a: 1}\n", "{a: 1, b: 2}\n"),
        ("{a: 1,}\n", "{a: 1, b: 2,}\n"),
        ("---\na: 1\n...\n", "---\na: 1\nb: 2\n...\n"),
        ("\ufeffa: 1\n", "\ufeffa: 1\nb: 2\n"),
    ],
)
def test_an_entry_is_added_in_any_layout(text: str, result: str) -> None:
    assert apply_target(text, {"a": 1, "b": 2}) == result


@pytest.mark.parametrize("text", ["", "# nothing yet", "---\n", "# nothing yet\n"])
def test_an_empty_file_is_filled(text: str) -> None:
    assert apply_target(text, {"a": 1}) == text + ("\n" if text.endswith("yet") else "") + "a: 1\n"


@pytest.mark.parametrize(
    ("text", "value", "result"),
    [
        ("k: 'x' # why\n", "y", "k: y # why\n"),
        ("k: |\n  x\n  z\nl: 1\n", "y", "k: y\nl: 1\n"),
        ("k:\nl: 1\n", "y", "k: y\nl: 1\n"),
        ("k: [a, b]\n", ["a"], "k: [a]\n"),
        ("k:\n  - a\n  - b\n", ["a", "c"], "k:\n  - a\n  - c\n"),
        ("k: x\n", {"a": 1}, "k:\n  a: 1\n"),
        ("k: {a: 1}\n", {"a": 2}, "k: {a: 2}\n"),
        ("k: *x\n", "y", "k: y\n"),
    ],
)
def test_a_value_is_replaced_in_any_layout(text: str, value: Any, result: str) -> None:
    anchor = "x: &x [1]\n" if "*x" in text else ""
    target = {**yaml.safe_load(anchor + text), "k": value}
    assert apply_target(anchor + text, target) == anchor + result


def test_an_anchor_is_not_changed_for_its_other_aliases() -> None:
    text = "sources:\n  - name: a\n    tables: &t\n      - name: x\n  - name: b\n    tables: *t\n"
    both = [{"name": "x"}, {"name": "y"}]
    assert apply_target(text, {"sources": [{"name": n, "tables": both} for n in "ab"]}).endswith(
        "  - name: b\n    tables:\n      - name: x\n      - name: y\n"
    )
    one = {"sources": [{"name": "a", "tables": both}, {"name": "b", "tables": [{"name": "x"}]}]}
    with pytest.raises(EditRefused):
        YamlText(text, "a.yml").update_to(one)


def test_an_entry_is_removed_with_its_lines_only() -> None:
    text = "a: 1\n# about b\nb:\n  - x\n\nc: 3\n"
    assert apply_target(text, {"a": 1, "c": 3}) == "a: 1\n# about b\n\nc: 3\n"


def test_a_comment_is_an_edit() -> None:
    base = {"columns": [{"name": "a", "data_type": "int"}, {"name": "b", "data_type": "int"}]}
    text = "columns:\n  - name: a # mine\n    data_type: int\n  - name: b\n    data_type: int\n"
    mine = YamlText(text, "a.yml")
    three_way = ThreeWay(mine.has_comment)
    target = three_way.merge(base, mine.data, {"columns": [{"name": "c"}]})
    assert [column["name"] for column in target["columns"]] == ["c", "a"]
    assert [kept.path for kept in three_way.kept] == [("columns", "a")]


def test_a_hash_in_a_text_is_no_comment() -> None:
    mine = YamlText("a: 'x # y'\nb: x#y\nc: |\n  # z\nd: >- # really\n  # z\n", "a.yml")
    assert list(mine.comments()) == ["# really"]


@pytest.mark.parametrize(
    ("text", "place"),
    [("a: b: c", "a.yml:1:5"), ("- a", "a.yml"), ("a: !x y", "a.yml:1:4")],
)
def test_a_file_that_is_not_a_valid_mapping_is_refused(text: str, place: str) -> None:
    with pytest.raises(SpecError) as reported:
        YamlText(text, "a.yml")
    assert reported.value.where == place


def test_an_alias_of_itself_is_refused() -> None:
    with pytest.raises(SpecError, match="alias"):
        YamlText("a: &a [*a]\n", "a.yml")

"""YAML 1.2 is read with exact texts, and errors give the line but never its contents."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import SpecError
from loader.spec.document import read_documents
from loader.spec.redaction import is_secret_key


def read(text: str) -> Any:
    (document,) = read_documents(text, "loader.yml")
    return document.value


@pytest.mark.parametrize(
    "text",
    [
        "2025-01-01",
        "2025-01-01 00:00:00.123456",
        "42",
        "1.50",
        "007",
        "1e3",
        "0x1F",
        "true",
        "1_000",
        "9999999999999999999999",
        "-5",
        ".5",
    ],
)
@pytest.mark.parametrize("key", ["initial_cursor", "password", "token"])
def test_cursors_and_secrets_keep_the_text_they_were_written_with(key: str, text: str) -> None:
    assert read(f"{key}: {text}") == {key: text}
    assert read(f"{key}: &x {text}\nb: {{{key}: *x}}")["b"] == {key: text}


@pytest.mark.parametrize("text", ["", "~", "null"])
def test_an_empty_cursor_is_none(text: str) -> None:
    assert read(f"initial_cursor: {text}") == {"initial_cursor": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("22:22", "22:22"),
        ("2025-01-01", "2025-01-01"),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("1_000", "1_000"),
        (".inf", float("inf")),
        ("~", None),
        ("-", [None]),
        ("=", "="),
        ("", None),
        ("-3", -3),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert read(f"x: {text}" if text != "-" else "x:\n-") == {"x": value}


def test_keys_are_strings() -> None:
    assert read("2024: a\nno: b\nnull: c") == {"2024": "a", "no": "b", "null": "c"}


def test_merges_and_anchors_work() -> None:
    text = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: *a"
    assert read(text) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}


# Not the keys under which a number is read as text.
PLAIN_KEYS = st.text().filter(lambda key: key != "initial_cursor" and not is_secret_key(key))


def bomb(levels: int, first: str = "[x]", around: str = "[{}]") -> str:
    """Returns a short text whose aliases expand to 9 ** `levels` values."""
    lines = [f"a0: &a0 {first}"]
    for n in range(1, levels):
        lines.append(f"a{n}: &a{n} " + around.format(", ".join([f"*a{n - 1}"] * 9)))
    return "\n".join(lines)


@pytest.mark.parametrize("text", [bomb(7), bomb(60), bomb(7, "{x: 1}", "{{<<: [{}]}}")])
def test_a_bomb_of_aliases_is_refused_at_once(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(
        SpecError, match=r"its aliases expand to [\d,]+ values\. Write the values without aliases"
    ):
        read_documents(text, "loader.yml")
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("digits", ["1" * 5000, "0x" + "f" * 50_000])
def test_a_number_of_thousands_of_digits_is_refused(digits: str) -> None:
    with pytest.raises(SpecError, match=r"loader.yml:1:4: .* a number of [\d,]+ digits"):
        read_documents(f"a: {digits}", "loader.yml")


def test_many_aliases_in_a_large_spec_are_accepted() -> None:
    tables = "\n".join(f"t{n}: *options" for n in range(10_000))
    assert len(read(f"o: &options {{a: 1, b: [1, 2]}}\n{tables}")) == 10_001


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(PLAIN_KEYS, inner),
    )
)
def test_what_yaml_writes_is_read_back(value: Any) -> None:
    text = yaml.safe_dump({"x": value}, default_style='"')
    assert read(text) == {"x": value}


def test_documents_are_numbered_and_empty_ones_left_out() -> None:
    documents = read_documents("---\na: 1\n---\n# nothing\n---\nb: 2\n---\n", "loader.yml")
    assert [(each.number, each.value) for each in documents] == [(1, {"a": 1}), (3, {"b": 2})]
    assert read_documents("", "loader.yml") == []
    assert read_documents("# only this\n", "loader.yml") == []


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("a: 1\n b: 2", "loader.yml:2:3", "mapping values are not allowed"),
        ("a: [1, 2", "loader.yml:1:9", "expected ',' or ']'"),
        ("a: 1\na: 2", "loader.yml:2:1", "the key `a` appears twice here"),
        ("a:\n\t- 1", "loader.yml:2:1", "cannot start any token"),
        ("a: *hunter22", "loader.yml:1:4", "but its anchor does not exist"),
        ("tables: [*]", "loader.yml:1:11", "`*` begins an alias"),
        ("tables: [*, b]", "loader.yml:1:11", "`*` begins an alias"),
        ("[" * 5000, "loader.yml", "nested too deeply"),
        ("a: !hunter22 x", "loader.yml:1:4", "but this tag does not exist"),
        ("password: !hunter22", "loader.yml:1:11", "but this tag does not exist"),
        ("a: %hunter22", "loader.yml:1:4", "cannot start any token"),
        ("a: &x [*x]", "loader.yml:1:4", "refers to a value that contains it"),
        ("a: !!int abc", "loader.yml:1:4", "not have the type of its `!!` tag"),
        ("a: !!float hunter22", "loader.yml:1:4", "not have the type of its `!!` tag"),
        ("a: !!bool maybe", "loader.yml:1:4", "not have the type of its `!!` tag"),
        ("a: !!timestamp 2001-13-99", "loader.yml:1:4", "not have the type of its `!!` tag"),
        ("a: !!timestamp soon", "loader.yml:1:4", "not have the type of its `!!` tag"),
        ("a: !!map [b]", "loader.yml:1:4", "not have the type of its `!!` tag"),
        ("!!map [b]", "loader.yml:1:1", "not have the type of its `!!` tag"),
        ("a: !!set [b]", "loader.yml:1:4", "not have the type of its `!!` tag"),
        ("? [a]\n: 1", "loader.yml:1:3", "a key must be a string"),
        ("a: 1\nb: \x07", "loader.yml:2", "0x7 is not allowed"),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(text: str, place: str, says: str) -> None:
    with pytest.raises(SpecError) as raised:
        read_documents(text, "loader.yml")
    assert raised.value.where == place
    assert says in raised.value.what
    assert raised.value.remedy
    assert "hunter22" not in str(raised.value)

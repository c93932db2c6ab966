"""Variables, files and references in the spec expand to exact values; missing ones are named."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.spec.expansion import Expansion, Plugin, key_path
from loader.spec.redaction import Redactor

ENV = {"USER_": "bob", "EMPTY": "", "NESTED": "${USER_} @@plugins.lake.name", "N": "5432"}


def expansion(
    folder: Path = Path("/nowhere"), env: dict[str, str] | None = None, **plugins: dict[str, Any]
) -> Expansion:
    named = {
        name: Plugin(f"loader.yml, document 2 ({name})", "destination", spec)
        for name, spec in plugins.items()
    }
    return Expansion(ENV if env is None else env, folder, Redactor(), named)


def expanded(text: Any, made: Expansion | None = None) -> Any:
    made = made or expansion()
    value = made.expand(text, "loader.yml, document 1", ("spec", "x"))
    assert not made.errors, made.errors
    return value


def error(text: Any, made: Expansion | None = None) -> str:
    made = made or expansion()
    made.expand(text, "loader.yml, document 1", ("spec", "x"))
    assert len(made.errors) == 1
    return str(made.errors[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${USER_}", "bob"),
        ("a-${USER_}-${N}", "a-bob-5432"),
        ("${NOPE:-x}", "x"),
        ("${NOPE:-}", ""),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY}", ""),
        ("${NOPE:-${USER_}}", "bob"),
        ("${NOPE:-${NO2:-a:-b}}", "a:-b"),
        ("${NOPE:-http://h:1}", "http://h:1"),
        ("$${USER_}", "${USER_}"),
        ("$${USER_}${USER_}", "${USER_}bob"),
        ("$$${USER_}", "$${USER_}"),
        ("$USER_ $ {USER_} 5$", "$USER_ $ {USER_} 5$"),
        ("${NESTED}", "${USER_} @@plugins.lake.name"),
        (["${N}", {"${N}": "${N}"}, 7, None, True], ["5432", {"${N}": "5432"}, 7, None, True]),
    ],
)
def test_variables(text: Any, value: Any) -> None:
    assert expanded(text) == value


@given(st.text())
def test_a_variables_value_arrives_unchanged(value: str) -> None:
    assert expanded("${V}", expansion(env={"V": value})) == value
    assert expanded("<${V}|${V}>", expansion(env={"V": value})) == f"<{value}|{value}>"


@given(st.text())
def test_text_can_be_escaped(text: str) -> None:
    plain = text.replace("@@plugins", "")
    assert expanded(plain.replace("${", "$${")) == plain


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "${NOPE}",
            "the environment variable NOPE is not set. Set it, or add a default: ${NOPE:-",
        ),
        ("${USER}", "Did you mean `USER_`?"),
        ("${USER_", "without `}`"),
        ("${NOPE:-${USER_}", "without `}`"),
        ("${}", "neither the name of a variable nor"),
        ("${9X}", "neither the name of a variable nor"),
        ("${USER_:?must}", "neither the name of a variable nor"),
        ("@@plugins.nope.connection", "no document has that name"),
    ],
)
def test_errors_name_the_place_and_the_remedy(text: str, says: str) -> None:
    message = error(text)
    assert message.startswith("loader.yml, document 1, spec.x: ")
    assert says in message


def test_everything_missing_is_collected() -> None:
    made = expansion()
    made.expand({"a": "${A_}", "b": ["${B_}", "${N}"]}, "loader.yml, document 1")
    assert [e.where for e in made.errors] == [
        "loader.yml, document 1, a",
        "loader.yml, document 1, b[0]",
    ]


@given(st.text().map(lambda text: text.replace("\r", "")))
def test_a_files_content_arrives_without_its_last_line_break(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    folder = tmp_path_factory.mktemp("secrets")
    value = value.rstrip("\n")
    (folder / "pw").write_text(value + "\n", encoding="utf-8")
    assert expanded("${file:pw}", expansion(folder)) == value.removeprefix("\ufeff")


def test_files_are_relative_to_the_folder_and_always_secret(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/pw").write_text("s3cr#t: x\r\n")
    made = expansion(tmp_path, {"DIR": "run"})
    assert expanded("${file:./run/pw}!", made) == "s3cr#t: x!"
    assert expanded("${file:${DIR}/pw}", made) == "s3cr#t: x"
    assert expanded(f"${{file:{tmp_path}/run/pw}}", made) == "s3cr#t: x"
    assert made.redactor.redact("<s3cr#t: x>") == "<***>"


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert f"there is no file {tmp_path}/pw" in error("${file:pw}", expansion(tmp_path))
    assert "there is no file" in error("${file:~nobody.of.this.name/pw}", expansion(tmp_path))
    assert "cannot be read" in error("${file:.}", expansion(tmp_path))
    assert "not UTF-8" in error("${file:binary}", expansion(tmp_path))
    endless = error("${file:/dev/zero}", expansion(tmp_path))
    assert "/dev/zero has more than 1,000,000 characters" in endless


def test_references_give_the_other_documents_values() -> None:
    made = expansion(
        lake={"name": "lake", "spec": {"schema": "raw_${USER_}", "port": 5432, "list": []}},
        other={"port": "@@plugins.lake.spec.port"},
    )
    assert expanded("@@plugins.lake.connection", made) == "strandline://lake"
    assert expanded("@@plugins.lake.spec.schema", made) == "raw_bob"
    assert expanded("@@plugins.lake.schema", made) == "raw_bob"
    assert expanded("@@plugins.lake.port", made) == 5432
    assert expanded("@@plugins.other.port", made) == 5432
    assert expanded("host:@@plugins.lake.port.", made) == "host:5432."
    assert "has no property 'list'" in error("@@plugins.lake.list", made)


def test_references_that_multiply_are_refused() -> None:
    chain = {f"p{n}": f"@@plugins.a.p{n + 1}@@plugins.a.p{n + 1}" for n in range(40)}
    made = expansion(a={**chain, "p40": "x"})
    assert "needs more than 1000 references" in error("@@plugins.a.p0", made)


def test_a_reference_to_itself_is_refused() -> None:
    made = expansion(a={"x": "@@plugins.b.x"}, b={"x": "-@@plugins.a.x"})
    assert "refers to itself" in error("@@plugins.a.x", made)


def test_a_source_has_no_connection() -> None:
    made = expansion()
    made.plugins = {"shop": Plugin("loader.yml, document 1 (source shop)", "source", {})}
    assert "shop is a source and has no connection" in error("@@plugins.shop.connection", made)


@pytest.mark.parametrize(
    ("keys", "text", "env", "log", "redacted"),
    [
        (("spec", "password"), "${V}", {"V": "postgres"}, "jdbc:postgresql", "jdbc:postgresql"),
        (
            ("spec", "user"),
            "${V}",
            {"V": "postgres"},
            "jdbc:postgresql as postgres",
            "jdbc:postgresql as postgres",
        ),
        (("spec", "url"), "jdbc:x://u:${V}@h", {"V": "hunter22"}, "xhunter22x", "x***x"),
        (("spec", "url"), "jdbc:x://h?password=${V}", {"V": "hunter22"}, "xhunter22x", "x***x"),
        (
            ("spec", "url"),
            "jdbc:x://${V}/d",
            {"V": "dbhost"},
            "mydbhost dbhost:1",
            "mydbhost dbhost:1",
        ),
        (("spec", "x"), "${DB_PASSWORD}", {"DB_PASSWORD": "hunter22"}, "xhunter22x", "x***x"),
        (("spec", "url"), "${V}", {"V": "redis://:hunter22@h"}, "xhunter22x", "x***x"),
        (("spec", "port"), "${V}", {"V": "5432"}, "rows 5432", "rows 5432"),
        (("spec", "tables", 0), "${V}", {"V": "orders"}, "table orders", "table orders"),
        (("spec", "initial_cursor"), "${V}", {"V": "ab"}, "ab", "ab"),
        (
            ("spec", "table_options", "t", "initial_cursor"),
            "${V}",
            {"V": "2025-01-01"},
            "2025-01-01",
            "2025-01-01",
        ),
    ],
)
def test_only_secret_values_of_variables_are_masked(
    keys: tuple[str | int, ...], text: str, env: dict[str, str], log: str, redacted: str
) -> None:
    made = expansion(env=env)
    made.expand(text, "loader.yml", keys)
    assert made.redactor.redact(log) == redacted


def test_key_paths_read_like_the_file() -> None:
    assert key_path(("spec", "tables", 0)) == "spec.tables[0]"
    assert key_path(("table_options", "public.orders", "x")) == 'table_options["public.orders"].x'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${A:-" * 500 + "x" + "}" * 500, "nests more than 50 defaults or references. Write"),
        ("${A:-xxxxxxxxxx}" * 60_000, "has more than 1,000 variables. Write the value literally"),
    ],
)
def test_too_many_variables_or_levels_are_refused_at_once(text: str, says: str) -> None:
    began = time.monotonic()
    assert says in error(text)
    assert time.monotonic() - began < 2


def test_a_long_chain_of_references_is_refused() -> None:
    chain = {f"d{n}": {"x": f"@@plugins.d{n + 1}.x"} for n in range(500)}
    assert "needs a chain of more than 50 references" in error("@@plugins.d0.x", expansion(**chain))
    chain = {f"d{n}": {"x": f"<@@plugins.d{n + 1}.x>"} for n in range(500)}
    assert "more than 50" in error("@@plugins.d0.x", expansion(**chain))


@pytest.mark.parametrize(
    "text", ["://a" * 60_000, "a" * 100_000, "a=" + " " * 100_000, "a " * 60_000]
)
def test_long_text_before_variables_is_searched_only_once(text: str) -> None:
    began = time.monotonic()
    assert expanded(text + "${USER_}" * 20) == text + "bob" * 20
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("before", ["password=", "a://b:", "x.token = '", "k" * 2_000 + "="])
def test_text_before_a_variable_shows_that_it_is_secret(before: str) -> None:
    made = expansion()
    expanded(before + "${USER_}", made)
    assert made.redactor.redact("abobc") == "a***c"

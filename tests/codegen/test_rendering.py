"""Codegen writes the tests that suit a table, and escapes names of any kind."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from jinja2 import Environment
from jinja2.nativetypes import NativeEnvironment

from loader.codegen import rendering
from loader.codegen.rendering import HISTORY, LATEST, NamedTable
from loader.codegen.table import Column, Table, assign_names, make_safe
from loader.codegen.yaml_style import document
from loader.errors import TableError
from loader.rows.cursor import CursorType
from loader.rows.window import CursorField

UPDATED_AT = CursorField("updated_at", CursorType.TIMESTAMPTZ)


def _table(**facts: Any) -> Table:
    known: dict[str, Any] = {
        "source": "shop",
        "spec_name": "orders",
        "name": "orders",
        "schema": "raw",
        "columns": (Column("order_id", "int"), Column("updated_at", "timestamp")),
        "key": ("order_id",),
        "cursor": UPDATED_AT,
    }
    return Table(**{**known, **facts})


def _named(table: Table) -> NamedTable:
    return NamedTable(
        table, make_safe(table.name), f"{make_safe(table.source)}_{make_safe(table.name)}"
    )


def _configured(sql: str) -> dict[str, Any]:
    """Returns the arguments of a model's `config()`, as Jinja sees them."""
    said: dict[str, Any] = {}
    calls = {"config": said.update, "source": lambda *names: said.update(source=names)}
    Environment(autoescape=False).from_string(sql).render(**calls)
    return said


def test_a_model_is_short_and_says_what_it_is() -> None:
    assert rendering.sql(_named(_table()), LATEST) == (
        "{#- The newest version of each row of shop.orders. -#}\n"
        "{{\n"
        "    config(\n"
        "        materialized='deduped_latest',\n"
        "        unique_key=['order_id'],\n"
        "        meta={'strandline': {'cursor_field': 'updated_at'}}\n"
        "    )\n"
        "}}\n"
        "\n"
        "select *\n"
        "from {{ source('shop', 'orders') }}\n"
    )


@pytest.mark.parametrize("kind", [LATEST, HISTORY])
def test_a_model_of_a_full_refresh_hides_stale_rows(kind: str) -> None:
    sql = rendering.sql(_named(_table(incremental=False, cursor=None)), kind)
    assert _configured(sql) == {
        "materialized": f"deduped_{kind}",
        "unique_key": ["order_id"],
        "meta": {"strandline": {"delete_stale": True}},
        "source": ("shop", "orders"),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("it's", 'quo"te', "back\\slash", "{{ x }}", "{% x %}", "#}", "表", "a\nb", "-#}", "${x}"),
        *("end\n", "a\rb", "{\r", "{\n", "{{\n", "\r\n"),
    ],
)
def test_names_of_any_kind_reach_dbt_unchanged(name: str) -> None:
    table = _table(
        name=name,
        key=(name,),
        columns=(Column(name, "int", name),),
        cursor=CursorField(name, CursorType.INTEGER),
        description=name,
    )
    one = _named(table)

    said = _configured(rendering.sql(one, LATEST))
    assert said["unique_key"] == [name]
    assert said["meta"] == {"strandline": {"cursor_field": name}}

    written = yaml.safe_load(document(rendering.sources({"shop": "raw"}, [one]), "", (2, 6)))
    [entry] = written["sources"][0]["tables"]
    rendered = NativeEnvironment()  # as dbt renders each text

    def read(text: str) -> str:
        return str(rendered.from_string(text).render())

    assert read(entry["identifier"]) == name
    meta = entry["config"]["meta"]["strandline"]
    assert ([read(part) for part in meta["unique_key"]], read(meta["cursor_field"])) == (
        [name],
        name,
    )
    assert [read(column["name"]) for column in entry["columns"]] == [name]
    assert read(entry["description"]).startswith(" ".join(name.split()))


def test_a_raw_table_with_a_backtick_is_refused() -> None:
    one = _named(_table(name="a` v lateral view explode(array(1)) x as `y"))
    with pytest.raises(TableError, match="dbt does not escape backticks in a name"):
        rendering.sources({"shop": "raw"}, [one])


BOTH = ["strandline.matches_raw", "strandline.no_cursor_ties"]


@pytest.mark.parametrize(
    ("facts", "tests"),
    [
        ({}, BOTH),
        ({"cursor": CursorField("n", CursorType.INTEGER)}, BOTH),
        ({"cursor": None}, BOTH[:1]),
        ({"incremental": False}, BOTH[:1]),
    ],
)
def test_a_table_gets_the_tests_that_suit_it(facts: dict[str, Any], tests: list[str]) -> None:
    one = _named(_table(**facts))

    def tests_of(*models: list[NamedTable]) -> list[list[str]]:
        return [model["data_tests"] for model in rendering.models(*models)["models"]]

    assert tests_of([one], []) == [tests]
    assert tests_of([], [one]) == [tests]
    # The test of the latest table already finds the ties.
    assert tests_of([one], [one]) == [BOTH[:1], tests]


@pytest.mark.parametrize("facts", [{}, {"key": (), "cursor": None}, {"state_in_lake": False}])
def test_a_source_table_has_settings_but_no_tests(facts: dict[str, Any]) -> None:
    [entry] = rendering.sources({"shop": "raw"}, [_named(_table(**facts))])["sources"][0]["tables"]
    settings = entry["config"]["meta"]["strandline"]
    assert settings.get("state_in_lake", True) is facts.get("state_in_lake", True)
    assert "data_tests" not in entry


def test_a_source_table_has_only_known_properties() -> None:
    [entry] = rendering.sources({"shop": "raw"}, [_named(_table())])["sources"][0]["tables"]
    assert entry["columns"] == [
        {"name": "order_id", "data_type": "int"},
        {"name": "updated_at", "data_type": "timestamp"},
    ]
    assert set(entry) == {"name", "description", "config", "columns"}


def test_a_databases_comments_become_descriptions() -> None:
    columns = (Column("order_id", "int", "The order"), Column("_cq_batch", "bigint", "The batch"))
    one = _named(_table(description="Customers'\n orders", columns=columns))
    [entry] = rendering.sources({"shop": "raw"}, [one])["sources"][0]["tables"]
    assert entry["description"] == "Customers' orders."
    assert entry["columns"][0]["description"] == "The order"
    [model] = rendering.models([one], [])["models"]
    assert model["description"] == (
        "Customers' orders. The newest version of each row of shop.orders, by order_id."
    )
    assert model["columns"] == [{"name": "order_id", "description": "The order"}]


def test_masked_columns_say_so() -> None:
    columns = (Column("order_id", "string", mask="hash"), Column("at", "int", "The day", "year"))
    [entry] = rendering.sources({"shop": "raw"}, [_named(_table(columns=columns))])["sources"][0][
        "tables"
    ]
    metas = [column["config"]["meta"]["strandline"] for column in entry["columns"]]
    assert metas == [{"mask": "hash"}, {"mask": "year"}]
    assert entry["columns"][1]["description"] == "The day"


def test_a_table_without_a_key_says_so() -> None:
    [entry] = rendering.sources({"shop": "raw"}, [_named(_table(key=()))])["sources"][0]["tables"]
    assert entry["description"].endswith("It has no primary key, so it has no latest table.")
    assert entry["config"] == {"meta": {"strandline": {"cursor_field": "updated_at"}}}


def test_a_new_file_is_laid_out_for_people() -> None:
    text = document(
        rendering.sources({"shop": "raw"}, [_named(_table())]), "By codegen\nyours", (2,)
    )
    assert text.splitlines()[:11] == [
        "# By codegen",
        "# yours",
        "",
        "sources:",
        "  - name: shop",
        "    description: Rows that `loader run` appended from the source shop.",
        "    schema: raw",
        "    config:",
        "      loaded_at_field: _cq_sync_time",
        "      freshness:",
        "        warn_after: {count: 1, period: day}",
    ]
    assert "unique_key: [order_id]" in text


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("orders", "orders"),
        ("_log", "_log"),
        ("Order Items", "order_items"),
        ("we.ird-name!", "we_ird_name"),
        ("Größe", "grosse"),
        ("naïve", "naive"),
        ("表", "table"),
        ("2024", "2024"),
    ],
)
def test_files_have_safe_names(name: str, made: str) -> None:
    assert make_safe(name) == made


def test_names_that_collide_are_numbered_and_stay() -> None:
    proposals = {"a-b": "a_b", "a b": "a_b", "a_b": "a_b"}
    first = assign_names(proposals, {})
    assert first == {"a-b": "a_b_3", "a b": "a_b_2", "a_b": "a_b"}
    assert assign_names(dict(reversed(proposals.items())), {}) == first

    later = assign_names({**proposals, "a!b": "a_b"}, first)
    assert later == {**first, "a!b": "a_b_4"}
    assert assign_names({"a!b": "a_b"}, first) == {"a!b": "a_b_4"}  # the others are not selected

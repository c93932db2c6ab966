"""Options of connectors and tables: mistakes are reported with key and remedy, without secrets."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from loader.errors import SpecError
from loader.spec.options import TableOptions
from loader.spec.redaction import Redactor
from loader.spec.validation import validate_options

WHERE = "loader.yml, document 1 (source shop), spec.spec"


class Options(BaseModel):
    """The options of a third-party connector."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    user: str | None = None
    password: str | None = None
    port: int = 0
    token: int | None = None
    kind: int | bool | None = None
    table_options: dict[str, TableOptions] = Field(default_factory=dict)


def options_refused(value: dict[str, Any], redactor: Redactor | None = None) -> str:
    with pytest.raises(SpecError) as raised:
        validate_options(Options, value, WHERE, redactor or Redactor())
    return str(raised.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {},
            f"{WHERE}.url: this key is missing. Add `url: …`",
        ),
        (
            {"url": "x", "table_options": {"orders": {"cursor_fild": "x"}}},
            f"{WHERE}.table_options.orders.cursor_fild: unknown key. Did you mean `cursor_field`?",
        ),
        (
            {"url": "x", "table_options": {"public.orders": {"lookback": "10 minuts"}}},
            "table_options[\"public.orders\"].lookback: 'minuts' is not a unit of time",
        ),
        ({"url": "x", "table_options": {"o": {"lookback": -5}}}, "cannot be negative: '-5'"),
        ({"url": "x", "table_options": {"o": {"lookback": True}}}, "must be a duration such as"),
        (
            {"url": "x", "table_options": {"o": {"sync_mode": "full"}}},
            "must be 'incremental' or 'full_refresh', not 'full'",
        ),
        (
            {"url": "x", "table_options": {"o": {"primary_key": []}}},
            "primary_key: must not be empty",
        ),
        (
            {"url": "x", "table_options": {"o": {"primary_key": ["a", "a"]}}},
            "'a' appears twice here",
        ),
        (
            {"url": "x", "table_options": {"o": {"initial_cursor": ""}}},
            "the initial cursor is empty. Set a value",
        ),
        (
            {"url": "x", "table_options": {"o": {"initial_cursor": 1.5}}},
            "a float as a cursor would be rounded",
        ),
        (
            {"url": "x", "table_options": {"o": {"initial_cursor": True}}},
            "initial_cursor: must be a string, not true",
        ),
        (
            {"url": "x", "table_options": {"o": None}},
            "table_options.o: must be a mapping, not empty",
        ),
        (
            {"url": "x", "table_options": ["o"]},
            "table_options: must be a mapping. Write `key",
        ),
        ({"url": "x", "kind": "zz"}, "spec.spec.kind: must be a whole number"),
        (
            {"url": "x", "zzz": 1},
            "Valid keys: url, user, password, port, token, kind, table_options",
        ),
    ],
)
def test_errors_in_a_connectors_options_name_key_and_remedy(
    value: dict[str, Any], says: str
) -> None:
    message = options_refused(value)
    assert says in message
    assert "problems" not in message


def test_no_error_shows_a_secret() -> None:
    redactor = Redactor()
    redactor.add("hunter22")
    message = options_refused(
        {
            "url": ["x"],
            "password": ["hunter21"],
            "port": "hunter22",
            "pasword": "hunter23",
            "token": "hunter24",
        },
        redactor,
    )
    assert "hunter" not in message
    assert "not '***'" in message


@given(st.text(min_size=1))
def test_an_initial_cursor_is_kept_as_it_is(text: str) -> None:
    assert TableOptions(initial_cursor=text).initial_cursor == text


def test_a_single_column_is_a_key() -> None:
    assert TableOptions(primary_key="id").primary_key == ("id",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42, "42"),
        (Decimal("1.50"), "1.50"),
        (dt.date(2025, 1, 31), "2025-01-31"),
        (dt.datetime(2025, 1, 1, 0, 0, 0, 123456), "2025-01-01 00:00:00.123456"),
    ],
)
def test_an_initial_cursor_given_as_a_value_becomes_its_exact_text(value: Any, text: str) -> None:
    assert TableOptions(initial_cursor=value).initial_cursor == text

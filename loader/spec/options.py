"""A source's options for one table, the types of columns, and the base of all options models."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Collection, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from loader.duration import Lookback
from loader.error_report import did_you_mean
from loader.names import is_wildcard
from loader.spec.validation import OptionError

_SYNONYMS = {
    "text": "string",
    "byte": "tinyint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "numeric": "decimal",
    "dec": "decimal",
    "timestamp_ltz": "timestamp",
}
TYPES = (
    *("string", "tinyint", "smallint", "int", "bigint", "float", "double", "boolean"),
    *("date", "timestamp", "timestamp_ntz", "binary"),
)
"""The types that a column can be given, beside `decimal(precision, scale)`."""
DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")


def _normalize(text: str) -> str:
    bare = re.sub(r"\s+", "", text).lower()
    name, opened, rest = bare.partition("(")
    found = _SYNONYMS.get(name, name) + opened + rest
    decimal = DECIMAL.fullmatch(found)
    if found in TYPES or (decimal and int(decimal[2]) <= int(decimal[1]) in range(1, 39)):
        return found
    if name in ("decimal", "numeric", "dec"):
        raise OptionError(
            f"{text!r} is not a decimal that a column can be given",
            'Write its precision, at most 38, and its scale, at most as many: "decimal(38, 9)"',
        )
    known = ", ".join((*TYPES, '"decimal(38, 9)"'))
    raise OptionError(
        f"{text!r} is not a type that a column can be given",
        f"{did_you_mean(text, TYPES)} Write one of: {known}".strip(),
    )


ColumnType = Annotated[str, AfterValidator(_normalize)]
"""The name of a type, as Spark writes it."""


class Strict(BaseModel):
    """Frozen; refuses unknown keys; reads a number as a name, for a column called 2024."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", coerce_numbers_to_str=True, hide_input_in_errors=True
    )


def unique(values: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the values; raises OptionError if one appears twice."""
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise OptionError(f"{twice[0]!r} appears twice here", "Keep one of them")
    return values


Name = Annotated[str, StringConstraints(min_length=1)]
Names = Annotated[tuple[Name, ...], Field(min_length=1)]


class TableOptions(Strict):
    """A source's ``table_options`` for one table; connectors extend it.

    Attributes:
        sync_mode: read what is at or above the cursor, or everything again; connectors of sources
            that have a log add `cdc`.
        cursor_field: the column that shows what changed, or several: the first that the table has;
            a connector may define it itself.
        primary_key: the key's columns; discovered from the source if absent.
        initial_cursor: where the first sync begins, inclusive, as exact text.
        lookback: how far below the cursor each window begins.
        null_cursor: whether rows without a cursor are read; `fail` refuses the table.
        redelivered_rows: whether rows identical to the key's newest raw version are appended.
        schema_changes: whether raw follows the source's columns; `freeze` refuses the table.
        column_types: the types to load columns as, instead of those that the source's would have.
        deleted_field: the column that marks deleted rows
            (:func:`loader.rows.bookkeeping.is_tombstone`).
        shared: whether other sources that also set it load the same raw table
            (:mod:`loader.sync.ownership`).
    """

    sync_mode: Literal["incremental", "full_refresh"] = "incremental"
    cursor_field: tuple[Name, ...] | None = Field(default=None, min_length=1)
    primary_key: tuple[Name, ...] | None = Field(default=None, min_length=1)
    initial_cursor: str | None = None
    lookback: Lookback | None = None
    null_cursor: Literal["include", "exclude", "fail"] = "include"
    redelivered_rows: Literal["drop", "append"] = "drop"
    schema_changes: Literal["evolve", "freeze"] = "evolve"
    column_types: dict[Name, ColumnType] = Field(default_factory=dict)
    deleted_field: Name | None = None
    shared: bool = False

    @model_validator(mode="before")
    @classmethod
    def _types_have_their_own_key(cls, value: Any) -> Any:
        given = value.get("columns") if isinstance(value, Mapping) else None
        if isinstance(given, Mapping) or (isinstance(given, str) and " " in given.strip()):
            raise OptionError(
                "`columns` gives columns types, which is what `column_types` is for",
                "Rename `columns` to `column_types`",
            )
        return value

    @field_validator("cursor_field", "primary_key", mode="before")
    @classmethod
    def _single_column(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("cursor_field", "primary_key")
    @classmethod
    def _no_column_twice(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if value is None else unique(value)

    def cursor_among(self, columns: Collection[str]) -> str | None:
        """Returns the cursor of a table with these columns; None if it has none of several.

        The only one that is named is returned even if there is no such column: that is a mistake.
        """
        named = self.cursor_field or ()
        there = {column.lower() for column in columns}
        first = next((name for name in named if name.lower() in there), None)
        return named[0] if first is None and len(named) == 1 else first

    @field_validator("initial_cursor", mode="before")
    @classmethod
    def _exact_text(cls, value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.isoformat(sep=" ")
        if isinstance(value, dt.date | Decimal | int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, float):
            raise OptionError("a cursor cannot be a float, it would be rounded", "Put it in quotes")
        if value == "":
            raise OptionError("the initial cursor is empty", "Give the key a value or remove it")
        return value

    @field_validator("lookback", mode="before")
    @classmethod
    def _parse(cls, value: Any) -> Any:
        if value is None or isinstance(value, Lookback):
            return value
        if isinstance(value, bool | dict | list | float):
            raise ValueError("must be a time such as '10 minutes', or a whole number of steps")
        try:
            return Lookback.parse(str(value))
        except ValueError as error:
            raise OptionError(str(error), "Correct the lookback or remove it") from None


T = TypeVar("T", bound=TableOptions)


def options_for(options: Mapping[str, T], table: str, default: T) -> T:
    """Returns the options of a table: those under its name, over those of wildcards.

    Among wildcards, a later one counts before an earlier one, option by option. Names ignore case,
    as tables' names do.

    Args:
        options: the spec's `table_options`.
        default: options that set nothing.
    """
    name = table.lower()
    given: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for pattern, one in options.items():
        stated = {field: getattr(one, field) for field in one.model_fields_set}
        if is_wildcard(pattern):  # also for a table that is called just so
            given |= stated if fnmatchcase(name, pattern.lower()) else {}
        elif pattern.lower() == name:
            own = stated
    return default.model_copy(update=given | own)

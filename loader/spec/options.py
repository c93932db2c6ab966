"""Table options, column types, and the base class of all option models."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    field_validator,
)

from loader.duration import DURATION_PATTERN, Lookback, seconds_of
from loader.errors import TableError, did_you_mean
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
"""The types that `column_types` accepts, in addition to `decimal(precision, scale)`."""
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%", re.ASCII)
DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")


def _normalize(text: str) -> str:
    name, parenthesis, rest = re.sub(r"\s+", "", text).lower().partition("(")
    normalized = _SYNONYMS.get(name, name) + parenthesis + rest
    decimal = DECIMAL.fullmatch(normalized)
    if normalized in TYPES or (decimal and int(decimal[2]) <= int(decimal[1]) in range(1, 39)):
        return normalized
    if name in ("decimal", "numeric", "dec"):
        raise OptionError(
            f"{text!r} is not a valid decimal type",
            'Use a precision of at most 38, and a scale that is not larger: "decimal(38, 9)"',
        )
    known = ", ".join((*TYPES, '"decimal(38, 9)"'))
    raise OptionError(
        f"{text!r} is not a valid type of a column",
        f"{did_you_mean(text, TYPES)} Write one of: {known}".strip(),
    )


ColumnType = Annotated[str, AfterValidator(_normalize), Field(examples=[*TYPES, "decimal(38, 9)"])]
"""A type in Spark's notation."""


class Strict(BaseModel):
    """A frozen model that rejects unknown keys. Numbers are accepted as names, such as 2024."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", coerce_numbers_to_str=True, hide_input_in_errors=True
    )


def unique(values: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the values. Raises OptionError if a value appears twice."""
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise OptionError(f"{twice[0]!r} appears twice here", "Keep one of them")
    return values


MASKS = ("hash", "redact", "null", "domain", "year")
"""The masks of columns, in addition to `last: <number>`."""


def _normalize_mask(value: Any) -> Any:
    if value is None:  # YAML's null
        return "null"
    if isinstance(value, Mapping) and list(value) == ["last"]:
        count = value["last"]
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return f"last: {count}"
        raise OptionError(
            "`last` needs the number of characters to keep", "Use for example {last: 4}"
        )
    text = value.strip() if isinstance(value, str) else ""
    if text in MASKS or re.fullmatch(r"last: [1-9][0-9]{0,8}", text):
        return text
    shown = repr(value) if isinstance(value, str | int) else "this"
    raise OptionError(
        f"{shown} is not a mask",
        f"{did_you_mean(text, MASKS)} Write one of: {', '.join(MASKS)}, {{last: 4}}".strip(),
    )


_LAST_SCHEMA = {
    "type": "object",
    "properties": {"last": {"type": "integer", "minimum": 1}},
    "required": ["last"],
    "additionalProperties": False,
}
Mask = Annotated[
    str,
    BeforeValidator(_normalize_mask),
    WithJsonSchema({"anyOf": [{"enum": [*MASKS, None]}, _LAST_SCHEMA]}),
]
"""The mask of a column, one of :data:`MASKS` or `last: <number>`."""

Name = Annotated[str, StringConstraints(min_length=1)]
Names = Annotated[tuple[Name, ...], Field(min_length=1)]
_NameOrNames = Annotated[
    Names,
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=Name | Names,
    ),
]
DURATION_SCHEMA: dict[str, Any] = {
    "pattern": DURATION_PATTERN,
    "patternErrorMessage": "Use a duration such as '30 seconds', '10 minutes' or '2 days'",
    "examples": ["30 seconds", "10 minutes", "2 days"],
}
Duration = Annotated[str, Field(json_schema_extra=DURATION_SCHEMA)]
"""The type of durations in the JSON Schema."""


class ReconcileOptions(Strict):
    """Sets how often runs compare all keys of a table with the source.

    >>> ReconcileOptions(every="1 day", budget="5 %").share
    0.05

    Attributes:
        every: the period within which all keys are compared once.
        budget: the maximum share of time that comparisons of this table may take.
    """

    every: Duration
    budget: str = "5 %"

    @field_validator("every")
    @classmethod
    def _is_interval(cls, text: str) -> str:
        with suppress(ValueError):
            if seconds_of(text, "", "") > 0:
                return text
        raise OptionError(
            f"{text!r} is not a valid interval for comparing all keys",
            "Use a duration such as '1 day' or '6 hours'",
        )

    @field_validator("budget")
    @classmethod
    def _is_share(cls, text: str) -> str:
        percent = _PERCENT.fullmatch(text)
        if percent and 0 < float(percent[1]) <= 100:
            return text
        raise OptionError(
            f"{text!r} is not a valid percentage",
            "Use more than 0 % and at most 100 %, for example '5 %'",
        )

    @property
    def seconds(self) -> float:
        """The `every` option, in seconds."""
        return float(seconds_of(self.every, "", ""))

    @property
    def share(self) -> float:
        """The `budget` option as a fraction, above 0 and at most 1."""
        return float(self.budget.rstrip("% ")) / 100


class ColumnSelection(Strict):
    """Selects the columns of a table that are loaded. Names are case-insensitive.

    Attributes:
        include: names or wildcards of the columns to load. By default, all columns are loaded.
        exclude: names or wildcards of the columns to exclude, even if `include` matches them.
    """

    include: _NameOrNames | None = None
    exclude: _NameOrNames | None = None

    def selects(self, name: str) -> bool:
        """Returns whether a column is selected by `include` and not excluded by `exclude`."""
        is_included = self.include is None or bool(_match_columns([name], self.include))
        return is_included and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        """Returns whether a name or wildcard in `exclude` matches a column."""
        return bool(_match_columns([name], self.exclude or ()))

    def check_names(self, names: Sequence[str], where: str, allows_wildcards: bool = False) -> None:
        """Raises a TableError if a name or wildcard in `include` or `exclude` matches no column.

        Args:
            names: all columns of the table.
            allows_wildcards: whether to accept wildcards that match no column.
        """
        for pattern in (*(self.include or ()), *(self.exclude or ())):
            if allows_wildcards and is_wildcard(pattern):
                continue
            if not _match_columns(names, [pattern]):
                raise _no_such_column(pattern, names, f"{where}, columns")

    def choose(
        self,
        names: Sequence[str],
        required: Collection[str],
        where: str,
        must_match: bool = True,
    ) -> list[str]:
        """Returns the names of the columns to load, ordered as in the table.

        Args:
            names: all columns of the table.
            required: columns that are always loaded, such as the key columns.
            must_match: whether each name and wildcard must match a column.

        Raises:
            TableError: if a name or wildcard matches no column, if a required column is excluded,
                or if no column remains.
        """
        if must_match:
            self.check_names(names, where)
        excluded = _match_columns(names, self.exclude or ())
        always = {name.lower() for name in required}
        named = {name.lower() for name in self.exclude or ()}
        needed = next((name for name in names if name.lower() in always & named), None)
        if needed is not None:
            raise TableError(
                f"the column {needed!r} cannot be excluded: the key, the cursor and the "
                "deleted_field are always read",
                where=f"{where}, columns",
                remedy="Set another primary_key, cursor_field or deleted_field, or exclude other "
                "columns",
            )
        included = set(names) if self.include is None else _match_columns(names, self.include)
        chosen = [n for n in names if n.lower() in always or (n in included and n not in excluded)]
        if not chosen:
            raise TableError(
                "all columns are excluded",
                where=f"{where}, columns",
                remedy="Select a column, or exclude the table with skip_tables",
            )
        return chosen


def _match_columns(names: Sequence[str], patterns: Collection[str]) -> set[str]:
    """Returns the names that a pattern matches or equals."""
    lowered = [pattern.lower() for pattern in patterns]
    return {
        name
        for name in names
        if name.lower() in lowered or any(fnmatchcase(name.lower(), each) for each in lowered)
    }


def _no_such_column(pattern: str, names: Sequence[str], where: str) -> TableError:
    if pattern[0] in "-!":  # other tools exclude columns this way
        remedy = f"To exclude columns, write `columns: {{exclude: [{pattern[1:]}]}}`."
    else:
        remedy = did_you_mean(pattern, names)
    what = "matches no column" if is_wildcard(pattern) else "is not a column"
    return TableError(
        f"{pattern!r} {what}",
        where=where,
        remedy=f"{remedy} Its columns: {', '.join(names)}".strip(),
    )


class TableOptions(Strict):
    """A source's ``table_options`` for one table. Connectors extend this class.

    Attributes:
        sync_mode: `incremental` reads rows at or above the stored cursor, and `full_refresh` reads
            all rows. Connectors may add `cdc`, which reads the database's log.
        cursor_field: the column whose values increase with each change. If the spec lists several
            columns, the first one that exists in the table is used. If this option is not set, some
            connectors choose the column.
        primary_key: the columns of the key. The default is the key that the source declares.
        initial_cursor: the cursor at which the first sync starts, inclusive. It is read as a
            string, so it is never rounded.
        lookback: how far below the stored cursor each sync starts to read.
        null_cursor: whether rows whose cursor is null are read. With `fail`, a table with such rows
            is refused.
        redelivered_rows: whether a row is appended even if it is identical to the newest row with
            the same key in the raw table.
        schema_changes: if the source's columns change, `evolve` changes the raw table, too, and
            `freeze` refuses the table.
        columns: the columns to load. By default, all columns are loaded.
        column_types: the types of columns, instead of the types that are derived from the source.
        mask: how the values of columns are masked before they are written
            (:mod:`loader.sources.masked_source`). The keys are column names or wildcards.
        deleted_field: the column that marks deleted rows
            (:func:`loader.rows.bookkeeping.is_tombstone`).
        shared: whether this source loads the same raw table as other sources that also set this
            option (:mod:`loader.sync.ownership`).
    """

    sync_mode: Literal["incremental", "full_refresh"] = "incremental"
    cursor_field: Annotated[_NameOrNames, AfterValidator(unique)] | None = None
    primary_key: Annotated[_NameOrNames, AfterValidator(unique)] | None = None
    initial_cursor: str | None = None
    lookback: Lookback | None = None
    null_cursor: Literal["include", "exclude", "fail"] = "include"
    redelivered_rows: Literal["drop", "append"] = "drop"
    schema_changes: Literal["evolve", "freeze"] = "evolve"
    columns: ColumnSelection | None = None
    column_types: dict[Name, ColumnType] = Field(default_factory=dict)
    mask: dict[Name, Mask] = Field(default_factory=dict)
    deleted_field: Name | None = None
    shared: bool = False

    @property
    def rotation(self) -> ReconcileOptions | None:
        """The `reconcile` option; None if it is not set or if the connector does not support it."""
        reconcile: ReconcileOptions | None = getattr(self, "reconcile", None)
        return reconcile

    @field_validator(
        "columns",
        mode="before",
        json_schema_input_type=ColumnSelection | Name | Names | None,
    )
    @classmethod
    def _list_is_include(cls, value: Any) -> Any:
        keys = ("include", "exclude")
        unknown = (
            [str(key) for key in value if key not in keys] if isinstance(value, Mapping) else []
        )
        has_types = any(not did_you_mean(key, keys) for key in unknown)
        if has_types or (isinstance(value, str) and " " in value.strip()):
            raise OptionError(
                "`columns` cannot set the types of columns",
                "Rename `columns` to `column_types`; to choose columns, write a list of names, or "
                "{exclude: [names]}",
            )
        return value if isinstance(value, Mapping) or value is None else {"include": value}

    def choose_cursor(self, columns: Collection[str]) -> str | None:
        """Returns the cursor field of a table with these columns; None if the table has none.

        If the spec lists only one cursor field, it is returned even if the table lacks this column,
        so that the caller reports an error.
        """
        names = self.cursor_field or ()
        existing = {column.lower() for column in columns}
        first = next((name for name in names if name.lower() in existing), None)
        return names[0] if first is None and len(names) == 1 else first

    @field_validator("initial_cursor", mode="before", json_schema_input_type=Name | None)
    @classmethod
    def _exact_text(cls, value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.isoformat(sep=" ")
        if isinstance(value, dt.date | Decimal | int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, float):
            raise OptionError("a float as a cursor would be rounded", "Put the value in quotes")
        if value == "":
            raise OptionError("the initial cursor is empty", "Set a value or remove the key")
        return value

    @field_validator("lookback", mode="before", json_schema_input_type=Duration | int | None)
    @classmethod
    def _parse(cls, value: Any) -> Any:
        if value is None or isinstance(value, Lookback):
            return value
        if isinstance(value, bool | dict | list | float):
            raise ValueError("must be a duration such as '10 minutes', or a whole number of steps")
        try:
            return Lookback.parse(str(value))
        except ValueError as error:
            raise OptionError(str(error), "Correct the lookback or remove it") from None


T = TypeVar("T", bound=TableOptions)


def is_set_by_name(options: Mapping[str, TableOptions], table: str, option: str) -> bool:
    """Returns whether an option is set under the table's own name, and not only by a wildcard."""
    return any(
        name.lower() == table.lower() and option in entry.model_fields_set
        for name, entry in options.items()
        if not is_wildcard(name)
    )


def options_for(options: Mapping[str, T], table: str, default: T) -> T:
    """Returns a table's options. The entry with the table's name overrides entries with wildcards.

    Later wildcards override earlier wildcards, option by option. Masks are merged column by column
    instead, because a missing mask would expose values. Names are case-insensitive.

    Args:
        default: an instance in which no option is set.
    """
    name = table.lower()
    from_wildcards: dict[str, Any] = {}
    from_name: dict[str, Any] = {}
    for pattern, entry in options.items():
        fields = {field: getattr(entry, field) for field in entry.model_fields_set}
        if is_wildcard(pattern):  # even if a table has exactly this name
            if fnmatchcase(name, pattern.lower()):
                from_wildcards = _override(from_wildcards, fields)
        elif pattern.lower() == name:
            from_name = fields
    return default.model_copy(update=_override(from_wildcards, from_name))


def _override(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    if "mask" in earlier and "mask" in later:
        later = {**later, "mask": earlier["mask"] | later["mask"]}
    return earlier | later

"""The types that a spec gives to columns: `column_types: {rate: "decimal(38, 9)"}`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from loader.error_report import did_you_mean
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
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


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

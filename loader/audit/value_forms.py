"""Compares values that tools may store in a different text form: JSON and times of day."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from loader.sources.checksum import HashedColumn

_JSON = ("json", "jsonb")
_TIMES = ("time", "timetz")


def normalize(part: HashedColumn, value: Column) -> Column:
    """Returns a value in a form that does not depend on the tool that stored it.

    JSON values and times of day are strings in Spark. A tool may store the same JSON with different
    whitespace, and the same time without trailing zeros. All other values are returned unchanged.
    """
    if part.stored in _JSON:
        return f.coalesce(f.get_json_object(value, "$"), value)
    if part.stored in _TIMES:
        value = f.regexp_replace(value, r"^(\d\d:\d\d)(?=$|[-+Z])", "$1:00")
        value = f.regexp_replace(value, r"(\.\d*?)0+(?=$|[-+Z])", "$1")
        value = f.regexp_replace(value, r"\.(?=$|[-+Z])", "")
        value = f.regexp_replace(value, "Z$", "+00")
        return f.regexp_replace(value, r"([-+]\d\d):?00$", "$1")
    return value

"""Converts key values so that two different ones never become equal."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql import types as t

from loader.sources.programs.values import Misfit, has_leap_second

_FINER = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")  # than a microsecond
_PADDED = re.compile(r"\s|\+|-?0[0-9]|.*\s$", re.DOTALL)


def distinct(data_type: t.DataType, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a converter that raises :class:`Misfit` for a value that would not come back.

    Args:
        convert: of the same type.
    """

    def convert_distinct(value: Any) -> Any:
        found = convert(value)
        if not _comes_back(value, found, data_type):
            raise Misfit
        return found

    return convert_distinct


def _comes_back(value: Any, found: Any, data_type: t.DataType) -> bool:
    if isinstance(data_type, t.TimestampType | t.TimestampNTZType | t.DateType):
        return not (_FINER.search(value) or has_leap_second(value))
    if isinstance(data_type, t.StringType | t.BooleanType):
        return True
    if isinstance(value, str) and _PADDED.match(value):
        return False
    if isinstance(data_type, t.FloatType):
        return bool(struct.unpack("<f", struct.pack("<f", found))[0] == found)
    if isinstance(data_type, t.DoubleType) and not isinstance(value, float):
        number = Decimal(value)
        return Decimal(found) == number or Decimal(repr(found)) == number
    return True

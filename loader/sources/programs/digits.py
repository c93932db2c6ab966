"""Reads and writes JSON without rounding: numbers that a float would round are decimals."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

_MOST_DIGITS = 4000


def _number(text: str) -> float | Decimal:
    value = float(text)
    if repr(value) == text:
        return value
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return value
    return value if Decimal(repr(value)) == exact else exact


def _integer(text: str) -> int | Decimal:
    # Python refuses to make an int of more digits, as that takes quadratic time.
    return int(text) if len(text) <= _MOST_DIGITS else Decimal(text)


_decoder = json.JSONDecoder(parse_float=_number, parse_int=_integer)
decode: Callable[[str], Any] = _decoder.decode
"""Parses JSON."""


_encode_plain = json.JSONEncoder().encode


def encode(
    value: Any, encode_plain: Callable[[Any], str] = _encode_plain, in_order: bool = False
) -> str:
    """Encodes a result of :data:`decode` as JSON.

    Args:
        encode_plain: encodes values without decimals; raises TypeError for a decimal.
        in_order: whether that sorts an object's keys.
    """
    try:
        return encode_plain(value)
    except TypeError:
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, list):
            return "[" + ",".join(encode(each, encode_plain, in_order) for each in value) + "]"
        if not isinstance(value, dict):
            raise
    items = sorted(value.items()) if in_order else value.items()
    inner = (f"{encode_plain(name)}:{encode(v, encode_plain, in_order)}" for name, v in items)
    return "{" + ",".join(inner) + "}"

"""Masks single values in Python.

Connectors use these functions for records that they write to disk before Spark reads them. The
functions return the same results as the Spark expressions in :mod:`loader.rows.mask_columns`.
"""

from __future__ import annotations

import datetime as dt
import hmac
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from loader.names import is_wildcard

HASH = "hash"
REDACTED = "***"
"""The string that replaces a value, or the hidden part of a value."""
ADDRESS = r"^\s*[^@\s]+@([^@\s<>,;:()\[\]\"]+\.[^@\s<>,;:()\[\]\".]+)\s*"
"""Matches an e-mail address in Java and Python; the group captures the domain. Callers append an
anchor for the end of the string: `\\z` in Java, `\\Z` in Python."""
UPPER, LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
"""The letters that the `domain` mask converts to lower case. For other letters, the result would
depend on the Unicode version."""

_ADDRESS = re.compile(ADDRESS + r"\Z", re.ASCII)
_TO_LOWER = str.maketrans(UPPER, LOWER)


def make_mask(mask: str, key: bytes | None) -> Callable[[Any], Any]:
    """Returns a function that masks a value other than null.

    The function accepts strings, integers, decimals without a fraction, dates, times and bytes. The
    masks `redact` and `null` accept any value::

        make_mask("last: 4", None)("4111111111111111") == "***1111"

    Args:
        mask: the validated mask (:data:`loader.spec.options.Mask`).
    """
    kind, _, count = mask.partition(": ")
    if kind == HASH:
        assert key is not None
        return _make_hash(key)
    if kind == "last":
        return lambda text: _show_last(text, int(count))
    return {
        "null": lambda _: None,
        "redact": lambda _: REDACTED,
        "year": lambda moment: moment.year,
        "domain": _show_domain,
    }[kind]


def find_mask(name: str, masks: Mapping[str, str]) -> str | None:
    """Returns the mask of a column or field; None if it has none. Names are case-insensitive.

    An exact name overrides wildcards, and a later wildcard overrides an earlier one.

    Args:
        masks: the `mask` option, whose keys are names or wildcards.
    """
    found = None
    for pattern, mask in masks.items():
        if is_wildcard(pattern) and fnmatchcase(name.lower(), pattern.lower()):
            found = mask
    # The name of a column may look like a wildcard.
    by_name = {pattern.lower(): mask for pattern, mask in masks.items()}
    return by_name.get(name.lower(), found)


def _make_hash(key: bytes) -> Callable[[Any], str]:
    keyed = hmac.new(key, digestmod="sha256")

    def hash_value(value: str | int | Decimal | dt.date | bytes) -> str:
        if isinstance(value, Decimal):
            value = int(value)
        digest = keyed.copy()
        digest.update(value if isinstance(value, bytes) else str(value).encode())
        return digest.hexdigest()

    return hash_value


def _show_last(text: str, count: int) -> str:
    text = text.rstrip(" ")
    return REDACTED + text[-count:] if len(text) > count else REDACTED


def _show_domain(text: str) -> str:
    address = _ADDRESS.match(text)
    return address[1].translate(_TO_LOWER) if address else REDACTED

"""Names that become folders and files: one rule for tables, namespaces and state keys.

In a file-system warehouse a raw table is a folder named after it, and its lock is a file, so a
name must not be a path; and dbt puts it between backticks as it is, so it must not have any. Dots,
slashes and backticks in a source's table name become `_`; every other name that comes from outside
(the spec, the command line, a file of cursors) is checked by :func:`explain_refusal`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

# Also what ends a line for Python, and so for the macros that read Spark's plans.
_NO_NAME = re.compile(r"[/`\x00-\x1f\x7f-\x9f\u2028\u2029]")
_AS_IT_IS = re.compile(r"[^/%\x00-\x1f\x7f]")
_LONGEST = 180  # bytes; file systems take 255, and suffixes come on top


def in_the_lake(name: str) -> str:
    """Returns a source table's name as raw's: there, dots would be namespaces, slashes folders."""
    return _NO_NAME.sub("_", name.replace(".", "_"))


def is_wildcard(pattern: str) -> bool:
    """Whether a pattern may match more than one table."""
    return any(mark in pattern for mark in "*?[")


def match_selection(name: str, select: Sequence[str]) -> set[str]:
    """Returns the patterns of `--select` that match a table, by the source's name of it or raw's.

    Args:
        name: with its source: `shop.sales.orders`, or `shop.sales_orders` as messages have it.
    """
    names = {name.lower(), _in_raw(name.lower())}
    return {
        pattern
        for pattern in select
        if any(
            fnmatchcase(one, form)
            for one in names
            for form in (pattern.lower(), _in_raw(pattern.lower()))
        )
    }


def qualify(select: Sequence[str], names: Iterable[str]) -> list[str]:
    """Returns `--select` with the source before each bare name that only one table has.

    Args:
        names: all tables', with their sources'.
    """
    found: dict[str, set[str]] = {}
    for name in names:
        found.setdefault(name.partition(".")[2].lower(), set()).add(name)
    return [
        min(found[name.lower()])
        # neither a pattern nor a name with its source: a table of another one may be called so
        if not re.search(r"[.*?[]", name) and len(found.get(name.lower(), ())) == 1
        else name
        for name in select
    ]


def _in_raw(name: str) -> str:
    source, dot, table = name.partition(".")
    return f"{source}{dot}{in_the_lake(table)}"


def explain_refusal(name: str) -> str | None:
    """Returns why a name cannot be a table's or a schema's, or None if it can."""
    if not name or name in (".", ".."):
        return f"{name!r} is not a valid name"
    found = _NO_NAME.search(name)
    if found is not None:
        return f"{name!r} contains {found[0]!r}, which a table or schema name must not"
    if len(name.encode("utf-8", "surrogatepass")) > _LONGEST:
        return f"{name[:40]!r}… is longer than {_LONGEST} bytes"
    return None


def file_name(name: str) -> str:
    """Returns a file name that no other name gets; a name that is too long ends in its hash."""
    kept = "".join(c if _AS_IT_IS.match(c) else f"%{ord(c):02X}" for c in name)
    if kept in ("", ".", ".."):
        return "%" + kept
    raw = kept.encode("utf-8", "surrogatepass")
    if len(raw) <= _LONGEST:
        return kept
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return raw[: _LONGEST - 17].decode("utf-8", "ignore") + "-" + digest


def literal_path(path: str) -> str:
    """Returns a path that Hadoop, and so Spark, does not read as a pattern."""
    return "".join(f"\\{letter}" if letter in "\\*?[]{}," else letter for letter in path)

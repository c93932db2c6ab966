"""Checks the names of tables, namespaces and state keys, which become folder and file names.

In a file-system warehouse, a raw table is a folder and its lock is a file, so a name must not be a
path. dbt does not escape backticks, so a name must not contain them. In the names of a source's
tables, dots, slashes and backticks are replaced by `_`. Names from the spec, the command line and
exported cursors are checked with :func:`explain_refusal`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

# Includes the characters that Python treats as line breaks, because dbt macros split Spark's plans
# into lines.
_INVALID = re.compile(r"[/`\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FILE_CHARACTER = re.compile(r"[^/%\x00-\x1f\x7f]")
_MAX_BYTES = 180  # file systems allow 255 bytes, which must include suffixes


def in_the_lake(name: str) -> str:
    """Returns a source table's name in the lake. Replaces dots, slashes and backticks."""
    return _INVALID.sub("_", name.replace(".", "_"))


def is_wildcard(pattern: str) -> bool:
    """Returns whether a pattern may match more than one table."""
    return any(mark in pattern for mark in "*?[")


def match_selection(name: str, select: Sequence[str]) -> set[str]:
    """Returns the patterns in `--select` that match the name of a table or of its raw table.

    Args:
        name: the name with its source: either `shop.sales.orders`, or `shop.sales_orders` as in
            messages.
    """
    names = {name.lower(), _in_raw(name.lower())}
    return {
        pattern
        for pattern in select
        if any(
            fnmatchcase(each, variant)
            for each in names
            for variant in (pattern.lower(), _in_raw(pattern.lower()))
        )
    }


def qualify(select: Sequence[str], names: Iterable[str]) -> list[str]:
    """Prefixes each name in `--select` with its source, if only one table has this name.

    Args:
        names: the names of all tables, each prefixed with its source.
    """
    by_table: dict[str, set[str]] = {}
    for name in names:
        by_table.setdefault(name.partition(".")[2].lower(), set()).add(name)
    return [
        min(by_table[name.lower()])
        # Patterns stay unchanged. So do names with a dot, which may already contain the source.
        if not re.search(r"[.*?[]", name) and len(by_table.get(name.lower(), ())) == 1
        else name
        for name in select
    ]


def _in_raw(name: str) -> str:
    source, dot, table = name.partition(".")
    return f"{source}{dot}{in_the_lake(table)}"


def explain_refusal(name: str) -> str | None:
    """Explains why a name is not valid for a table or schema. Returns None if it is valid."""
    if not name or name in (".", ".."):
        return f"{name!r} is not a valid name"
    match = _INVALID.search(name)
    if match is not None:
        return f"{name!r} contains {match[0]!r}, which a table or schema name must not contain"
    if len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        return f"{name[:40]!r}… is longer than {_MAX_BYTES} bytes"
    return None


def file_name(name: str) -> str:
    """Returns a unique file name for a name. A long name is shortened, and a hash is appended."""
    escaped = "".join(c if _FILE_CHARACTER.match(c) else f"%{ord(c):02X}" for c in name)
    if escaped in ("", ".", ".."):
        return "%" + escaped
    raw = escaped.encode("utf-8", "surrogatepass")
    if len(raw) <= _MAX_BYTES:
        return escaped
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return raw[: _MAX_BYTES - 17].decode("utf-8", "ignore") + "-" + digest


def literal_path(path: str) -> str:
    """Escapes a path, so that Hadoop and Spark do not interpret it as a pattern."""
    return "".join(f"\\{c}" if c in "\\*?[]{}," else c for c in path)

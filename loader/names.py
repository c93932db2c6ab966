"""Names that become folders and files: one rule for tables, namespaces and keys of state.

A raw table of a warehouse in a file system is a folder of its name, its lock a file. So a name
must not be a path. Dots and slashes in a source's table name become `_`; every other name that
comes from outside (the spec, the command line, a file of cursors) is refused by :func:`refused`.
"""

from __future__ import annotations

import hashlib
import re

_NO_PATH = re.compile(r"[/\x00-\x1f\x7f]")
_AS_IT_IS = re.compile(r"[^/%\x00-\x1f\x7f]")
_LONGEST = 180  # bytes; file systems take 255, and suffixes come on top


def in_the_lake(name: str) -> str:
    """A source's table name as the raw table's: dots would be namespaces there, slashes folders."""
    return re.sub(r"[./\x00-\x1f\x7f]", "_", name)


def refused(name: str) -> str | None:
    """Why a name cannot be a folder's; None if it can."""
    if not name or name in (".", ".."):
        return f"{name!r} is no name"
    found = _NO_PATH.search(name)
    if found is not None:
        return f"{name!r} holds {found[0]!r}, which no name of a table or schema may hold"
    if len(name.encode("utf-8", "surrogatepass")) > _LONGEST:
        return f"{name[:40]!r}… is longer than {_LONGEST} bytes"
    return None


def file_name(name: str) -> str:
    """A file name that is the name's own, also if that is too long for one."""
    kept = "".join(c if _AS_IT_IS.match(c) else f"%{ord(c):02X}" for c in name)
    if kept in ("", ".", ".."):
        return "%" + kept
    raw = kept.encode("utf-8", "surrogatepass")
    if len(raw) <= _LONGEST:
        return kept
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return raw[: _LONGEST - 17].decode("utf-8", "ignore") + "-" + digest

"""Recognises damaged Iceberg metadata: one error that names the table and how to recover it."""

from __future__ import annotations

import re

from loader.errors import TableError

_FILE = re.compile(r"[^/\s:\"']*\.metadata\.json\b|version-hint\.text|snap-[^/\s:\"']*\.avro")
_SIGNS = re.compile(
    r"JsonParseException|JsonMappingException|Unexpected end-of-input|Failed to (?:read|parse|open)"
    r"|Cannot parse|NotFoundException|FileNotFoundException|No such file|Input file|EOFException"
    r"|InvalidAvroMagicException|Not an Avro data file|Malformed",
)
BACK = "docs/operations.md, 'A damaged table', says how to recover it"


def damaged(text: str, where: str) -> TableError | None:
    """Returns the error for a table whose metadata is cut off, corrupt or missing, otherwise None.

    Args:
        text: the exception's text, with its causes.
        where: the table.
    """
    found = _FILE.search(text)
    if found is None or not _SIGNS.search(text):
        return None
    return TableError(
        f"its metadata cannot be read: {found[0]} is damaged or missing",
        where=where,
        remedy=f"Other tables are not affected. {BACK}",
    )

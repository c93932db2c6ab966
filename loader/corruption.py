"""Recognises damaged Iceberg tables: one error that names the table and how to recover it."""

from __future__ import annotations

import re

from loader.errors import DamagedError
from loader.package import page

_METADATA = re.compile(
    r"[^/\s:\"']*\.metadata\.json\b|version-hint\.text|snap-[^/\s:\"']*\.avro"
    r"|(?<=/metadata/)[^/\s:\"']*-m[^/\s:\"']*\.avro"
)
# A source may have Parquet files too: only Iceberg's own names count.
_DATA = re.compile(r"\d{5}-\d+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d{5}[\w-]*\.parquet")
_MISSING = re.compile(r"Metadata file for version (\d+) is missing")
_SIGNS = re.compile(
    r"JsonParseException|JsonMappingException|Unexpected end-of-input|Failed to (?:read|parse|open)"
    r"|Cannot parse|NotFoundException|FileNotFoundException|No such file|Input file|EOFException"
    r"|InvalidAvroMagicException|Not an Avro data file|Malformed|does not exist"
)
_BROKEN = re.compile(
    r"is not a Parquet file|[Ff]ooter is too large|[Cc]orrupted|Unexpected EOF|EOFException"
    r"|InvalidAvroMagicException|Not an Avro data file|Expected magic number"
    r"|CRC checksum verification failed|Checksum error"
)
# Who was reading when the error names no file; a job's trace also shows who was to write.
_OF_MANIFEST = re.compile(
    r"org\.apache\.iceberg\.(?:ManifestReader|ManifestLists|avro\.Avro(?:Iterable|IO))\b"
)
_OF_DATA = re.compile(r"org\.apache\.iceberg\.parquet\.(?:ReadConf|\w*Reader)\b")
BACK = f"{page('recovery', 'A damaged table')}, says how to recover it"


def detect_damage(text: str, where: str) -> DamagedError | None:
    """Returns the error for a table with a file that is cut off, corrupt or missing, else None.

    Args:
        text: the exception's text, with its causes.
        where: the table.
    """
    found = _find_damage(text)
    if found is None:
        return None
    part, name = found
    return DamagedError(
        f"its {part} cannot be read: {name} is damaged or missing",
        where=where,
        remedy=f"Other tables are not affected. {BACK}",
    )


def _find_damage(text: str) -> tuple[str, str] | None:
    """Returns which part of a table is damaged, and the file; None if none is."""
    missing = _MISSING.search(text)
    if missing is not None:
        return "metadata", f"v{missing[1]}.metadata.json"
    for part, name in (("metadata", _METADATA), ("data", _DATA)):
        found = name.search(text)
        if found is not None and (_SIGNS.search(text) or _BROKEN.search(text)):
            return part, found[0]
    if not _BROKEN.search(text):
        return None
    if _OF_DATA.search(text):
        return "data", "a Parquet file"
    return ("metadata", "a manifest") if _OF_MANIFEST.search(text) else None

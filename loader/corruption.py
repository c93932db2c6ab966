"""Detects from an exception that an Iceberg table is damaged, and builds the error."""

from __future__ import annotations

import re

from loader.errors import DamagedError
from loader.package import page

_METADATA = re.compile(
    r"[^/\s:\"']*\.metadata\.json\b|version-hint\.text|snap-[^/\s:\"']*\.avro"
    r"|(?<=/metadata/)[^/\s:\"']*-m[^/\s:\"']*\.avro"
)
# Matches only names of Iceberg's data files, because other Parquet files may belong to a source.
_DATA = re.compile(r"\d{5}-\d+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d{5}[\w-]*\.parquet")
_MISSING = re.compile(r"Metadata file for version (\d+) is missing")
_ERRORS = re.compile(
    r"JsonParseException|JsonMappingException|Unexpected end-of-input|Failed to (?:read|parse|open)"
    r"|Cannot parse|NotFoundException|FileNotFoundException|No such file|Input file|EOFException"
    r"|InvalidAvroMagicException|Not an Avro data file|Malformed|does not exist"
)
_CORRUPT_FILE_ERROR = re.compile(
    r"is not a Parquet file|[Ff]ooter is too large|[Cc]orrupted|Unexpected EOF|EOFException"
    r"|InvalidAvroMagicException|Not an Avro data file|Expected magic number"
    r"|CRC checksum verification failed|Checksum error"
)
# If the message contains no file name, these classes in the stack trace show which kind of file was
# read. Only readers are matched, because the trace of a job may also contain classes that write.
_MANIFEST_READER = re.compile(
    r"org\.apache\.iceberg\.(?:ManifestReader|ManifestLists|avro\.Avro(?:Iterable|IO))\b"
)
_DATA_READER = re.compile(r"org\.apache\.iceberg\.parquet\.(?:ReadConf|\w*Reader)\b")
RECOVERY = f"{page('recovery', 'A damaged table')}, describes the recovery"


def detect_damage(text: str, where: str) -> DamagedError | None:
    """Returns an error if an exception reports a damaged or missing file of a table, else None.

    Args:
        text: the messages of the exception and its causes.
        where: the table.
    """
    damage = _find_damage(text)
    if damage is None:
        return None
    part, name = damage
    return DamagedError(
        f"its {part} cannot be read: {name} is damaged or missing",
        where=where,
        remedy=f"Other tables are not affected. {RECOVERY}",
    )


def _find_damage(text: str) -> tuple[str, str] | None:
    missing = _MISSING.search(text)
    if missing is not None:
        return "metadata", f"v{missing[1]}.metadata.json"
    for part, pattern in (("metadata", _METADATA), ("data", _DATA)):
        match = pattern.search(text)
        if match is not None and (_ERRORS.search(text) or _CORRUPT_FILE_ERROR.search(text)):
            return part, match[0]
    if not _CORRUPT_FILE_ERROR.search(text):
        return None
    if _DATA_READER.search(text):
        return "data", "a Parquet file"
    return ("metadata", "a manifest") if _MANIFEST_READER.search(text) else None

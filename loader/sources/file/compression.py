"""Recognises archives, and compressed files whose names do not say so: Spark reads them as text."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.spark.error_translation import UNPACK

_KINDS = {
    b"\x1f\x8b\x08": ("a gzip file", ".gz"),
    b"BZh": ("a bzip2 file", ".bz2"),
    b"\xfd7zXZ\x00": ("an xz file", ""),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", ""),
}
_ZIP = b"PK\x03\x04"
_TAR, _TAR_AT = b"ustar", 257
_LOOKED_AT = _TAR_AT + len(_TAR)
_BZIP2_BLOCK = b"1AY&SY"


def is_archive(text: Column) -> Column:
    """Returns whether a line of a file is the first one of an archive."""
    tar = text.contains("\0") & (f.substring(text, _TAR_AT + 1, len(_TAR)) == _TAR.decode())
    return text.startswith(_ZIP.decode()) | tar


def check_unpacked(path: str, stream: Any) -> None:
    """Refuses an archive, and a compressed file without an ending that Spark recognises.

    Args:
        path: the file, for the error.
        stream: a buffered stream of the file's content, at its begin, where it is left.

    Raises:
        TableError: if it is.
    """
    stream.mark(_LOOKED_AT)
    first = bytes(stream.readNBytes(_LOOKED_AT))
    stream.reset()
    for kind, found in (
        ("zip", first.startswith(_ZIP)),
        ("tar", first[_TAR_AT:] == _TAR),
    ):
        if found:
            raise TableError(f"{path} is a {kind} archive, which Spark cannot read", remedy=UNPACK)
    for sign, (kind, ending) in _KINDS.items():
        if not first.startswith(sign) or (sign == b"BZh" and first[4:10] != _BZIP2_BLOCK):
            continue
        renamed = f"Rename it, so that its name ends in {ending}; or unpack it"
        raise TableError(
            f"{path} is {kind}, and its name does not say so",
            remedy=renamed if ending else "Unpack it",
        )

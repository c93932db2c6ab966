"""Recognises compressed files whose names do not say so: Spark would read them as text."""

from __future__ import annotations

from typing import Any

from loader.errors import TableError

_KINDS = {
    b"\x1f\x8b\x08": ("a gzip file", ".gz"),
    b"BZh": ("a bzip2 file", ".bz2"),
    b"PK\x03\x04": ("a zip archive", ""),
    b"\xfd7zXZ\x00": ("an xz file", ""),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", ""),
}
_LOOKED_AT = 10
_BZIP2_BLOCK = b"1AY&SY"


def check_unpacked(path: str, stream: Any) -> None:
    """Refuses a file that is compressed, though its name has no ending that tells Spark so.

    Args:
        path: the file, for the error.
        stream: a buffered stream of the file, at its begin, where it is left.

    Raises:
        TableError: if it is.
    """
    stream.mark(_LOOKED_AT)
    first = bytes(stream.readNBytes(_LOOKED_AT))
    stream.reset()
    for sign, (kind, ending) in _KINDS.items():
        if not first.startswith(sign) or (sign == b"BZh" and not first.endswith(_BZIP2_BLOCK)):
            continue
        renamed = f"Rename it, so that its name ends in {ending}; or unpack it"
        raise TableError(
            f"{path} is {kind}, and its name does not say so",
            remedy=renamed if ending else "Unpack it",
        )

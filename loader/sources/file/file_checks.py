"""Rejects files that must not be read, and files that Java or Spark would misread.

Otherwise, a user with write access to a folder could create a link in it, and thereby load any file
that the loader can read. A named pipe would block the run. Java silently omits files whose names it
cannot decode. Spark reads archives as text, and likewise compressed files that lack the usual
extension.

The checks are not complete: an entry can be replaced between the check and the read, and a hard
link looks like a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField

from loader.errors import TableError
from loader.sources.file.options import ReaderOptions
from loader.sources.interface import SourceTable
from loader.sources.masked_source import find_masks
from loader.spark.error_translation import UNPACK

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_HIDE = "or give it a name that begins with _, which hides it"


def check_entries(
    spark: SparkSession, native: ReaderOptions, follow_links: bool, where: str
) -> None:
    """Raises a TableError for links to outside the folder, special files and undecodable names.

    Does nothing for object stores, which have no such entries.
    """
    session: Any = spark
    jvm, hadoop = session._jvm, session.sparkContext._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path
    home = path(native.home)
    system = home.getFileSystem(hadoop)
    if system.getUri().getScheme() != "file":
        return
    encoding = str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))
    unknown = _undecodable(native.path, encoding)
    if unknown is not None:
        raise TableError(unknown.what, where=where, remedy=unknown.remedy)
    real = os.path.realpath(str(home.toUri().getPath()))
    chosen = native.option("pathglobfilter")
    accepts = jvm.org.apache.hadoop.fs.GlobFilter(chosen).accept if chosen else None
    for status in system.globStatus(path(native.pattern)) or ():
        root = str(status.getPath().toUri().getPath())
        for entry, refused in _refusals(root, real, encoding, follow_links):
            # Spark applies pathGlobFilter only to files, and reads all folders.
            name = show_name(os.path.basename(entry))
            if accepts is None or os.path.isdir(entry) or accepts(path("/", name)):
                raise TableError(refused.what, where=where, remedy=refused.remedy)


def show_name(path: str) -> str:
    r"""Formats a path for messages. Escapes bytes that are not UTF-8, for example as `\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _undecodable(path: str, encoding: str) -> TableError | None:
    """Returns an error if Java cannot decode a path."""
    try:
        os.fsencode(path).decode(encoding)
    except UnicodeDecodeError:
        return TableError(
            f"the name of {show_name(path)} is not {encoding}, so Java cannot read the file",
            remedy=f"Rename it, and write new names in {encoding}; {_HIDE}",
        )
    return None


def _refusals(
    root: str, home: str, encoding: str, follow_links: bool
) -> Iterator[tuple[str, TableError]]:
    """Yields the forbidden entries at or below `root`, each with its error."""
    # A parent folder of the root may be a link.
    error = _check_link(root, home, follow_links) or _check_kind(root)
    if error is not None:
        yield root, error
        return
    folders = [root] if os.path.isdir(root) else []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                error = _undecodable(entry.path, encoding)
                if error is None and entry.is_symlink():
                    error = _check_link(entry.path, home, follow_links)
                if error is None and not entry.is_file() and not entry.is_dir():
                    error = _check_kind(entry.path)
                if error is not None:
                    yield entry.path, error
                elif entry.is_dir():
                    folders.append(entry.path)


def _is_hidden(name: str) -> bool:
    """Returns whether Spark ignores a file (`HadoopFSUtils.shouldFilterOutPathName`)."""
    if name.startswith(("_metadata", "_common_metadata")):
        return False
    marked = name.startswith("_") and "=" not in name
    return marked or name.startswith(".") or name.endswith("._COPYING_")


def _check_link(entry: str, home: str, follow_links: bool) -> TableError | None:
    real = os.path.realpath(entry)
    if os.path.islink(entry) and Path(os.path.realpath(os.path.dirname(entry))).is_relative_to(
        real
    ):
        return TableError(
            f"{entry} is a link to a folder that contains it: its files would be read repeatedly",
            remedy=f"Remove it, {_HIDE}",
        )
    if follow_links or Path(real).is_relative_to(home):
        return None
    return TableError(
        f"{entry} is a link to a path outside the folder {home}",
        remedy="Remove it, or move its target into the folder; if you trust all users with write "
        "access to the folder, set follow_links: true in the source's spec",
    )


def _check_kind(entry: str) -> TableError | None:
    """Returns an error if an entry or its link target is neither a file nor a folder."""
    try:
        kind = _KINDS.get(stat.S_IFMT(os.stat(entry).st_mode))
    except FileNotFoundError:
        # If the entry is not a link, another process has just deleted it.
        kind = "a link without a target" if os.path.islink(entry) else None
    if kind is None:
        return None
    return TableError(f"{entry} is {kind}, not a file", remedy=f"Remove it, {_HIDE}")


_PACKED = {
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
    """Returns whether a line looks like the first line of an archive."""
    tar = text.contains("\0") & (f.substring(text, _TAR_AT + 1, len(_TAR)) == _TAR.decode())
    return text.startswith(_ZIP.decode()) | tar


def check_unpacked(path: str, stream: Any) -> None:
    """Raises a TableError for archives, and for compressed files without the usual extension.

    Args:
        stream: a buffered stream at the start of the file. The check leaves its position unchanged.
    """
    stream.mark(_LOOKED_AT)
    first = bytes(stream.readNBytes(_LOOKED_AT))
    stream.reset()
    for kind, is_match in (
        ("zip", first.startswith(_ZIP)),
        ("tar", first[_TAR_AT:] == _TAR),
    ):
        if is_match:
            raise TableError(f"{path} is a {kind} archive, which Spark cannot read", remedy=UNPACK)
    for sign, (kind, ending) in _PACKED.items():
        if not first.startswith(sign) or (sign == b"BZh" and first[4:10] != _BZIP2_BLOCK):
            continue
        renamed = f"Rename it so that its name ends in {ending}, or unpack it"
        raise TableError(
            f"{path} is {kind} without the usual extension",
            remedy=renamed if ending else "Unpack it",
        )


def check_masks(
    table: SourceTable, of_listing: Sequence[str], of_folders: Sequence[StructField], where: str
) -> None:
    """Checks that the masks take effect, and that no other column reveals the masked values.

    Args:
        of_listing: the columns that the loader adds to the table.
        of_folders: the columns whose values come from folders named `column=value`.

    Raises:
        TableError: if the spec masks a column in `of_listing` or `of_folders`, or if an unmasked
            column contains whole records.
    """
    native: ReaderOptions = table.ref.native
    masked = find_masks(table, dict(native.masks), f"{where}, mask")
    for name in of_listing:
        if name in masked:
            raise TableError(
                f"the column {name!r} cannot be masked: the loader needs its values",
                where=f"{where}, mask",
                remedy="Use column names, or a wildcard that does not match this column",
            )
    for column in of_folders:
        if column.name in masked:
            raise TableError(
                f"the column {column.name!r} cannot be masked: its values are in folder names, "
                "and the loader stores file paths",
                where=f"{where}, mask",
                remedy="Rename the folders, or move the files into other folders",
            )
    records = native.option("columnnameofcorruptrecord") or "_corrupt_record"
    if records in table.schema.names and masked.get(records) not in ("null", "redact"):
        raise TableError(
            f"the column {records!r} contains whole records, and so the values of masked columns",
            where=f"{where}, mask",
            remedy="Also mask it (redact), or exclude it with the table's `columns`",
        )

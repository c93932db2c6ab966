"""Detects copied or moved warehouses: Iceberg's metadata has absolute paths."""

from __future__ import annotations

import os
import re
from typing import Any

from loader.errors import TableError


def confirm_place(handle: Any, name: str) -> None:
    """Makes sure that a table of a Hadoop catalog was not copied or moved with its folder.

    A copy still names the files of the original: a run would write there, and `compact` would treat
    files that the original has added since as orphans.

    Args:
        handle: Iceberg's own object for the table.
        name: the table's name, for the message.

    Raises:
        TableError: if the table's folder is another one than its metadata says.
    """
    here = str(handle.operations().metadataFileLocation("x")).removesuffix("/metadata/x")
    refuse_moved(here, str(handle.location()).rstrip("/"), name)


def refuse_moved(here: str, said: str, name: str) -> None:
    """Refuses a table whose folder is another one than its metadata says.

    Args:
        here: the table's folder.
        said: its location according to its metadata.
        name: the table's name, for the message.

    Raises:
        TableError: if they are different.
    """
    if here == said or _same(_path(here), _path(said)):
        return
    raise TableError(
        f"its warehouse was copied or moved: the table is in {here}, "
        f"but its metadata says {said}, where its files are written",
        where=f"table {name}",
        remedy="Move it back, or leave a link at its old place. A copy cannot be used: point "
        "STRANDLINE_WAREHOUSE, or the catalog's warehouse, to a new folder, and run",
    )


def _path(location: str) -> str:
    """Returns a location without its scheme; that may be spelled in several ways."""
    return re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:(?=/)", "", location).rstrip("/").replace("///", "/")


def _same(here: str, said: str) -> bool:
    """Returns whether two paths are one: as text, or one folder of this machine, by a link."""
    if here == said:
        return True
    try:
        return os.path.samefile(here, said)
    except OSError:
        return False

"""Refuses copied or moved warehouses: Iceberg's metadata contains absolute paths."""

from __future__ import annotations

import os
import re
from typing import Any

from loader.errors import TableError


def confirm_place(handle: Any, name: str) -> None:
    """Checks that a table of a Hadoop catalog is in the folder that its metadata contains.

    The metadata of a copied table still refers to the original folder: a run would write there, and
    `compact` would delete newer files of the original as orphans.

    Args:
        handle: Iceberg's own object for the table.
        name: the table's name, for the message.

    Raises:
        TableError: if the folders differ.
    """
    here = str(handle.operations().metadataFileLocation("x")).removesuffix("/metadata/x")
    refuse_moved(here, str(handle.location()).rstrip("/"), name)


def refuse_moved(here: str, recorded: str, name: str) -> None:
    """Refuses a table whose folder differs from the location in its metadata.

    Args:
        here: the table's folder.
        recorded: the location in the metadata.
        name: the table's name, for the message.

    Raises:
        TableError: if they differ.
    """
    if here == recorded or _is_same_folder(_path(here), _path(recorded)):
        return
    raise TableError(
        f"its warehouse was copied or moved: the table is in {here}, "
        f"but its metadata says {recorded}, where its files are written",
        where=f"table {name}",
        remedy="Move it back, or leave a link at its old place. A copy cannot be used: point "
        "STRANDLINE_WAREHOUSE, or the catalog's warehouse, to a new folder, and run",
    )


def _path(location: str) -> str:
    """Returns a location without its scheme, which can have several spellings."""
    return re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:(?=/)", "", location).rstrip("/").replace("///", "/")


def _is_same_folder(here: str, recorded: str) -> bool:
    """Whether two paths are equal or lead to the same folder of this machine."""
    if here == recorded:
        return True
    try:
        return os.path.samefile(here, recorded)
    except OSError:
        return False

"""Rejects copied or moved warehouses, because Iceberg's metadata contains absolute paths."""

from __future__ import annotations

import os
import re
from typing import Any

from loader.errors import TableError


def confirm_place(handle: Any, name: str) -> None:
    """Raises a TableError if a Hadoop table's folder differs from the location in its metadata.

    The metadata of a copied table refers to the original folder. A run would write to the original
    folder, and `compact` would treat newer files there as orphans and delete them.
    """
    here = str(handle.operations().metadataFileLocation("x")).removesuffix("/metadata/x")
    refuse_moved(here, str(handle.location()).rstrip("/"), name)


def refuse_moved(here: str, recorded: str, name: str) -> None:
    """Raises a TableError if a table's folder differs from the location in its metadata."""
    if here == recorded or _is_same_folder(_path(here), _path(recorded)):
        return
    raise TableError(
        f"its warehouse was copied or moved: the table is in {here}, "
        f"but its metadata says {recorded}, where its files are written",
        where=f"table {name}",
        remedy="Move it back, or leave a link at its old location. A copy cannot be used: point "
        "STRANDLINE_WAREHOUSE, or the catalog's warehouse, to a new folder, and run again",
    )


def _path(location: str) -> str:
    """Removes the scheme, which may be missing from a location or be spelled in several ways."""
    return re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:(?=/)", "", location).rstrip("/").replace("///", "/")


def _is_same_folder(here: str, recorded: str) -> bool:
    if here == recorded:
        return True
    try:
        return os.path.samefile(here, recorded)
    except OSError:
        return False

"""Files that are replaced as a whole, and are on disk before anybody relies on them."""

from __future__ import annotations

import os
from pathlib import Path


def put(new: Path, path: Path) -> None:
    """Gives a complete file the name `path`; a crash leaves the old file or the new one.

    When this returns, contents and name are on disk.
    """
    _settled(new)
    os.replace(new, path)
    _settled(path.parent)


def _settled(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

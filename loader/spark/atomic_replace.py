"""Replaces files atomically and durably."""

from __future__ import annotations

import os
from pathlib import Path


def replace_atomically(new: Path, path: Path) -> None:
    """Gives a complete file the name `path`; a crash leaves the old file or the new one.

    When this returns, contents and name are on disk.
    """
    _sync_folder(new)
    os.replace(new, path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

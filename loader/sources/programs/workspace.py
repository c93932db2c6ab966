"""Makes a private folder for one run of a program: its configuration, with secrets, and records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loader.sources.programs.digits import encode
from loader.spark.temporary_files import private_folder

KIND = "connector"


@contextmanager
def workspace(parent: Path | None = None) -> Iterator[Path]:
    """Yields an empty folder that only this user can read, and removes it.

    Removes the folders of loaders that were killed on this machine, too: their configurations hold
    secrets.

    Args:
        parent: the folder that holds it; the system's for temporary files by default.
    """
    with private_folder(KIND, parent) as folder:
        yield folder


def write_json(folder: Path, name: str, content: Any) -> Path:
    """Writes a value as JSON into a file that only this user can read; returns its path."""
    path = folder / name
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(encode(content))
    return path

"""A folder for one run of a program: its configuration, which holds secrets, and the records."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PREFIX = "strandline-"


@contextmanager
def workspace(parent: Path | None = None) -> Iterator[Path]:
    """Yields an empty folder that only this user can read, and removes it.

    Removes the folders of loaders that were killed on this machine, too: their configurations hold
    secrets. Other machines may share the folder above.

    Args:
        parent: the folder that holds it; the system's for temporary files by default.
    """
    above = parent or Path(tempfile.gettempdir())
    above.mkdir(parents=True, exist_ok=True)
    _sweep(above)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{host()}-{os.getpid()}-", dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def written(folder: Path, name: str, content: Any) -> Path:
    """Writes a value as JSON into a file that only this user can read; returns its path."""
    path = folder / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file)
    return path


def host() -> str:
    """Returns the machine's name, as folders have it: process ids are its own."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:60]


def _sweep(above: Path) -> None:
    prefix = f"{_PREFIX}{host()}-"
    for left in above.glob(f"{prefix}[0-9]*-*"):
        pid = left.name.removeprefix(prefix).split("-")[0]
        with suppress(FileNotFoundError):  # another loader has just removed its own
            if pid.isdigit() and left.stat().st_uid == os.getuid() and not _alive(int(pid)):
                shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

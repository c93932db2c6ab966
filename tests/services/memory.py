"""Creates the folder of the suite's servers and lakes: in memory, if there is room.

They create and delete small files all the time. For each new one, ext4 scans the files that were
deleted in the last seconds: creating a database took up to 200 ms of CPU instead of 15. The suite
kills processes but not machines, so written data survives in memory, too.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

NAME = "STRANDLINE_TEST_FOLDER"
"""This environment variable sets another folder, which must exist."""

_MEMORY = Path("/dev/shm")
_ROOM = 4 * 2**30


def folder() -> Path:
    """Returns the folder of a run of the suite; the process that creates it deletes it at exit."""
    if NAME not in os.environ:
        roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM
        home = _MEMORY if roomy and os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        for left in home.glob("strandline-suite-*-*"):
            if not Path(f"/proc/{left.name.split('-')[2]}").exists():
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f"strandline-suite-{os.getpid()}-", dir=home))
        made.chmod(0o755)  # a server may run as another user
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        os.environ[NAME] = str(made)
    return Path(os.environ[NAME])

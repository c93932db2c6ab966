"""Locates and opens the tables' lock files on this machine.

If the warehouse is a local folder, the lock files are next to the tables. Every user who has write
access to the tables can then lock them. If the catalog is shared, the lock files are in a folder
that only this user may write to. In a public folder such as /tmp, other users could block every
lock or create a malicious lock file.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from loader.errors import TableError
from loader.spark.temporary_files import find_own_folder

FOLDER = "STRANDLINE_LOCKS"
"""The environment variable that sets the lock folder for shared catalogs."""


def lock_file(path: Path, timeout: float) -> FileLock:
    """Returns a file lock. Only users who may write to the folder can open the lock file.

    Every user who can open the file can also lock it.
    """
    folder = stat.S_IMODE(path.parent.stat().st_mode)
    mode = 0o600 | (0o060 if folder & 0o020 else 0) | (0o006 if folder & 0o002 else 0)
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            why = "it is a link, a folder, a pipe or a device, not a file"
            raise planted_file_error(path, why)
        if stat.S_IMODE(status.st_mode) != mode:
            with suppress(OSError):
                path.chmod(mode)  # an older loader or the umask set a different mode
    return FileLock(path, timeout=timeout, mode=mode, thread_local=False)


def find_local_warehouse(catalog_type: str | None, warehouse: str) -> Path | None:
    """Returns the folder of a local Hadoop warehouse, or None if the warehouse is not local.

    As in Hadoop, everything after the scheme `file` is the path, including `#`, `?` and `%`.
    """
    url = re.fullmatch(r"file:(?://[^/]*)?(/.*)", warehouse, re.DOTALL)
    if catalog_type != "hadoop" or not warehouse:
        return None
    if url is not None:
        return Path(url[1])
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", warehouse) else Path(warehouse)


def find_user_folder(catalog: str, warehouse: str) -> Path:
    """Returns the lock folder for a shared catalog. All processes of this user share the folder.

    Raises a SpecError if no folder can be created, or if other users own the existing folder or may
    write to it.
    """
    digest = hashlib.sha256(f"{catalog}|{warehouse}".encode()).hexdigest()[:12]
    remedy = f"set {FOLDER} to a folder of your own"
    return find_own_folder("locks", "locks", remedy, os.environ.get(FOLDER)) / digest


def planted_file_error(path: Path, why: str) -> TableError:
    """Returns the error for a lock or record file that the loader did not create."""
    return TableError(
        f"this is not a lock record: {why}",
        where=str(path),
        remedy="Another user or program created it. Remove it, check who may write to the "
        "folder, and run again",
    )

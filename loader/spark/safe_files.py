"""Reads and creates files in shared folders, and replaces files atomically.

Refuses links, pipes and devices, which other users could create to redirect reads and writes.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, longest: int) -> bytes:
    """Returns the contents of a regular file. Does not follow links or block on pipes.

    Args:
        longest: the maximum size in bytes.

    Raises:
        FileNotFoundError: if the file does not exist.
        OSError: if the path is not a regular file, or if the file is too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _irregular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"it has more than {longest:,} bytes", str(path))
    return content


def create_regular(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Creates a new file. Does not follow links.

    Raises:
        FileExistsError: if the path exists.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.write(content)


def _irregular(path: Path) -> OSError:
    return OSError(
        errno.EINVAL, "it is a link, a folder, a pipe or a device, not a file", str(path)
    )


def replace_atomically(new: Path, path: Path) -> None:
    """Renames a file to `path`. After a crash, `path` is either the old or the new file.

    When the function returns, the file's contents and name are on disk.
    """
    _sync_to_disk(new)
    os.replace(new, path)
    _sync_to_disk(path.parent)


def _sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

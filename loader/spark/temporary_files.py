"""Creates private temporary folders, and removes folders that killed processes left behind.

A folder's name identifies its process: `strandline-<kind>-<machine>-<process>-…`. The machine is
part of the name, because several containers may share the parent folder and use the same process
ids.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loader.errors import SpecError

_open: list[Path] = []
"""This process's folders that still exist."""


@contextmanager
def private_folder(kind: str, above: Path | None = None) -> Iterator[Path]:
    """Yields an empty folder that only this user can read, and removes it after the block.

    Args:
        above: the parent folder, which is created if it is missing; by default the system's folder
            for temporary files.
    """
    folder = create_folder(kind, above)
    _open.append(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open.remove(folder)


def remove_all() -> None:
    """Removes all private folders of this process, before the process is killed."""
    for folder in list(_open):
        shutil.rmtree(folder, ignore_errors=True)


def create_folder(kind: str, above: Path | None = None, age: float = 0.0) -> Path:
    """Creates a private folder, which the caller must remove.

    Also removes folders that killed processes left behind.

    Args:
        age: how many seconds a killed process's folder must have been unchanged before it is
            removed, because a child of the process may still be using it.
    """
    above = above or Path(tempfile.gettempdir())
    above.mkdir(parents=True, exist_ok=True)
    _sweep(kind, above, age)
    return Path(
        tempfile.mkdtemp(prefix=f"{name_prefix(kind)}{os.getpid()}-", dir=above)
    )  # mode 0700


def name_prefix(kind: str) -> str:
    """Returns the start of a folder's name, before the process id."""
    machine = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:60]
    return f"strandline-{kind}-{machine}-"


def home_folder() -> Path | None:
    """Returns the user's home from the password database, because HOME may be wrong under sudo."""
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container's user may have no entry
        return None


def ensure_own_folder(place: Path, where: str, remedy: str) -> None:
    """Creates a private folder, or checks that an existing folder is private.

    Args:
        remedy: an alternative to removing the folder, for error messages.

    Raises:
        SpecError: if the path is a link, or if other users own it or may write to it.
        OSError: if the folder cannot be created.
    """
    with suppress(FileExistsError):
        os.mkdir(place, 0o700)
    status = os.lstat(place)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        what = "a link" if stat.S_ISLNK(status.st_mode) else "not a folder of this user"
        raise SpecError(f"{place} is {what}", where=where, remedy=f"Remove it, or {remedy}")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise SpecError(
            f"others may write to {place}", where=where, remedy=f"Remove it, or {remedy}"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(place, 0o700)


def find_own_folder(purpose: str, where: str, remedy: str, configured: str | None = None) -> Path:
    """Returns a private folder, in the user's home or else in the system's temporary folder.

    Args:
        purpose: the folder's name in the home.
        configured: a folder that is used instead, if it is set.

    Raises:
        SpecError: if no folder can be created, or if other users own the existing folder or may
            write to it.
    """
    home = home_folder()
    folders = [home / ".cache" / "strandline" / purpose] if home is not None else []
    folders.append(Path(tempfile.gettempdir()) / f"strandline-{os.getuid()}")
    problem: OSError | None = None
    for folder in [Path(configured)] if configured else folders:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            ensure_own_folder(folder, where, remedy)
            return folder
        except OSError as error:
            problem = error
    raise SpecError(
        f"cannot create a folder for {purpose}: {problem}",
        where=where,
        remedy=remedy[0].upper() + remedy[1:],
    )


def _sweep(kind: str, above: Path, age: float) -> None:
    prefix = name_prefix(kind)
    for leftover in above.glob(f"{prefix}*"):
        pid = leftover.name.removeprefix(prefix).split("-")[0]
        with suppress(OSError):  # another process may have removed the folder
            status = leftover.lstat()
            own = status.st_uid == os.getuid()
            idle = time.time() - status.st_mtime >= age
            if own and idle and pid.isdigit() and not _alive(int(pid)):
                shutil.rmtree(leftover, ignore_errors=True)  # removes neither links nor files


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


LOCAL_DIR = "spark.local.dir"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_TEMPORARY = "-Djava.io.tmpdir="
_MIN_AGE_SECONDS = 3600.0  # the JVM may outlive a killed loader


def create_local_dir(settings: Mapping[str, str], defaults: str) -> dict[str, str]:
    """Creates a private folder for Spark's sorts and shuffles. Returns the settings for it.

    All users of the machine can read Spark's default folder, and killed processes leave their files
    there. Java also uses the new folder for temporary files, unless the user configures a different
    folder for them. On a cluster, or if the user configures a folder, no folder is created.

    Args:
        defaults: the text of `spark-defaults.conf`.
    """
    chosen = LOCAL_DIR in settings or "SPARK_LOCAL_DIRS" in os.environ
    local = settings.get("spark.master", "").startswith("local")
    if chosen or not local or _is_set(defaults, LOCAL_DIR):
        return {}
    folder = str(create_folder("scratch", age=_MIN_AGE_SECONDS))
    options = settings.get(_JAVA_OPTIONS, "")
    if _TEMPORARY in options or (not options and _is_set(defaults, _JAVA_OPTIONS)):
        return {LOCAL_DIR: folder}
    return {LOCAL_DIR: folder, _JAVA_OPTIONS: f'{options} "{_TEMPORARY}{folder}"'.strip()}


def _is_set(defaults: str, setting: str) -> bool:
    return re.search(rf"^\s*{re.escape(setting)}\b", defaults, re.MULTILINE) is not None


def delete_at_exit(jvm: Any, folder: str) -> None:
    manager = jvm.org.apache.spark.util.ShutdownHookManager
    manager.registerShutdownDeleteDir(jvm.java.io.File(folder))

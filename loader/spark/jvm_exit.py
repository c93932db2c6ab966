"""Detects a JVM exit and replaces the resulting Py4J errors."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark import SparkContext

from loader.errors import JavaEndedError, LoaderError

_SECONDS = 3.0  # a JVM's connections break a moment before its process exits
_STOPPED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def explain_java_end(error: BaseException, where: str) -> JavaEndedError | None:
    """Returns an error that explains how Spark's JVM exited; None if the JVM is running.

    Args:
        error: an error that may be a consequence of the exit.
    """
    return explain_process_end(error, where, getattr(SparkContext._gateway, "proc", None))


def has_java_ended() -> bool:
    """Returns whether the JVM has exited; false if another process started it."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def is_restart_wanted() -> bool:
    """Returns whether the JVM has exited for a reason other than a signal to stop."""
    process = getattr(SparkContext._gateway, "proc", None)
    code = None if process is None else process.poll()
    return code is not None and _signal(code) not in _STOPPED


def explain_process_end(
    error: BaseException, where: str, process: subprocess.Popen[bytes] | None
) -> JavaEndedError | None:
    """Like :func:`explain_java_end`, but for any process; None if `process` is None."""
    lost = any(isinstance(each, (Py4JError, ConnectionError)) for each in _list_causes(error))
    if process is None or (isinstance(error, (LoaderError, OSError)) and not lost):
        return None
    code = process.poll()
    if code is None and _is_connection_broken(error):
        try:
            code = process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            return None
    return None if code is None else _error(code, where)


def _is_connection_broken(error: BaseException) -> bool:
    """Returns whether the connection to the JVM is broken; false for errors in the JVM itself."""
    return any(
        isinstance(each, ConnectionError)
        or (type(each).__name__ == "Py4JNetworkError")
        or (isinstance(each, Py4JError) and getattr(each, "java_exception", None) is None)
        for each in _list_causes(error)
    )


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(20):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _error(code: int, where: str) -> JavaEndedError:
    number = _signal(code)
    name = "" if number is None else number.name
    again = "Run again: the next run completes or discards the unfinished batches"
    if number in _STOPPED:
        return JavaEndedError(
            f"Spark's Java process was stopped by {name}", where=where, remedy=again
        )
    how = f"was killed by {name}" if name else f"exited with code {code}"
    return JavaEndedError(
        f"Spark's Java process {how}, perhaps for lack of memory",
        where=where,
        remedy=f"{again}. If this happens again, give the machine or container more memory, or "
        "sync fewer tables at once (--concurrency). Java may have written details to "
        "hs_err_pid*.log",
    )


def _signal(code: int) -> signal.Signals | None:
    """Returns the signal that ended a process with this exit code; None if no signal did."""
    try:
        return signal.Signals(-code if code < 0 else code - 128)  # a shell adds 128
    except ValueError:
        return None

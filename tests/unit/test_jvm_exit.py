"""If Spark's Java process has ended, every failure that follows is reported as that error."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from loader.errors import JavaEndedError, LockedError, StateError
from loader.spark.error_translation import translate_error
from loader.spark.jvm_exit import explain_process_end


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until it is killed."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def _state_error(cause: Exception) -> StateError:
    error = StateError("it failed", where="state table raw._cq_state")
    error.__cause__ = cause
    return error


def test_every_failure_after_the_exit_reports_the_exit(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # without wait(): a broken connection may be detected first
    texts = {
        str(explain_process_end(error, "table shop.orders", process))
        for error in (
            ConnectionRefusedError(111, "Connection refused"),
            Py4JNetworkError("Answer from Java side is empty"),
            Py4JError("An error occurred while calling o70.sql"),
            AttributeError("'NoneType' object has no attribute 'x'"),
            _state_error(ConnectionResetError(104, "Connection reset by peer")),
        )
    }
    [text] = texts
    assert text.startswith(
        "table shop.orders: Spark's Java process was killed by SIGKILL, perhaps for lack of "
        "memory. Run again: the next run completes or discards the unfinished batches."
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT])
def test_the_signal_is_named(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    process.wait()
    text = str(explain_process_end(ConnectionRefusedError(), "", process))
    assert number.name in text
    assert ("memory" in text) == (number != signal.SIGTERM)


def test_other_errors_are_unchanged(process: subprocess.Popen[bytes]) -> None:
    assert explain_process_end(ValueError("x"), "", process) is None  # still running
    process.kill()
    process.wait()
    assert explain_process_end(OSError(28, "No space left on device"), "", process) is None
    assert explain_process_end(LockedError("another run holds the lock"), "", process) is None
    assert (
        explain_process_end(ConnectionRefusedError(), "", None) is None
    )  # another process started Java


def test_each_table_gets_the_error_under_its_own_name() -> None:
    shared = JavaEndedError("Spark's Java process exited", where="state table raw._cq_state")
    found = translate_error(shared, "table shop.orders")
    assert isinstance(found, JavaEndedError)
    assert found.where == "table shop.orders"
    assert translate_error(shared, "").where == "state table raw._cq_state"

"""SIGINT, SIGTERM and SIGHUP stop a command in order, or end it, without leaving files behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_PREPARED = """
import os, signal, threading, time
from loader.cli.signals import stop_on_signal
stopped = threading.Event()
"""
_ROUNDS = """
def signals(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(0.002)

lock = threading.Lock()

def stop():
    with lock:  # an Event has such a lock, held for a shorter time
        time.sleep(0.01)
        stopped.set()

for _ in range(10):
    stopped.clear()
    sender = threading.Thread(target=signals, args=(signal.SIGTERM, signal.SIGINT, signal.SIGTERM))
    with stop_on_signal(stop, list):
        sender.start()
        while not stopped.is_set():
            with lock:
                time.sleep(0.0001)
        sender.join()
print("ended in order")
"""
_WAITING = """
from loader.spark.interruption import interruptible
ended = threading.Event()
with stop_on_signal(list, list):
    with interruptible(lambda: print("not me", flush=True)):
        pass
    with interruptible(ended.set):
        os.kill(os.getpid(), signal.SIGTERM)
        print(ended.wait(5), flush=True)
"""
_WHILE_IT_IMPORTS = """
import os, signal, sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "loader.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
from loader.__main__ import start
start()
"""
_TWICE = """
from loader.spark.temporary_files import private_folder
with stop_on_signal(stopped.set, list), private_folder("secrets") as folder:
    print(folder, flush=True)
    try:
        while True:
            time.sleep(0.01)
    finally:
        time.sleep(60)  # closes a connection whose network is silent
"""
_UNWOUND = """
import sys
from loader.cli.signals import unwind_on_signal
from loader.spark.interruption import interruptible
from loader.spark.temporary_files import private_folder
number = int(sys.argv[1])
with unwind_on_signal():
    with stop_on_signal(stopped.set, list):
        os.kill(os.getpid(), number)
        print(stopped.wait(5), flush=True)
        with interruptible(lambda: print("begins nothing", flush=True)):
            pass
    with private_folder("secrets") as folder, interruptible(lambda: print("ended", flush=True)):
        print(folder, flush=True)
        os.kill(os.getpid(), number)
        time.sleep(60)
"""


def test_simultaneous_signals_end_a_command_once_and_in_order() -> None:
    """`timeout` or a terminal may send several at once. Their handlers must not deadlock."""
    done = subprocess.run(
        [sys.executable, "-c", _PREPARED + _ROUNDS], capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (0, "ended in order\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_ends_a_command_at_once(number: signal.Signals) -> None:
    """It counts as a second signal only if it comes a moment after the first."""
    script = (
        _PREPARED.replace(
            "import stop_on_signal", "import stop_on_signal\nimport loader.cli.signals as own"
        )
        + "own.AT_ONCE = 0.1\n"
        + _TWICE
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            folder = Path(child.stdout.readline().strip())
            assert folder.is_dir()
            os.kill(child.pid, number)
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)
            os.kill(child.pid, number)
            child.wait(10)
        finally:
            child.kill()
    assert child.returncode == -number
    assert not folder.exists(), "what holds secrets stays behind"


def test_one_signal_ends_a_call_that_never_returns() -> None:
    """For example, a call to an object store that does not answer."""
    script = _PREPARED + "import loader.cli.signals as own\nown.GRACE = 1.5\n" + _TWICE
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            folder = Path(child.stdout.readline().strip())
            os.kill(child.pid, signal.SIGTERM)
            child.wait(10)
        finally:
            child.kill()
    assert child.returncode == -signal.SIGTERM
    assert not folder.exists(), "what holds secrets stays behind"


def test_a_signal_ends_interruptible_work() -> None:
    """For example, a program that reads a database's log. Finished work is not interrupted."""
    done = subprocess.run(
        [sys.executable, "-c", _PREPARED + _WAITING], capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_does_not_stop_by_itself_is_unwound(number: signal.Signals) -> None:
    """It closes what it has opened, and then ends with the signal's default action."""
    done = subprocess.run(
        [sys.executable, "-c", _PREPARED + _UNWOUND, str(int(number))],
        capture_output=True,
        text=True,
        timeout=20,
    )
    stopped, late, folder, ended = done.stdout.splitlines()
    assert (stopped, late, ended) == ("True", "begins nothing", "ended")
    assert done.returncode == -number
    assert not Path(folder).exists()


def test_a_signal_during_imports_prints_no_stack_trace() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WHILE_IT_IMPORTS], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")

"""Crash drills: which values `LOADER_CRASH_AT` accepts, and when the loader is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from loader.errors import SpecError, TableError
from loader.sync import fault_injection as module
from loader.sync.fault_injection import VARIABLE, CrashPoint, FaultInjection, load_fault_injection

NOBODY: Any = None
"""Replaces the Spark session, which is not used if the variable is invalid or not set."""


def test_the_process_is_killed_once_all_crash_points_are_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.2)
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    places = [CrashPoint("staged", "shop.a"), CrashPoint("published", "shop.b", times=2)]
    crash = FaultInjection(places, (victim.pid,))
    crash.report_step("published", "shop.a")  # a crash point of another table
    crash.report_step("published", "shop.b")  # the first of two times
    first = threading.Thread(target=_wait_at_crash_point, args=(crash, "staged", "shop.a"))
    first.start()
    first.join()
    assert victim.poll() is None
    _wait_at_crash_point(crash, "published", "shop.b")
    assert victim.wait(10) == -signal.SIGKILL


def _wait_at_crash_point(crash: FaultInjection, step: str, table: str) -> None:
    with pytest.raises(TableError, match=r"waited 0.2 seconds .* --concurrency"):
        crash.report_step(step, table)


@pytest.mark.parametrize(
    ("wanted", "reported"),
    [
        ("publish", "no step 'publish'. Did you mean `published`?"),
        ("staged:shop.a,publishd:shop.b", "no step 'publishd'. Did you mean `published`?"),
        ("published#often", "'often' is not a count"),
    ],
)
def test_an_invalid_variable_is_an_error(wanted: str, reported: str) -> None:
    with pytest.raises(SpecError) as error:
        load_fault_injection({VARIABLE: wanted}, NOBODY)
    assert reported in f"{error.value.what}. {error.value.remedy}"
    assert error.value.where == VARIABLE


def test_without_the_variable_there_is_no_crash() -> None:
    assert load_fault_injection({}, NOBODY) is None

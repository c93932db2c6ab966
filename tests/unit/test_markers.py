"""`make test-fast` runs no slow test."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sync.project import ROOT


def test_a_slow_test_is_not_fast() -> None:
    """The slow test of this file uses no fixture that starts Spark or a server."""
    file = "tests/sync/test_process_list.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-m", "fast", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr

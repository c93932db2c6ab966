"""The bridge to CloudQuery by itself: what it sends to the loader if something fails.

It runs in the environment that has CloudQuery's packages, and so do the scripts that check it. They
need neither Spark nor a network.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.connectors.installed import installed
from tests.sync.project import ROOT


def run_checks(script: str, *arguments: str) -> None:
    """Runs a script of `tests/services`, which exits with an error if one of its checks fails."""
    ended = subprocess.run(
        [installed("python", "-cloudquery"), str(ROOT / "tests" / "services" / script), *arguments],
        env={"PYTHONPATH": str(ROOT / "loader")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_messages_of_the_bridge() -> None:
    run_checks("cq_bridge.py")


@pytest.mark.parametrize("part", ["messages", "server"])
def test_hostile_programs(part: str) -> None:
    """Malformed and large Arrow data; endless streams, connections and states."""
    run_checks("cq_hostile.py", part)

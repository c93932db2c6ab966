"""The bridge to CloudQuery, by itself: what it tells the loader on a bad day; no Spark, no network.

It runs in the environment that has CloudQuery's packages, so its checks do, too.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.connectors.installed import installed
from tests.sync.project import ROOT


def run_checks(script: str, *arguments: str) -> None:
    """Runs checks of `tests/services`; each ends its program if it fails."""
    ended = subprocess.run(
        [installed("python", "-cloudquery"), str(ROOT / "tests" / "services" / script), *arguments],
        env={"PYTHONPATH": str(ROOT / "loader")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_what_the_bridge_tells_the_loader() -> None:
    run_checks("cq_bridge.py")


@pytest.mark.parametrize("part", ["messages", "server"])
def test_what_a_hostile_program_can_do(part: str) -> None:
    """Malformed and large Arrow; streams, connections and states without end."""
    run_checks("cq_hostile.py", part)

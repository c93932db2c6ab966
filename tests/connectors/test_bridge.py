"""The bridge to CloudQuery, by itself: what it tells the loader on a bad day; no Spark, no network.

It runs in the environment that has CloudQuery's packages, so its checks do, too.
"""

from __future__ import annotations

import subprocess

from tests.connectors.installed import installed
from tests.sync.project import ROOT


def test_what_the_bridge_tells_the_loader() -> None:
    ended = subprocess.run(
        [installed("python", "-cloudquery"), str(ROOT / "tests" / "services" / "cq_bridge.py")],
        env={"PYTHONPATH": str(ROOT / "loader" / "sources" / "cloudquery")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr

"""Commands that run while a loop uses all cores of the cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cluster.commands import ONE_CORE, run_loader, start_loader
from tests.cluster.project import Place
from tests.crash import shop
from tests.services import Database
from tests.sync.project import Project

pytestmark = pytest.mark.parametrize("place", ["jdbc"], indirect=True)
_FULL = "the cluster has no free cores"


@pytest.fixture
def loop(
    place: Place, lakehouse: Project, postgres_database: Database
) -> Iterator[subprocess.Popen[str]]:
    """A loop that has finished its first round and uses all cores of the cluster."""
    shop.create(postgres_database, ["orders"])
    shop.configure(lakehouse, postgres_database, ["orders"])
    loop = start_loader(place, lakehouse, "run", "--every", "1h", STRANDLINE_CORES_MAX="8")
    assert loop.stdout is not None
    deadline = time.monotonic() + 120
    while place.cluster.state()["coresused"] < place.cluster.state()["cores"]:
        assert time.monotonic() < deadline
        assert loop.poll() is None, loop.stdout.read()
        time.sleep(0.5)
    for line in loop.stdout:
        if '"event": "table"' in line or '"event": "round"' in line:
            break
    yield loop
    loop.kill()
    loop.wait()


def test_commands_while_a_loop_uses_all_cores(
    place: Place, lakehouse: Project, loop: subprocess.Popen[str]
) -> None:
    """Commands that read a few rows need no executor; others report what they wait for."""
    status = run_loader(place, lakehouse, "status")
    listed = run_loader(place, lakehouse, "state", "list")
    assert (status.code, listed.code) == (0, 0), status.text + listed.text
    assert [e["last_attempt"] for e in status.events if e["event"] == "status"] == ["synced"]
    assert _FULL not in status.text + listed.text

    waiting = start_loader(place, lakehouse, "run", "--full-refresh", **ONE_CORE)
    try:
        checked = run_loader(place, lakehouse, "check", **ONE_CORE)
        assert checked.code == 1
        [error] = checked.errors
        assert f"no executor wrote a row within 60 seconds: {_FULL}" in error
        assert [w for w in checked.warnings if w.startswith(f"{_FULL}: spark://")]
        assert [e["table"] for e in checked.events if e["event"] == "check"] == ["shop.orders"]

        assert waiting.stdout is not None
        warning = next(line for line in waiting.stdout if _FULL in line)
        assert json.loads(warning)["event"] == "warning"
        loop.send_signal(signal.SIGTERM)
        output, _ = waiting.communicate(timeout=120)
        assert waiting.returncode == 0, output
    finally:
        waiting.kill()
        waiting.wait()

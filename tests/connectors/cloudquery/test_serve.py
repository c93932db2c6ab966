"""`loader serve`: the official `cloudquery sync` writes into the lake, and nothing is lost.

CloudQuery stores a plugin's state before the rows that it covers. The loader stores it after they
are published: if it is killed in between, the state is older, and there is no gap.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.cloudquery.test_cloudquery import PLUGIN
from tests.connectors.installed import installed
from tests.crash.workers import Worker, Workers
from tests.sync.project import Project


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(address: str | tuple[str, int]) -> None:
    before = time.monotonic() + 60
    while True:
        try:
            with socket.socket(
                socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
            ) as one:
                one.connect(address)
            return
        except OSError:
            assert time.monotonic() < before, "nobody listens"
            time.sleep(0.1)


def _command_line(python: str) -> str:
    """Returns the path of the official program, which its wheel keeps in a folder of its own."""
    [found] = Path(python).parents[1].glob("lib/python*/site-packages/cloudquery/bin/cloudquery")
    return str(found)


class Sync:
    """A running plugin that uses the official SDK, and the official command line.

    Attributes:
        data: the file with the plugin's data.
        socket: the socket on which the loader listens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "shop.json"
        self.python = installed("python", "-cloudquery")
        self.socket = Path(tempfile.mkdtemp()) / "serve.sock"  # the path of a socket must be short
        port = _free_port()
        self._plugin = f"127.0.0.1:{port}"
        self.orders(3)
        self._running = subprocess.Popen(
            [self.python, PLUGIN, str(self.data), "serve", "--address", self._plugin],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _await(("127.0.0.1", port))

    def orders(self, last: int, **more: Any) -> None:
        """Sets the plugin's orders."""
        rows = [{"id": number, "note": f"n{number}"} for number in range(1, last + 1)]
        self.data.write_text(json.dumps({"orders": rows, **more}))

    def run(
        self, mode: str = "overwrite-delete-stale", local: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs `cloudquery sync`.

        Args:
            local: the loader as a program that CloudQuery starts itself.
        """
        (self.folder / "sync.yml").write_text(
            f"""
kind: source
spec:
  name: shop
  path: {self._plugin}
  registry: grpc
  tables: ["*"]
  destinations: [lake]
  backend_options: {{table_name: cq_state, connection: "@@plugins.lake.connection"}}
  spec: {{}}
---
kind: destination
spec:
  name: lake
  path: {local or f"unix://{self.socket}"}
  registry: {"local" if local else "grpc"}
  write_mode: {mode}
  spec: {{}}
"""
        )
        if local is None:
            _await(str(self.socket))
        words = ["sync", "sync.yml", "--telemetry-level", "none", "--log-console"]
        return subprocess.run(
            [_command_line(self.python), *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def close(self) -> None:
        """Ends the plugin."""
        self._running.kill()
        self._running.wait()
        shutil.rmtree(self.socket.parent)


@pytest.fixture
def sync(tmp_path: Path) -> Iterator[Sync]:
    """A running plugin, and the command line that syncs it."""
    folder = tmp_path / "cloudquery"
    folder.mkdir()
    found = Sync(folder)
    yield found
    found.close()


def _serve(project: Project, sync: Sync, worker: Worker, crash_at: str = "") -> None:
    project.write()
    arguments = ("serve", "--address", str(sync.socket), "--python", sync.python)
    worker.start(project, *arguments, crash_at=crash_at)


def _raw(project: Project) -> list[tuple[Any, ...]]:
    return project.rows(
        "select id, note, _cq_source_name, _cq_batch from raw.orders order by _cq_batch, _cq_seq"
    )


def _state(project: Project) -> list[tuple[Any, ...]]:
    return project.rows(
        "select max_by(value, version) from raw._cq_plugin_state where key = 'orders'"
    )


@pytest.mark.slow
def test_the_official_command_line_syncs_and_nothing_is_lost(
    project: Project, sync: Sync, workers: Workers
) -> None:
    for number, step in enumerate(("staged", "published", "")):
        worker = workers.take()
        _serve(project, sync, worker, f"{step}:shop.orders" if step else "")
        ended = sync.run()
        if step:
            assert ended.returncode != 0, "the sync reported success although the loader was killed"
            assert worker.died() == signal.SIGKILL
            assert _state(project) == [(None,)], "the state is ahead of its rows"
            assert len(_raw(project)) == (3 if number else 0)
    assert ended.returncode == 0, ended.stdout
    assert _raw(project) == [(n, f"n{n}", "shop", 1) for n in (1, 2, 3)]
    assert _state(project) == [("3",)]

    # the plugin resumes from its state: the last order is sent again, and not appended
    sync.orders(5)
    ended = sync.run()
    assert ended.returncode == 0, ended.stdout
    assert _raw(project)[3:] == [(4, "n4", "shop", 2), (5, "n5", "shop", 2)]
    assert _state(project) == [("5",)]

    # deletions become tombstones; without keys they cannot, so the sync fails
    sync.orders(5, deletes={"first": ["note", "n2", "n5"]})
    ended = sync.run()
    assert ended.returncode == 0, ended.stdout
    assert _raw(project)[5:] == [(2, None, "shop", 3)]
    ended = sync.run("append")
    assert ended.returncode != 0
    assert "with write_mode overwrite" in ended.stderr

    # the sync after a failed one stores its state again
    sync.orders(6)
    ended = sync.run()
    assert ended.returncode == 0, ended.stdout
    assert _raw(project)[6:] == [(6, "n6", "shop", 4)]
    assert _state(project) == [("6",)]
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended().code == 0

    # CloudQuery starts the loader itself, and ends it
    own = sync.folder / "lake"
    loader = f"{sys.executable} -m loader -c {project.folder / 'loader.yml'}"
    own.write_text(f'#!/bin/sh\nexec {loader} "$@" --python {sync.python}\n')
    own.chmod(0o755)
    sync.orders(7)
    ended = sync.run("append", local=own)
    if "signal: killed" in ended.stderr:  # CloudQuery waits five seconds, too few on a busy machine
        ended = sync.run("append", local=own)
    assert ended.returncode == 0, ended.stderr
    assert _raw(project)[7:] == [(6, "n6", "shop", 5), (7, "n7", "shop", 5)]
    assert _state(project) == [("7",)]

"""`make audit` fails unless every pinned package and jar was looked up and has no advisory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loader.spark.jars import DRIVERS
from loader.spark.spark_version import ALL_JARS

ROOT = Path(__file__).resolve().parents[2]
LOOKED_UP = {"name": "click", "version": "8.1.8", "vulns": []}
WEAK = {
    "name": "requests",
    "version": "2.30.0",
    "vulns": [{"id": "PYSEC-2023-74", "fix_versions": ["2.31.0"], "aliases": []}],
}
SKIPPED = {"name": "agate", "skip_reason": "Dependency not found on PyPI: agate (1.9.1)"}


ADVISORIES: dict[str, list[str]] = {}
"""The advisories that the fake database returns, keyed by artifact name."""


class _Osv(BaseHTTPRequestHandler):
    """Implements the API in https://google.github.io/osv.dev/post-v1-querybatch/."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/querybatch"
        results: list[dict[str, Any]] = []
        for query in asked["queries"]:
            kind, _, artifact = query["package"]["purl"].split("/")
            assert kind == "pkg:maven"
            known = ADVISORIES.get(artifact.split("@")[0])
            results.append({"vulns": [{"id": each} for each in known]} if known else {})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"results": results}).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppresses the access log."""


@pytest.fixture(autouse=True)
def advisories(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """Runs a fake advisory database, which is empty at first."""
    ADVISORIES.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Osv) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OSV_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield ADVISORIES
        server.shutdown()


def _audit(folder: Path, said: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the audit with a fake pip-audit that prints `said` and exits with `code`."""
    command = folder / "pip-audit"
    command.write_text(f"#!/bin/sh\ncat <<'SAID'\n{said}\nSAID\nexit {code}\n")
    command.chmod(0o755)
    return subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "audit"), str(command)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("found", "code", "reported"),
    [
        ([LOOKED_UP], 0, "1 pinned packages, 0 with known weaknesses"),
        ([LOOKED_UP, WEAK], 1, "requests 2.30.0: PYSEC-2023-74, fixed by 2.31.0"),
        ([LOOKED_UP, SKIPPED], 2, "1 of 2 packages were not looked up (agate: "),
    ],
)
def test_exit_code_and_message(
    tmp_path: Path, found: list[dict[str, Any]], code: int, reported: str
) -> None:
    done = _audit(tmp_path, json.dumps({"dependencies": found, "fixes": []}), int(code == 1))
    assert (done.returncode, reported in done.stdout + done.stderr) == (code, True)
    assert "Traceback" not in done.stderr


def test_no_output_of_pip_audit_is_one_error(tmp_path: Path) -> None:
    done = _audit(tmp_path, "", 1)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: nothing is known of weaknesses: ")


def test_the_audit_asks_about_jars(tmp_path: Path, advisories: dict[str, list[str]]) -> None:
    packages = json.dumps({"dependencies": [LOOKED_UP], "fixes": []})
    done = _audit(tmp_path, packages)
    assert done.stdout.splitlines()[-1] == f"{len(ALL_JARS)} pinned jars, 0 with known weaknesses"
    advisories["postgresql"] = ["GHSA-24rp-q3w6-vc56"]
    done = _audit(tmp_path, packages)
    assert done.returncode == 1
    driver = DRIVERS["postgresql"].jar.file_name
    assert f"{driver}: GHSA-24rp-q3w6-vc56" in done.stdout.splitlines()


def test_an_unreachable_database_of_advisories_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSV_URL", "http://127.0.0.1:9")
    done = _audit(tmp_path, json.dumps({"dependencies": [LOOKED_UP], "fixes": []}))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: nothing is known of weaknesses of jars: ")

"""`make audit` never passes if packages were not looked up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOOKED_UP = {"name": "click", "version": "8.1.8", "vulns": []}
WEAK = {
    "name": "requests",
    "version": "2.30.0",
    "vulns": [{"id": "PYSEC-2023-74", "fix_versions": ["2.31.0"], "aliases": []}],
}
SKIPPED = {"name": "agate", "skip_reason": "Dependency not found on PyPI: agate (1.9.1)"}


def _audit(folder: Path, said: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the audit on recorded output of pip-audit."""
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
    ("found", "code", "told"),
    [
        ([LOOKED_UP], 0, "1 pinned packages, 0 with known weaknesses"),
        ([LOOKED_UP, WEAK], 1, "requests 2.30.0: PYSEC-2023-74, mended by 2.31.0"),
        ([LOOKED_UP, SKIPPED], 2, "1 of 2 packages were not looked up (agate: "),
    ],
)
def test_what_the_audit_says(
    tmp_path: Path, found: list[dict[str, Any]], code: int, told: str
) -> None:
    done = _audit(tmp_path, json.dumps({"dependencies": found, "fixes": []}), int(code == 1))
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True)
    assert "Traceback" not in done.stderr


def test_without_an_answer_it_fails_in_one_line(tmp_path: Path) -> None:
    done = _audit(tmp_path, "", 1)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: nothing is known of weaknesses: ")

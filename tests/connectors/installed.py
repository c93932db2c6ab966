"""Real connectors from the package index, in an environment of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sync.project import ROOT

FOLDER = os.environ.get("CONNECTORS", str(ROOT / ".venv-connectors"))


def installed(program: str, environment: str = "") -> str:
    """Returns the path of a connector; fails the test if `make connectors` was not run."""
    path = Path(FOLDER + environment) / "bin" / program
    if not path.exists():
        pytest.fail(f"there is no {path}: run `make connectors`", pytrace=False)
    return str(path)

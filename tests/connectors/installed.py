"""Real connectors from the package index, in an environment of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sync.project import ROOT

FOLDER = os.environ.get("CONNECTORS", str(ROOT / ".venv-connectors"))

needs_faker = pytest.mark.skipif(
    any(Path(FOLDER).glob("lib/python3.1[3-9]")),
    reason="airbyte-source-faker has no version for the Python that the connectors run on",
)


def installed(program: str, environment: str = "") -> str:
    """Returns the path of a connector; fails the test if `make connectors` was not run.

    Skips the test if it needs CloudQuery's SDK, and the connectors run on Python 3.10.
    """
    path = Path(FOLDER + environment) / "bin" / program
    if environment == "-cloudquery" and any(path.parents[1].glob("lib/python3.10")):
        pytest.skip("CloudQuery's SDK has no version for Python 3.10")
    if not path.exists():
        pytest.fail(f"there is no {path}: run `make connectors`", pytrace=False)
    return str(path)

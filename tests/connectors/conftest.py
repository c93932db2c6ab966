"""A project, and a connector whose records and failures a test chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.program import Program, Tap
from tests.crash.conftest import worker as worker
from tests.crash.conftest import workers as workers
from tests.sync.conftest import project as project
from tests.sync.project import Project


@pytest.fixture
def program(project: Project, tmp_path: Path) -> Program:
    """A connector of the Airbyte protocol, `api` in the project's spec."""
    return Program(project, tmp_path)


@pytest.fixture
def tap(project: Project, tmp_path: Path) -> Tap:
    """A Singer tap, `api` in the project's spec."""
    return Tap(project, tmp_path)

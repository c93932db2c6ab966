"""Runs loader commands in separate processes, as a user runs them on a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from tests.cluster.project import Place
from tests.sync.project import Project, Ran

ONE_CORE = {"STRANDLINE_CORES_MAX": "1"}
"""Starts one executor instead of two, which is faster, for tests that need only one."""
_MAIN = "from loader.cli import main; main()"


def start_loader(
    place: Place,
    project: Project,
    *arguments: str,
    prefix: str = "",
    within: Sequence[str] = (),
    **variables: str,
) -> subprocess.Popen[str]:
    """Starts a command with additional environment variables.

    Args:
        prefix: Python to execute before the command.
        within: a command prefix, such as `unshare`.
    """
    config = str(project.folder / "loader.yml")
    command = [sys.executable, "-c", prefix + _MAIN, "-c", config, "--log-format", "json"]
    return subprocess.Popen(
        [*within, *command, *arguments],
        env={**place.environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_loader(
    place: Place,
    project: Project,
    *arguments: str,
    prefix: str = "",
    within: Sequence[str] = (),
    **variables: str,
) -> Ran:
    """Runs a command and waits for it to end."""
    process = start_loader(place, project, *arguments, prefix=prefix, within=within, **variables)
    output, _ = process.communicate(timeout=300)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return Ran(process.returncode, events, output)

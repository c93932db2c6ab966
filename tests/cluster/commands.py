"""The loader's commands as processes of their own, as a user runs them on a cluster."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.cluster.project import Place
from tests.sync.project import Project, Ran

_MAIN = "from loader.cli import main; main()"


def start_loader(
    place: Place,
    project: Project,
    *arguments: str,
    prefix: str = "",
    **variables: str,
) -> subprocess.Popen[str]:
    """Starts a command, with additional variables.

    Args:
        prefix: Python to execute before the command.
    """
    config = str(project.folder / "loader.yml")
    return subprocess.Popen(
        [sys.executable, "-c", prefix + _MAIN, "-c", config, "--log-format", "json", *arguments],
        env={**place.environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_loader(
    place: Place, project: Project, *arguments: str, prefix: str = "", **variables: str
) -> Ran:
    """Runs a command to its end."""
    process = start_loader(place, project, *arguments, prefix=prefix, **variables)
    output, _ = process.communicate(timeout=300)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return Ran(process.returncode, events, output)

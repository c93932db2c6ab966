"""Creates a tagged git repository of the dbt package, to install it by `git:` and `revision:`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
_CONTENTS = ("dbt_project.yml", "macros", "models", "integration_tests", "README.md", "LICENSE")
_AUTHOR = ("-c", "user.name=Strandline", "-c", "user.email=strandline@localhost")


def write_git_package(folder: Path) -> tuple[Path, str]:
    """Creates a repository from the package in the working tree.

    Returns:
        its folder, and the tag of the package's version.
    """
    made = shutil.ignore_patterns("target", "logs", "dbt_packages", "package-lock.yml")
    folder.mkdir(parents=True)
    for name in _CONTENTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=made)
        else:
            shutil.copy(ROOT / name, folder / name)
    version = yaml.safe_load((folder / "dbt_project.yml").read_text())["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version), "the package hub takes no prereleases"
    for command in (
        ("init", "--quiet", "--initial-branch", "main"),
        ("add", "--all"),
        (*_AUTHOR, "commit", "--quiet", "--message", f"Version {version}"),
        (*_AUTHOR, "tag", f"v{version}"),
    ):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder, f"v{version}"

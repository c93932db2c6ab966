"""Build hook: the dbt package travels in the wheel as ``loader/dbt_package``.

An editable install needs no copy: there the package is the repository's root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What makes the dbt package, relative to the repository's root.
CONTENTS = ("dbt_project.yml", "macros", "models", "profiles/profiles.yml", "docs")


class DbtPackageHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        for path in sorted(package_files(root)):
            relative = path.relative_to(root).as_posix()
            build_data["force_include"][str(path)] = f"loader/dbt_package/{relative}"


def package_files(root: Path) -> list[Path]:
    """The files of the dbt package in the repository at ``root``."""
    files: list[Path] = []
    for name in CONTENTS:
        start = root / name
        candidates = start.rglob("*") if start.is_dir() else [start]
        files += [path for path in candidates if path.is_file()]
    return files

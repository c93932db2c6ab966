"""Locates the dbt package, which contains the macros and the documentation."""

from __future__ import annotations

from pathlib import Path


def package_folder() -> Path:
    """Returns the folder of the dbt package.

    This is a folder inside an installed loader, or the root of the repository.
    """
    loader = Path(__file__).resolve().parent
    installed = loader / "dbt_package"
    return installed if installed.is_dir() else loader.parent


def page(name: str, section: str) -> str:
    """Formats a reference to a section of the documentation, for messages."""
    return f"{package_folder()}/docs/{name}.md, '{section}'"

"""Locates the dbt package, which contains the macros and the documentation."""

from __future__ import annotations

from pathlib import Path


def package_folder() -> Path:
    """Returns the dbt package's folder: inside an installed loader, or the repository's root."""
    loader = Path(__file__).resolve().parent
    installed = loader / "dbt_package"
    return installed if installed.is_dir() else loader.parent


def page(name: str, section: str) -> str:
    """Formats a reference to a section of the documentation for use in a message."""
    return f"{package_folder()}/docs/{name}.md, '{section}'"

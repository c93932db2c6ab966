"""Locates the dbt package on this machine; the documentation's pages lie beside its macros."""

from __future__ import annotations

from pathlib import Path


def package_folder() -> Path:
    """The dbt package's folder: inside an installed loader, or the repository's root."""
    here = Path(__file__).resolve().parent
    shipped = here / "dbt_package"
    return shipped if shipped.is_dir() else here.parent


def page(name: str, section: str) -> str:
    """Names a section of the documentation by the file that holds it: `name` is such as `spec`."""
    return f"{package_folder()}/docs/{name}.md, '{section}'"

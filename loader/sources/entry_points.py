"""Finds the connector for a source among the installed packages."""

from __future__ import annotations

import difflib

from loader.errors import SpecError
from loader.sources.interface import Source
from loader.spec.entry_points import list_plugins, load_plugin

GROUP = "strandline.sources"
_DATABASES = ("postgresql", "postgres", "mysql", "mariadb", "oracle", "sqlserver", "mssql")


def find_connector(path: str, where: str) -> type[Source]:
    """Returns the connector class for a source's ``path``.

    Raises:
        SpecError: if no installed package provides the connector, or if it cannot be loaded.
    """
    entries = list_plugins(GROUP)
    if path not in entries:
        near = difflib.get_close_matches(path, entries, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        if path.lower() in _DATABASES:
            hint = "Write `path: jdbc`, which reads all databases. "
        raise SpecError(
            f"there is no connector {path!r}",
            where=where,
            remedy=f"{hint}Installed connectors: {', '.join(sorted(entries)) or 'none'}",
        )
    return load_plugin(entries[path], Source, where)  # type: ignore[type-abstract]

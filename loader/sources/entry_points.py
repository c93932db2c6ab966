"""Finds the connector of a source document among the installed packages."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from loader.errors import SpecError
from loader.sources.interface import Source

GROUP = "strandline.sources"


def find_connector(path: str, where: str) -> type[Source]:
    """Returns the connector class for the ``path`` of a source document.

    Raises:
        SpecError: if no installed package provides it; the message lists the installed connectors.
    """
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if path not in entries:
        near = difflib.get_close_matches(path, entries, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise SpecError(
            f"there is no connector {path!r}",
            where=where,
            remedy=f"{hint}Installed connectors: {', '.join(sorted(entries)) or 'none'}",
        )
    connector: type[Source] = entries[path].load()
    return connector

"""Plug-ins for schedulers, which start runs and show the result of each table."""

from __future__ import annotations

import os

from loader.errors import SpecError
from loader.names import in_the_lake, is_wildcard
from loader.spec.spec import load_spec


def list_tables(config: str | os.PathLike[str]) -> list[str]:
    """Returns a spec's tables as `source.table`. Raises a SpecError if the spec uses wildcards."""
    names = [(source, table) for source in load_spec(config).sources for table in source.tables]
    for source, table in names:
        if is_wildcard(table):
            raise SpecError(
                f"{table!r} is a wildcard, and a scheduler needs the names of tables",
                where=f"{source.where}.tables",
                remedy="Pass the names as `tables`; `loader discover` lists them",
            )
    return [f"{source.name}.{table}" for source, table in names]


def name_raw_table(table: str) -> str:
    """Returns `source.table` with the name that the raw table has in the lake."""
    source, _, name = table.partition(".")
    return f"{source}.{in_the_lake(name)}"

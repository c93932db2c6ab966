"""Completes source and table names in a shell, and defines the ``--select`` option.

The names come from the spec's file, because reading them from a database or the lake would be slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click


def complete_sources(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the spec's sources whose names start with the typed text (a click callback)."""
    return [name for name in dict(_list_sources(ctx)) if name.startswith(incomplete)]


def complete_tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the spec's tables, such as ``shop.orders``, that start with the typed text.

    This is a click callback. For options that accept patterns, it also suggests ``shop.*``. It does
    not suggest tables that the spec selects only by a pattern, because the spec does not contain
    their names.
    """
    names: dict[str, None] = {}
    for source, spec in _list_sources(ctx):
        tables, inner = spec.get("tables"), spec.get("spec")
        options = inner.get("table_options") if isinstance(inner, dict) else None
        listed = [*(tables if isinstance(tables, list) else ()), *(options or ())]
        tables = [table for table in listed if isinstance(table, str) and _is_literal(table)]
        names |= dict.fromkeys(f"{source}.{table}" for table in tables)
        if isinstance(param, click.Option):
            names[f"{source}.*"] = None
    return [name for name in names if name.startswith(incomplete)]


def _list_sources(ctx: click.Context) -> Iterator[tuple[str, dict[str, Any]]]:
    from loader.errors import SpecError
    from loader.spec.document import read_documents

    path = Path(ctx.find_root().params.get("config") or "loader.yml")
    try:
        documents = read_documents(path.read_text("utf-8-sig"), str(path))
    except (OSError, ValueError, SpecError):  # the shell cannot show errors
        return
    for document in documents:
        value = document.value
        spec = value.get("spec") if isinstance(value, dict) else None
        if isinstance(spec, dict) and value.get("kind") == "source":
            name = spec.get("name")
            if isinstance(name, str | int) and _is_literal(str(name)):
                yield str(name), spec


def _is_literal(name: str) -> bool:
    return not any(part in name for part in ("$", "@@", "*", "?", "["))


select_option = click.option(
    "-s",
    "--select",
    multiple=True,
    help="source.table or a wildcard; repeatable.",
    shell_complete=complete_tables,
)

"""Options that several commands share, and the completion of their values in a shell.

The names of sources and tables come from the spec's file, because reading them from a database or
the lake would be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from loader.audit.presets import PRESETS
from loader.duration import seconds_of
from loader.errors import SpecError

_EXAMPLES = "write it as '30s', '5 min' or '2h'"


def read_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Converts an option such as '5 min' to seconds (a click callback)."""
    if value is None:
        return None
    try:
        seconds = float(seconds_of(value.strip(), "a duration", _EXAMPLES))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds <= 0:
        raise click.BadParameter(f"{value!r} is not a positive duration: {_EXAMPLES}")
    return seconds


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


def buckets_option(default: int, description: str) -> Callable[..., Any]:
    return click.option(
        "--buckets",
        type=click.IntRange(1, 4096),
        default=default,
        show_default=True,
        metavar="N",
        help=description,
    )


_COPY_OPTIONS = (
    click.option(
        "--loaded-by",
        "tool",
        type=click.Choice([*PRESETS, "none"]),
        help="The tool that loads COPY. Default: recognised by the columns that it adds.",
    ),
    click.option(
        "--versions",
        is_flag=True,
        help="COPY keeps old versions of rows: only the newest version of each key counts.",
    ),
    click.option(
        "--newest-by",
        multiple=True,
        metavar="COLUMN",
        help="With --versions: a column that orders versions, instead of the tool's; repeatable.",
    ),
    click.option("--deleted", metavar="COLUMN", help="The column of COPY that flags deleted rows."),
)


def copy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for reading a table that another tool has loaded."""
    for option in reversed(_COPY_OPTIONS):
        command = option(command)
    return command

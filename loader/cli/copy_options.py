"""Command-line options for reading a table that another tool has loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

TOOLS = (
    "airbyte",
    "cloudquery",
    "debezium",
    "dlt",
    "fivetran",
    "meltano",
    "olake",
    "sling",
    "strandline",
    "none",
)
"""The names in :data:`loader.audit.presets.PRESETS`, and `none`.

They are repeated here because that module is slow to import.
"""

_OPTIONS = (
    click.option(
        "--loaded-by",
        "tool",
        type=click.Choice(TOOLS),
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
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command

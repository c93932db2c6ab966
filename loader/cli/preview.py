"""``loader preview``: shows the first rows of a table as they would be written."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import click
from rich.cells import cell_len

from loader.cli.console import Output
from loader.cli.options import complete_tables
from loader.cli.settings import Settings, open_pipeline
from loader.errors import LoaderError

if TYPE_CHECKING:
    from loader.sync.preview import FirstRows

_LONGEST = 200
"""The maximum number of characters of a value in text output."""
_GAP = 2


@click.command(short_help="Shows the first rows of a table.")
@click.argument("table", shell_complete=complete_tables)
@click.option(
    "--limit", type=click.IntRange(1), default=10, show_default=True, help="How many rows."
)
@click.pass_obj
def preview(settings: Settings, table: str, limit: int) -> None:
    """Shows rows of TABLE as the first load would write them. Nothing is written or locked.

    TABLE is source.table, or the name alone if only one source has such a table.
    """
    code = 0
    with open_pipeline(settings) as pipeline:
        from loader.sync.preview import read_first_rows

        for result in read_first_rows(pipeline, table, limit):
            try:
                if isinstance(result, LoaderError):
                    raise result
                show_rows(settings.output, result)
            except Exception as error:
                where = f"table {getattr(result, 'table', table)}"
                settings.output.error(pipeline.redact_error(error, where))
                code = 1
    sys.exit(code)


def show_rows(output: Output, first: FirstRows) -> None:
    """Reads and prints rows, as one table if it fits the terminal, otherwise as a table per row."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    from loader.rows.version_order import quote_name

    fields = first.rows.schema.fields
    columns = [f.col(quote_name(field.name)) for field in fields]
    if output.json:
        whole = f.to_json(f.struct(*columns), {"ignoreNullFields": "false"})
        lines = [row[0] for row in first.rows.select(whole).collect()]
        rows = [(first.table, json.loads(line, parse_float=Decimal)) for line in lines]
        output.table("row", ("table", "row"), rows)
        return
    # Spark formats the values, because Python would show times in another time zone.
    texts = [
        (f.hex(column) if isinstance(field.dataType, t.BinaryType) else column).cast("string")
        for field, column in zip(fields, columns, strict=True)
    ]
    values = [[_shorten(value) for value in row] for row in first.rows.select(*texts).collect()]
    headers = [(field.name, field.dataType.simpleString()) for field in fields]
    if not values:
        output.say(f"{first.table} has no rows.")
    if _fits(headers, values, output.out.width):
        names = [f"{name}\n{kind}" for name, kind in headers]
        output.table("row", names, values, first.table, are_names=True)
        return
    for number, row in enumerate(values, 1):
        listed = [(*header, value) for header, value in zip(headers, row, strict=True)]
        output.table("row", ("column", "type", "value"), listed, f"{first.table}, row {number}")


def _shorten(value: str | None) -> str:
    from loader.spec.redaction import excerpt

    if value is None:
        return "null"
    return value if len(value) <= _LONGEST else f"{excerpt(value, _LONGEST)}…"


def _fits(headers: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], width: int) -> bool:
    widths = [
        max(cell_len(text) for text in (*header, *cells))
        for header, *cells in zip(headers, *rows, strict=True)
    ]
    return sum(widths) + _GAP * (len(widths) - 1) <= width

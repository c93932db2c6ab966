"""``loader adopt``: takes over a table that another tool has loaded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from loader.cli.options import complete_tables, copy_options
from loader.cli.results import list_errors
from loader.cli.settings import Settings, open_pipeline
from loader.formatting import format_count
from loader.names import is_wildcard

if TYPE_CHECKING:
    from loader.audit.adoption import Adopted


@click.command(short_help="Takes over a table that another tool loaded.")
@click.argument("table", shell_complete=complete_tables)
@click.argument("copy", metavar="COPY")
@copy_options
@click.pass_obj
def adopt(
    settings: Settings,
    /,
    table: str,
    copy: str,
    tool: str | None,
    versions: bool,
    newest_by: tuple[str, ...],
    deleted: str | None,
) -> None:
    """Makes COPY the first batch of TABLE's raw table.

    TABLE is a table in loader.yml, written as source.table. COPY is a table that another tool has
    loaded from the same source: a table in the profile's Spark, or a path with a slash (Parquet,
    Delta or Iceberg). The command compares COPY with the source, and reads only the rows that
    differ from the source. It does not change COPY. Later runs continue as after a first load.

    \b
    loader adopt shop.orders analytics.orders
    loader adopt shop.orders /data/exports/orders/
    """
    from loader.audit.adoption import Adoption
    from loader.audit.copied_table import CopyOptions, find_spark_table
    from loader.cli.run_once import RestartingRun, RunRequest, sync_until_signal

    if is_wildcard(table):
        raise click.UsageError(f"{table!r} is a wildcard: name one table.")
    if newest_by and not versions:
        raise click.UsageError("--newest-by is for --versions: a copy with old versions of rows.")
    work = Adoption(copy, find_spark_table, CopyOptions(tool or "", versions, newest_by, deleted))
    with open_pipeline(settings) as pipeline:
        request = RunRequest((table,), work=work)
        outcomes, ended, _ = sync_until_signal(RestartingRun(settings, pipeline), request)
        errors = list_errors(outcomes, ended)
        for error in errors:
            settings.output.error(error)
        if not errors and work.adopted is not None:
            show_adopted(settings, work.adopted, copy)
        sys.exit(1 if errors else 0)


def show_adopted(settings: Settings, adopted: Adopted, copy: str) -> None:
    """Prints how many rows were taken from the copy, and how many from the source."""
    from loader.audit.findings import EXTRA, KINDS

    found = {kind: adopted.differences.get(kind, 0) for kind in KINDS}
    settings.output.event("adopted", "", table=adopted.table, rows_copy=adopted.rows, **found)
    read = sum(found.values()) - found[EXTRA]
    listed = ", ".join(f"{count} {kind}" for kind, count in found.items() if count)
    settings.output.say(
        f"{adopted.table}: {copy} is the first batch of the raw table. "
        + (
            f"It differed from the source ({listed}), so "
            f"{format_count(read, 'row was', 'rows were')} read from the source."
            if listed
            else f"Its {format_count(adopted.rows, 'row')} were equal to the source's."
        )
    )
    settings.output.say("Next: loader run, loader codegen, dbt build")

"""``loader discover``: lists the sources' tables, keys and cursor candidates."""

from __future__ import annotations

import sys

import click

from loader.cli.completion import complete_sources
from loader.cli.settings import Settings, open_pipeline


@click.command(short_help="Lists tables, keys and possible cursors.")
@click.argument("sources", nargs=-1, shell_complete=complete_sources)
@click.option("--columns", is_flag=True, help="List columns and their types instead.")
@click.pass_obj
def discover(settings: Settings, sources: tuple[str, ...], columns: bool) -> None:
    """Lists the tables, keys and cursor candidates of SOURCES (default: all)."""
    from loader.sync.check import discover_tables

    spec = settings.spec()
    for name in sources:
        spec.source(name)
    with open_pipeline(settings, spec) as pipeline:
        with pipeline.reuse_connections():
            tables, errors, denials = discover_tables(pipeline, sources)
        for error in errors:
            settings.output.error(error)
        for denial in denials:
            settings.output.warning(str(denial))
        names = ("source", "table", "kind", "primary_key", "cursor_candidates")
        if columns:
            rows = [
                (source, t.ref.name, c.name, c.dataType.simpleString(), c.name in t.primary_key)
                for source, t, _ in tables
                for c in t.schema.fields
            ]
            settings.output.table("column", ("source", "table", "column", "type", "key"), rows)
        else:
            settings.output.table(
                "table",
                names,
                [(s, t.ref.name, t.ref.kind, t.primary_key, c) for s, t, c in tables],
            )
        if errors:
            sys.exit(1)

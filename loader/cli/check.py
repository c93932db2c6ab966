"""``loader check`` and ``loader discover``: check a spec, and list tables to write one."""

from __future__ import annotations

import sys
from functools import partial

import click

from loader.cli.options import complete_sources, select_option
from loader.cli.settings import Settings, open_pipeline, reopen_without_executors
from loader.errors import LoaderError
from loader.package import page


@click.command(short_help="Checks spec, connections and cursors.")
@select_option
@click.pass_obj
def check(settings: Settings, select: tuple[str, ...]) -> None:
    """Checks spec, lake, connections and cursors, and prints a remedy for each error."""
    from loader.sync.check import check_spec

    with open_pipeline(settings) as pipeline:
        has_failed = False
        rows = []
        for result in check_spec(pipeline, select, partial(reopen_without_executors, settings)):
            if isinstance(result, LoaderError):
                settings.output.error(result)
                has_failed = True
                continue
            plan, notes = result
            cursor = f"{plan.cursor.name} ({plan.cursor.type.value})" if plan.cursor else ""
            rows.append((plan.name, plan.mode, cursor, plan.key, "; ".join(notes)))
        for key in sorted(settings.profile.secrets if settings.profile else ()):
            settings.output.warning(
                f"{key}: the profile contains a secret, which dbt without the loader's plugin "
                "puts on Java's command line. Use a variable instead: "
                f"{page('security', 'Secrets')}"
            )
        settings.output.table(
            "check", ("table", "mode", "cursor", "primary_key", "notes"), rows, below="notes"
        )
        if has_failed:
            sys.exit(1)
        settings.output.say("All tables can be synced.")


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
        if columns:
            rows = [
                (source, t.ref.name, c.name, c.dataType.simpleString(), c.name in t.primary_key)
                for source, t, _ in tables
                for c in t.schema.fields
            ]
            settings.output.table("column", ("source", "table", "column", "type", "key"), rows)
        else:
            names = ("source", "table", "kind", "primary_key", "cursor_candidates")
            listed = [(s, t.ref.name, t.ref.kind, t.primary_key, c) for s, t, c in tables]
            settings.output.table("table", names, listed)
        if errors:
            sys.exit(1)

"""``loader check``: checks the spec, the connections and the cursors."""

from __future__ import annotations

import sys
from functools import partial

import click

from loader.cli.completion import select_option
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

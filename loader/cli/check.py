"""``loader check``: checks the spec, the connections and the cursors."""

from __future__ import annotations

import sys

import click

from loader.cli.settings import Settings, open_pipeline
from loader.errors import LoaderError
from loader.package import page


@click.command(short_help="Checks spec, connections and cursors.")
@click.option("-s", "--select", multiple=True, help="source.table or a wildcard; repeatable.")
@click.pass_obj
def check(settings: Settings, select: tuple[str, ...]) -> None:
    """Checks the spec, the lake, the connections and the cursors, and says how to fix them."""
    from loader.sync.check import check_destinations, check_tables

    with open_pipeline(settings) as pipeline:
        reported: set[str] = set()
        rows = []
        for problem in check_destinations(pipeline):
            settings.output.error(problem)
            reported.add(str(problem))
        for part in pipeline.plan_tables(select):
            for found in (*part.problems, *check_tables(pipeline, part)):
                if isinstance(found, LoaderError):
                    if str(found) not in reported:  # tables may share an error
                        settings.output.error(found)
                    reported.add(str(found))
                    continue
                plan, notes = found
                cursor = f"{plan.cursor.name} ({plan.cursor.type.value})" if plan.cursor else ""
                rows.append((plan.name, plan.mode, cursor, plan.key, "; ".join(notes)))
        for key in sorted(settings.profile.secrets if settings.profile else ()):
            settings.output.warning(
                f"{key}: the profile holds a secret, which dbt without the loader's plugin puts on "
                f"Java's command line. Name a variable instead: {page('security', 'Secrets')}"
            )
        settings.output.table("check", ("table", "mode", "cursor", "primary_key", "notes"), rows)
        if reported:
            sys.exit(1)
        settings.output.say("All tables can be synced.")

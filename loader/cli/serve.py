"""``loader serve``: a CloudQuery destination and state backend for `cloudquery sync`."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from loader.cli.settings import Settings
    from loader.sync.pipeline import Outcome

_LIKE_A_PLUGIN = {"ignore_unknown_options": True, "allow_extra_args": True}
"""`registry: local` starts every plugin with options of its own, such as `--no-sentry`."""


def refuse_typos(context: click.Context) -> None:
    """Refuses an ignored option that is nearly one of ours.

    Raises:
        click.NoSuchOption: names the one that was probably meant.
    """
    known = [name for parameter in context.command.params for name in parameter.opts]
    for word in context.args:
        name = word.partition("=")[0]
        meant = get_close_matches(name, known, n=1, cutoff=0.8) if name.startswith("--") else []
        if meant:
            raise click.NoSuchOption(name, possibilities=meant, ctx=context)


class Warnings:
    """Shows warnings; the phases of a sync that somebody else started interest nobody here."""

    def __init__(self, settings: Settings) -> None:
        self.output = settings.output

    def phase(self, table: str, phase: str, rows: int | None) -> None:
        """Shows nothing."""

    def warn(self, table: str, text: str) -> None:
        """Shows a warning."""
        self.output.warning(f"{table}: {text}", table=table)


@click.command(
    context_settings=_LIKE_A_PLUGIN, short_help="Lets `cloudquery sync` write to the lake."
)
@click.option("--address", default="localhost:7778", show_default=True, help="Where to listen.")
@click.option(
    "--network",
    type=click.Choice(["tcp", "unix"]),
    default="tcp",
    show_default=True,
    help="What --address is: host:port, or the path of a Unix socket.",
)
@click.option("--destination", help="The destination to write to; default: the spec's first lake.")
@click.option("--python", help="A Python that has cloudquery-plugin-pb; default: the loader's.")
@click.pass_obj
def serve(
    settings: Settings, address: str, network: str, destination: str | None, python: str | None
) -> None:
    """Serves a CloudQuery v3 destination and state backend, to which `cloudquery sync` writes.

    What a sync writes is appended when its stream ends; the state of its source counts after that.
    """
    from loader.cli.own_tables import keep_small
    from loader.cli.settings import opened_for
    from loader.cli.stopping import stopping
    from loader.errors import SpecError
    from loader.sources.cloudquery.serving import serving
    from loader.spec.plugins import LakeDestination

    refuse_typos(click.get_current_context())
    spec = settings.spec(needs_source=False)
    lakes = [one.name for one in spec.destinations if isinstance(one, LakeDestination)]
    if not lakes:
        raise SpecError(
            "there is no lake to write to",
            where=str(settings.config),
            remedy="Add a destination with `path: spark`",
        )
    name = destination or lakes[0]
    lake = spec.destination(name).lake

    def tell(outcome: Outcome) -> None:
        if outcome.error is not None:
            settings.output.error(outcome.error)
            return
        rows = outcome.record.rows_appended if outcome.record else 0
        text = f"{outcome.table}: {rows or 0:,} rows appended"
        settings.output.event("table", text, table=outcome.table, appended=rows)

    place = f"unix:{address}" if network == "unix" else address
    # It listens before all else is there: `registry: local` waits for five seconds only.
    with serving(place, python) as bridge:
        from loader.sync.drill import drill
        from loader.sync.served import Served
        from loader.sync.watch import Watch

        at = bridge.address
        settings.output.event("listening", f"listening at {at}", address=at)
        spark = opened_for(settings, spec, lake)
        watch = Watch(Warnings(settings), drill(os.environ, spark))
        served = Served(spec, spark, name, bridge, watch, tell, keep_small)
        with stopping(served.stop, spark.sparkContext.cancelAllJobs):
            served.run()

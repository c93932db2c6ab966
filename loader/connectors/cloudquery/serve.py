"""``loader serve``: a CloudQuery destination and state backend for `cloudquery sync`."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from loader.cli.settings import Settings

_PORT = "localhost:7778"
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


def choose_address(address: str | None, network: str) -> str:
    """Returns the address to listen on, in the bridge's form.

    Raises:
        SpecError: if the address is a port, which has no owner, and no option says that it may be.
    """
    from loader.connectors.cloudquery.bridge_server import find_default_socket
    from loader.errors import SpecError

    if network == "tcp":
        return address or _PORT
    if address is not None and re.fullmatch(r"[^/]*:[0-9]+", address):
        raise SpecError(
            f"{address} is a port, and every user of this machine could write to the lake there",
            where="loader serve",
            remedy="Leave out --address, and write the socket's address as `path` of CloudQuery's "
            "destination; or add --network tcp, if nobody else uses this machine",
        )
    return f"unix:{address or find_default_socket()}"


def parse_seconds(duration: str) -> float:
    """Returns a duration's seconds.

    Raises:
        SpecError: if it is none.
    """
    from loader.duration import Lookback
    from loader.errors import SpecError

    try:
        found = Lookback.parse(duration).seconds
    except ValueError:
        found = None
    if not found:
        raise SpecError(
            f"{duration!r} is not a duration",
            where="loader serve, --idle-timeout",
            remedy="Use one such as '30 minutes'",
        )
    return float(found)


@click.command(
    context_settings=_LIKE_A_PLUGIN, short_help="Lets `cloudquery sync` write to the lake."
)
@click.option(
    "--address",
    help="Where to listen: the path of a Unix socket, by default one that only you can use; with "
    f"--network tcp a host and a port, by default {_PORT}.",
)
@click.option(
    "--network",
    type=click.Choice(["unix", "tcp"]),
    default="unix",
    show_default=True,
    help="tcp: every user of this machine can write to the lake and read the state of plugins.",
)
@click.option(
    "--idle-timeout",
    default="1 hour",
    show_default=True,
    help="How long a sync may send nothing before it is ended.",
)
@click.option("--destination", help="The destination to write to; default: the spec's first lake.")
@click.option("--python", help="A Python that has cloudquery-plugin-pb; default: the loader's.")
@click.pass_obj
def serve(
    settings: Settings,
    address: str | None,
    network: str,
    idle_timeout: str,
    destination: str | None,
    python: str | None,
) -> None:
    """Serves a CloudQuery v3 destination and state backend, to which `cloudquery sync` writes.

    What a sync writes is appended when its stream ends; the state of its source counts after that.
    """
    from loader.cli.ingest_command import choose_lake, open_ingest
    from loader.connectors.cloudquery.bridge_server import start_bridge_server

    refuse_typos(click.get_current_context())
    place = choose_address(address, network)
    longest = parse_seconds(idle_timeout)
    spec, lake = choose_lake(settings, destination)
    if network == "tcp":
        settings.output.warning(
            f"{place} has no password: anybody who can connect to it, such as every user of this "
            "machine, can write to the lake, delete what is stale, and read the state of plugins. "
            "Leave out --network tcp to use a Unix socket"
        )
    # It listens before all else is there: `registry: local` waits for five seconds only.
    with start_bridge_server(place, python, longest) as bridge:
        at = bridge.address
        settings.output.event("listening", f"listening at {at}", address=at)
        with open_ingest(settings, spec, lake, bridge.end) as ingest:
            from loader.connectors.cloudquery.ingest import CloudQueryIngest

            CloudQueryIngest(bridge, ingest).run()

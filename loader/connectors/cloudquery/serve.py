"""The ``loader serve`` command: a CloudQuery destination and state backend."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from loader.cli.options import read_duration

if TYPE_CHECKING:
    from loader.cli.settings import Settings

_PORT = "localhost:7778"
_CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}
"""With `registry: local`, CloudQuery starts plugins with options that this command ignores, such as
`--no-sentry`."""


def refuse_typos(context: click.Context) -> None:
    """Rejects unknown options that resemble an option of the command. Ignores all others.

    Raises:
        click.NoSuchOption: suggests the similar option.
    """
    options = [name for parameter in context.command.params for name in parameter.opts]
    for word in context.args:
        name = word.partition("=")[0]
        matches = get_close_matches(name, options, n=1, cutoff=0.8) if name.startswith("--") else []
        if matches:
            raise click.NoSuchOption(name, possibilities=matches, ctx=context)


def choose_address(address: str | None, network: str) -> str:
    """Returns the address to listen on, in the format of the bridge.

    Raises:
        SpecError: if the address is a port, which every user on the machine can connect to, and
            `network` is not `tcp`.
    """
    from loader.errors import SpecError
    from loader.spark.temporary_files import find_own_folder

    if network == "tcp":
        return address or _PORT
    if address is not None and re.fullmatch(r"[^/]*:[0-9]+", address):
        raise SpecError(
            f"{address} is a port: every user of this machine could write to the lake",
            where="loader serve",
            remedy="Omit --address, and set the socket's address as `path` of CloudQuery's "
            "destination; or add --network tcp if no other user has access to this machine",
        )
    if address is None:
        folder = find_own_folder("serve", "loader serve", "set another socket with --address")
        address = str(folder / "serve.sock")
    return f"unix:{address}"


@click.command(context_settings=_CONTEXT, short_help="Lets `cloudquery sync` write to the lake.")
@click.option(
    "--address",
    help="Path of the Unix socket; by default one that only your user can access. With --network "
    f"tcp, host and port; by default {_PORT}.",
)
@click.option(
    "--network",
    type=click.Choice(["unix", "tcp"]),
    default="unix",
    show_default=True,
    help="tcp: every user of this machine can write to the lake and read plugin state.",
)
@click.option(
    "--idle-timeout",
    callback=read_duration,
    default="1 hour",
    show_default=True,
    help="Fail a sync that has sent nothing for this long.",
)
@click.option(
    "--destination", help="The destination to write to; default: the first lake of the spec."
)
@click.option(
    "--python", help="Python interpreter with cloudquery-plugin-pb; default: the loader's."
)
@click.pass_obj
def serve(
    settings: Settings,
    address: str | None,
    network: str,
    idle_timeout: float,
    destination: str | None,
    python: str | None,
) -> None:
    """Serves a CloudQuery v3 destination and state backend, to which `cloudquery sync` writes.

    The rows of a sync are appended when its stream ends; then its state takes effect. Values are
    written as they are sent: the `mask` option applies only to the spec's sources.
    """
    from loader.cli.ingest_command import choose_lake, open_ingest
    from loader.connectors.cloudquery.bridge_server import start_bridge_server

    refuse_typos(click.get_current_context())
    listen_at = choose_address(address, network)
    spec, lake = choose_lake(settings, destination)
    if network == "tcp":
        settings.output.warning(
            f"{listen_at} has no password: everyone who can connect to it, such as every user of "
            "this machine, can write to the lake, delete stale rows, and read plugin state. Omit "
            "--network tcp to use a Unix socket"
        )
    # The bridge listens before Spark starts, because with `registry: local`, CloudQuery waits only
    # five seconds.
    with start_bridge_server(listen_at, python, idle_timeout) as bridge:
        at = bridge.address
        settings.output.event("listening", f"listening at {at}", address=at)
        with open_ingest(settings, spec, lake, bridge.end) as ingest:
            from loader.connectors.cloudquery.ingest import CloudQueryIngest

            CloudQueryIngest(bridge, ingest).run()

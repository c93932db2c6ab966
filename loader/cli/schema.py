"""``loader schema``: prints the spec's JSON Schema, so that editors can complete and check it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import click

from loader.cli.console import OUT
from loader.errors import SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from loader.cli.settings import Settings


@click.command(short_help="Prints a JSON Schema of loader.yml for editors.")
@click.pass_obj
def schema(settings: Settings) -> None:
    """Prints a JSON Schema of loader.yml with the options of all installed connectors."""
    text = render_schema(settings.output.warning)
    settings.output.streams.write(OUT, lambda: print(text, end=""))


def render_schema(warn: Callable[[str], None]) -> str:
    """Returns the JSON Schema of a spec's documents.

    Args:
        warn: called with the error if a plug-in cannot be imported. The schema then accepts any
            options for this plug-in.
    """
    from loader.sources.entry_points import GROUP
    from loader.sources.interface import Source
    from loader.spec.entry_points import list_plugins, load_plugin
    from loader.spec.json_schema import build_schema
    from loader.spec.plugins import StateStoreOptions, state_backends
    from loader.state import StateBackend
    from loader.state.opening import INCLUDED

    def list_models(
        entries: Mapping[str, EntryPoint], base: type[Source] | type[StateBackend]
    ) -> dict[str, type[BaseModel] | None]:
        models: dict[str, type[BaseModel] | None] = {}
        for name, entry in entries.items():
            try:
                models[name] = load_plugin(entry, base, f"path: {name}").options_model
            except SpecError as error:
                warn(str(error))
                models[name] = None
        return models

    backends = {name: entry for name, entry in state_backends().items() if name not in INCLUDED}
    stores = dict.fromkeys(INCLUDED, StateStoreOptions) | list_models(backends, StateBackend)
    built = build_schema(list_models(list_plugins(GROUP), Source), stores)
    return json.dumps(built, indent=1, ensure_ascii=False) + "\n"

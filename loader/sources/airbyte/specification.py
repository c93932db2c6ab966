"""A connector's specification: which values of its configuration are secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def secrets(about: Any, config: Any) -> Iterator[str]:
    """Yields the values of a configuration that its JSON schema marks `airbyte_secret`.

    Args:
        about: the schema, or a part of it.
        config: the configuration, or the part that it is about.
    """
    if not isinstance(about, dict):
        return
    if about.get("airbyte_secret"):
        yield from _texts(config)
        return
    for name in ("oneOf", "anyOf", "allOf"):
        for option in about.get(name) or ():
            yield from secrets(option, config)
    fields = about.get("properties")
    if isinstance(fields, dict) and isinstance(config, dict):
        for name, field in fields.items():
            if name in config:
                yield from secrets(field, config[name])
    if isinstance(config, list):
        for item in config:
            yield from secrets(about.get("items"), item)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)

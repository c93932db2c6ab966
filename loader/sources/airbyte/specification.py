"""A connector's specification: which values of its configuration are secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loader.spec.redaction import is_secret_key


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


def secret_values(config: Any) -> Iterator[str]:
    """Yields the values of a configuration that stand under secret keys."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from _texts(value) if is_secret_key(name) else secret_values(value)
    elif isinstance(config, list):
        for item in config:
            yield from secret_values(item)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)

"""A connector's configuration: which values are secret, and those that it has renewed.

Single-use refresh tokens are renewed during a read. Their file holds secrets, so only this user can
read it. It is valid for the `config` that it was made from: a changed spec begins with its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loader.connectors.subprocess.json_values import decode
from loader.connectors.subprocess.program import write_json
from loader.errors import SpecError, TableError
from loader.spark.safe_files import read_regular, replace_atomically
from loader.spec.redaction import is_secret_key

_INJECTED = "__injected"
"""How the fields begin in which the loader itself puts a manifest."""


def find_declared_secrets(about: Any, config: Any) -> Iterator[str]:
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
            yield from find_declared_secrets(option, config)
    fields = about.get("properties")
    if isinstance(fields, dict) and isinstance(config, dict):
        for name, field in fields.items():
            if name in config:
                yield from find_declared_secrets(field, config[name])
    if isinstance(config, list):
        for item in config:
            yield from find_declared_secrets(about.get("items"), item)


def find_secret_values(config: Any) -> Iterator[str]:
    """Yields the values of a configuration that stand under secret keys."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from _texts(value) if is_secret_key(name) else find_secret_values(value)
    elif isinstance(config, list):
        for item in config:
            yield from find_secret_values(item)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


class ConfigUpdates:
    """The values that a connector has renewed.

    Args:
        path: of their file; None if they are not kept.
        given: the spec's `config`.
        hide: registers the secrets among values of a configuration.
    """

    def __init__(
        self,
        path: Path | None,
        given: Mapping[str, Any],
        hide: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.path = path
        self._given = given
        self._hide = hide

    def apply_to(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a configuration with the values that were renewed.

        Raises:
            SpecError: if the file cannot be read.
        """
        if self.path is None or not self.path.exists():
            return dict(config)
        try:
            kept = decode(read_regular(self.path, 64 << 20).decode())
            of, values = kept["of"], dict(kept["config"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpecError(
                f"the renewed configuration cannot be read: {error}",
                where=str(self.path),
                remedy="Only the loader writes this file. Delete it, and put values that are "
                "still valid into `config`",
            ) from None
        if of != self._fingerprint():
            return dict(config)
        self._hide(values)
        return {**config, **values}

    def store_update(self, control: Mapping[str, Any]) -> bool:
        """Keeps what a control message has renewed; returns False if there is no file for it.

        Raises:
            TableError: if it cannot be written.
        """
        about = control.get("connectorConfig") if isinstance(control, dict) else None
        config = about.get("config") if isinstance(about, dict) else None
        if not isinstance(config, dict):
            return True
        values = {
            name: value
            for name, value in config.items()
            if not name.startswith(_INJECTED) and self._given.get(name) != value
        }
        self._hide(values)
        if self.path is None:
            return False
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)  # its mode counts only when it is made
            write_json(self.path.parent, new.name, {"of": self._fingerprint(), "config": values})
            replace_atomically(
                new, self.path
            )  # the old token may be used up: losing this one would be final
        except OSError as error:
            raise TableError(
                f"the connector has renewed its configuration, which cannot be kept: "
                f"{error.strerror}",
                where=str(self.path),
                remedy="Make the folder writable. If the connector now refuses its token, put a "
                "new one into `config`",
            ) from None
        return True

    def _fingerprint(self) -> str:
        text = json.dumps(self._given, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

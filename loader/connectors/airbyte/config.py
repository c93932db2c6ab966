"""Finds secrets in a connector's configuration, and stores values that the connector refreshes.

A connector may refresh single-use tokens during a read. The loader stores the refreshed values in a
file that only the current user can read. It ignores the file if the spec's `config` has
changed since then.
"""

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

_INJECTED_PREFIX = "__injected"
"""The prefix of the fields in which the loader passes a manifest."""


def find_declared_secrets(schema: Any, config: Any) -> Iterator[str]:
    """Yields the values in a configuration that its JSON schema marks as `airbyte_secret`.

    Args:
        config: the part of the configuration that the schema describes.
    """
    if not isinstance(schema, dict):
        return
    if schema.get("airbyte_secret"):
        yield from _list_texts(config)
        return
    for name in ("oneOf", "anyOf", "allOf"):
        for option in schema.get(name) or ():
            yield from find_declared_secrets(option, config)
    fields = schema.get("properties")
    if isinstance(fields, dict) and isinstance(config, dict):
        for name, field in fields.items():
            if name in config:
                yield from find_declared_secrets(field, config[name])
    if isinstance(config, list):
        for item in config:
            yield from find_declared_secrets(schema.get("items"), item)


def find_secret_values(config: Any) -> Iterator[str]:
    """Yields the values in a configuration whose keys suggest a secret."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from _list_texts(value) if is_secret_key(name) else find_secret_values(value)
    elif isinstance(config, list):
        for item in config:
            yield from find_secret_values(item)


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _list_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_texts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


class ConfigUpdates:
    """The configuration values that a connector refreshed.

    Args:
        path: the file that stores the values; None if they are not stored.
        hide_secrets: registers the secrets in part of a configuration, so that they are redacted.
    """

    def __init__(
        self,
        path: Path | None,
        spec_config: Mapping[str, Any],
        hide_secrets: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.path = path
        self._spec_config = spec_config
        self._hide_secrets = hide_secrets

    def apply_to(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a configuration with the refreshed values.

        Raises:
            SpecError: if the file cannot be read.
        """
        if self.path is None or not self.path.exists():
            return dict(config)
        try:
            content = decode(read_regular(self.path, 64 << 20).decode())
            fingerprint, values = content["of"], dict(content["config"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpecError(
                f"the refreshed configuration cannot be read: {error}",
                where=str(self.path),
                remedy="Delete the file, which only the loader writes, and set valid values in "
                "`config`",
            ) from None
        if fingerprint != self._fingerprint():
            return dict(config)
        self._hide_secrets(values)
        return {**config, **values}

    def store_update(self, control: Mapping[str, Any]) -> bool:
        """Stores the values in a control message. Returns False if the spec sets no file for them.

        Raises:
            TableError: if the file is not writable.
        """
        update = control.get("connectorConfig") if isinstance(control, dict) else None
        config = update.get("config") if isinstance(update, dict) else None
        if not isinstance(config, dict):
            return True
        values = {
            name: value
            for name, value in config.items()
            if not name.startswith(_INJECTED_PREFIX) and self._spec_config.get(name) != value
        }
        self._hide_secrets(values)
        if self.path is None:
            return False
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)  # write_json sets the mode of new files only
            write_json(self.path.parent, new.name, {"of": self._fingerprint(), "config": values})
            # Replaced atomically, so that a crash does not lose the new token. The old token may
            # already be invalid.
            replace_atomically(new, self.path)
        except OSError as error:
            raise TableError(
                f"the connector has refreshed its configuration, which cannot be stored: "
                f"{error.strerror}",
                where=str(self.path),
                remedy="Make the folder writable. If the connector now rejects its token, set a "
                "new one in `config`",
            ) from None
        return True

    def _fingerprint(self) -> str:
        text = json.dumps(self._spec_config, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

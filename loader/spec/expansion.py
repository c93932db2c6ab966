"""Expands variables, files and references in a spec's values.

The syntax is ``${VAR}``, ``${VAR:-default}``, ``${file:PATH}`` and ``@@plugins.<name>.<property>``;
``$${`` is a literal ``${``. Values are expanded after the YAML is parsed, and the contents of
variables and files are not parsed. So a password may contain `#`, quotes or `${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loader.errors import SpecError, did_you_mean
from loader.spec.redaction import Redactor, is_secret_key, url_secrets

_REFERENCE = re.compile(
    r"@@plugins\.(?P<name>[A-Za-z0-9_-]+)\.(?P<property>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", re.ASCII
)
_MAX_REFERENCES = 1_000  # the limit for references, and for variables, in one value
_MAX_DEPTH = 50  # the limit for nested defaults, and for references to references
_MAX_FILE = 1_000_000  # characters
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?\Z", re.ASCII | re.DOTALL)
_REFERENCE_START = re.compile(r"\$\$\{|\$\{|@@plugins\.")
_BRACE = re.compile(r"\$\{|\}")
# Matches the reversed text before a password. In the reversed text, `match` tries the pattern at
# only one position. In the original text, a search would try it at every character.
_PASSWORD_FOLLOWS = re.compile(r":[^\s/@:]*//:")
_PRECEDING_KEY = re.compile(r"[\"'{]?\s*=\s*([\w.-]+)")
_MAX_KEY = 1_000
# Keys whose values are never redacted, even if a secret has the same value.
_NAMES = frozenset(
    {
        "kind", "name", "path", "version", "registry", "tables", "skip_tables", "destinations",
        "table_name", "connection", "concurrency", "write_mode", "profile", "target",
        "profiles_dir", "backend", "table_options", "user", "username", "host", "hostname", "port",
        "database", "dbname", "schema", "schemas", "publication", "slot",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Plugin:
    """A document to which ``@@plugins`` can refer.

    Attributes:
        where: the file, and the document's number and name, for errors.
        kind: ``source`` or ``destination``.
        spec: the document's outer `spec`, before expansion.
    """

    where: str
    kind: str
    spec: Mapping[str, Any]


@dataclass
class Expansion:
    """Expands the values of one file. Collects all errors instead of stopping at the first error.

    Attributes:
        folder: the folder that relative paths in ``${file:…}`` refer to.
        redactor: receives the secrets that are found in variables and files.
        plugins: the documents of the spec, keyed by name.
    """

    env: Mapping[str, str]
    folder: Path
    redactor: Redactor
    plugins: Mapping[str, Plugin] = field(default_factory=dict)
    errors: list[SpecError] = field(default_factory=list)
    _followed: int = field(default=0, init=False, repr=False)
    _variables: int = field(default=0, init=False, repr=False)
    _depth: int = field(default=0, init=False, repr=False)

    def expand(self, value: Any, where: str, keys: Sequence[str | int] = ()) -> Any:
        """Returns a copy of a YAML value in which all strings are expanded.

        Args:
            keys: the keys that lead to `value`.
        """
        if isinstance(value, dict):
            return {key: self.expand(item, where, (*keys, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, where, (*keys, i)) for i, item in enumerate(value)]
        if isinstance(value, str):
            return self._expand_scalar(value, _Location(where, tuple(keys)))
        return value

    def _expand_scalar(self, text: str, location: _Location) -> Any:
        self._followed = self._variables = self._depth = 0
        try:
            whole = _REFERENCE.fullmatch(text)
            if whole:
                return self._resolve_reference(whole, location)
            return self._expand_text(text, location)
        except SpecError as error:
            self.errors.append(error)
            return text

    def _expand_text(self, text: str, location: _Location) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise location.error(
                f"this value nests more than {_MAX_DEPTH} defaults or references",
                "Write the value literally",
            )
        pieces: list[str] = []
        position = 0
        while special := _REFERENCE_START.search(text, position):
            pieces.append(text[position : special.start()])
            position = special.start()
            if special[0] == "$${":
                pieces.append("${")
                position += 3
            elif special[0] == "${":
                end = _find_closing_brace(text, position + 2, location)
                pieces = ["".join(pieces)]
                pieces.append(self._expand_variable(text[position + 2 : end], pieces[0], location))
                position = end + 1
            elif reference := _REFERENCE.match(text, position):
                pieces.append(str(self._resolve_reference(reference, location)))
                position = reference.end()
            else:
                pieces.append(special[0])
                position = special.end()
        self._depth -= 1
        return "".join([*pieces, text[position:]])

    def _expand_variable(self, inner: str, before: str, location: _Location) -> str:
        self._variables += 1
        if self._variables > _MAX_REFERENCES:
            raise location.error(
                f"this value has more than {_MAX_REFERENCES:,} variables",
                "Write the value literally, or put it into one variable or file",
            )
        if inner.startswith("file:"):
            return self._read_file(self._expand_text(inner[len("file:") :], location), location)
        match = _VARIABLE.match(inner)
        if match is None:
            raise location.error(
                "`${…}` contains neither the name of a variable nor `file:PATH`",
                "Write ${VAR}, ${VAR:-default} or ${file:PATH}; $${ is a literal ${",
            )
        name, default = match["name"], match["default"]
        # As in a shell, the default after `:-` is also used if the variable is empty.
        if name in self.env and (self.env[name] or default is None):
            value = self.env[name]
            self._register(value, name, before, location)
            return value
        if default is not None:
            return self._expand_text(default, location)
        hint = did_you_mean(name, self.env)
        raise location.error(
            f"the environment variable {name} is not set",
            f"{hint} Set it, or add a default: ${{{name}:-…}}".strip(),
        )

    def _register(self, value: str, name: str, before: str, location: _Location) -> None:
        backwards = before[::-1]
        key = match[1][::-1] if (match := _PRECEDING_KEY.match(backwards)) else ""
        if (
            location.is_secret
            or is_secret_key(name)
            or _PASSWORD_FOLLOWS.match(backwards)
            or len(key) > _MAX_KEY  # a longer key counts as secret without a check
            or is_secret_key(key)
        ):
            self.redactor.add(value)
        else:
            self.redactor.add(*url_secrets(value))

    def _read_file(self, path: str, location: _Location) -> str:
        full = self.folder / os.path.expanduser(path)
        try:
            with full.open(encoding="utf-8-sig") as file:
                value = file.read(_MAX_FILE + 1)
        except FileNotFoundError:
            raise location.error(
                f"there is no file {full}",
                "Create it, or correct the path; it is relative to the spec's folder",
            ) from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise location.error(
                f"{full} cannot be read: {reason}", "Use a readable text file"
            ) from None
        if len(value) > _MAX_FILE:
            raise location.error(
                f"{full} has more than {_MAX_FILE:,} characters",
                "Use a file that contains only this value",
            )
        value = value.rstrip("\r\n")
        self.redactor.add(value)
        return value

    def _resolve_reference(self, match: re.Match[str], location: _Location) -> Any:
        name, path = match["name"], match["property"]
        self._followed += 1
        if self._followed > _MAX_REFERENCES:
            raise location.error(
                f"this value needs more than {_MAX_REFERENCES} references",
                "Write the value literally: nested references grow exponentially",
            )
        plugin = self.plugins.get(name)
        if plugin is None:
            raise location.error(
                f"{match[0]} refers to {name!r}, but no document has that name",
                f"{did_you_mean(name, self.plugins)} Documents here: "
                f"{', '.join(sorted(self.plugins)) or 'none'}",
            )
        if path == "connection" and "connection" not in plugin.spec:
            if plugin.kind != "destination":
                raise location.error(
                    f"{name} is a {plugin.kind} and has no connection",
                    "Refer to a destination",
                )
            return f"strandline://{name}"
        keys = tuple(path.split("."))
        if (plugin.where, keys) in location.through:
            raise location.error(f"{match[0]} refers to itself", "Write the value in one location")
        if len(location.through) >= _MAX_DEPTH:
            what = f"this value needs a chain of more than {_MAX_DEPTH} references"
            raise location.error(what, "Refer to the last document of the chain")
        for prefix in ((), ("spec",)):
            value = _lookup(plugin.spec, (*prefix, *keys))
            if isinstance(value, str | int | float):
                break
        else:
            raise location.error(
                f"{name} has no property {path!r} that is a single value",
                f"Set `{path}` in its spec, or refer to another property",
            )
        if not isinstance(value, str):
            return value
        target = _Location(
            plugin.where, ("spec", *prefix, *keys), (*location.through, (plugin.where, keys))
        )
        whole = _REFERENCE.fullmatch(value)
        return self._resolve_reference(whole, target) if whole else self._expand_text(value, target)


@dataclass(frozen=True)
class _Location:
    """The location of a value, and the references that led to it."""

    where: str
    keys: tuple[str | int, ...]
    through: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_secret(self) -> bool:
        return any(isinstance(key, str) and is_secret_key(key) for key in self.keys)

    def error(self, what: str, remedy: str) -> SpecError:
        path = key_path(self.keys)
        return SpecError(
            what, where=f"{self.where}, {path}" if path else self.where, remedy=remedy.strip()
        )


def list_names(value: Any, is_name: bool = False) -> Iterator[str]:
    """Yields the names in an expanded document, such as user, host and table names."""
    if isinstance(value, dict):
        for key, item in value.items():
            if is_name:
                yield str(key)
            if not is_secret_key(str(key)):
                yield from list_names(item, is_name or key in _NAMES)
    elif isinstance(value, list):
        for item in value:
            yield from list_names(item, is_name)
    elif is_name and isinstance(value, str | int):
        yield str(value)


def key_path(keys: Sequence[str | int]) -> str:
    """Formats a key path, such as ``spec.tables[0]`` or ``table_options["a.b"].lookback``."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        elif re.fullmatch(r"[\w*-]+", key):
            text += f".{key}" if text else key
        else:
            text += f'["{key}"]'
    return text


def _find_closing_brace(text: str, start: int, location: _Location) -> int:
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "${" else -1
        if depth == 0:
            return brace.start()
    raise location.error("`${` without `}`", "Close it; $${ is a literal ${")


def _lookup(spec: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return spec

"""Variables, files and references in a spec's values.

``${VAR}``, ``${VAR:-default}``, ``${file:PATH}``, ``@@plugins.<name>.<property>``; ``$${`` is a
literal ``${``. Values are expanded after YAML is parsed, and the contents of variables and files
are not parsed again: a password may contain `#`, quotes or `${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loader.error_report import did_you_mean
from loader.errors import SpecError
from loader.spec.redaction import Redactor, is_secret_key, url_secrets

_REFERENCE = re.compile(
    r"@@plugins\.(?P<name>[A-Za-z0-9_-]+)\.(?P<property>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", re.ASCII
)
_MOST_REFERENCES = 1_000  # for one value; of variables as well
_DEEPEST = 50  # defaults in defaults, references to references
_LONGEST_FILE = 1_000_000  # characters: a secret, a key, a list of tables
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?\Z", re.ASCII | re.DOTALL)
_SPECIAL = re.compile(r"\$\$\{|\$\{|@@plugins\.")
_BRACE = re.compile(r"\$\{|\}")
# What stands before a password, read backwards: an expression that is tied to the end of a text
# would be tried at each of its letters.
_PASSWORD_FOLLOWS = re.compile(r":[^\s/@:]*//:")
_KEY_BEFORE = re.compile(r"[\"'{]?\s*=\s*([\w.-]+)")
_LONGEST_KEY = 1_000
# Keys whose values stay readable, though a secret may have the same value.
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
    """A document as ``@@plugins`` sees it.

    Attributes:
        where: the file, the document and its name.
        kind: ``source`` or ``destination``.
        spec: its outer `spec`, not expanded.
    """

    where: str
    kind: str
    spec: Mapping[str, Any]


@dataclass
class Expansion:
    """Expands the values of one file; collects errors instead of stopping at the first.

    Attributes:
        env: the variables.
        folder: the folder that the paths of ``${file:…}`` are relative to.
        redactor: learns the secrets among the values that come from outside.
        plugins: the file's documents by name.
        errors: one for each value that could not be expanded.
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
        """Returns the value with everything in it expanded; dicts and lists are copied.

        Args:
            value: as parsed from YAML.
            where: the document, for errors.
            keys: the path of keys to `value`.
        """
        if isinstance(value, dict):
            return {key: self.expand(item, where, (*keys, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, where, (*keys, i)) for i, item in enumerate(value)]
        if isinstance(value, str):
            return self._scalar(value, _Place(where, tuple(keys)))
        return value

    def _scalar(self, text: str, place: _Place) -> Any:
        self._followed = self._variables = self._depth = 0
        try:
            whole = _REFERENCE.fullmatch(text)
            if whole:
                return self._reference(whole, place)
            return self._text(text, place)
        except SpecError as error:
            self.errors.append(error)
            return text

    def _text(self, text: str, place: _Place) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise place.error(
                f"this value nests more than {_DEEPEST} defaults or references",
                "Write the value out",
            )
        pieces: list[str] = []
        position = 0
        while special := _SPECIAL.search(text, position):
            pieces.append(text[position : special.start()])
            position = special.start()
            if special[0] == "$${":
                pieces.append("${")
                position += 3
            elif special[0] == "${":
                end = _closing(text, position + 2, place)
                pieces = ["".join(pieces)]
                pieces.append(self._variable(text[position + 2 : end], pieces[0], place))
                position = end + 1
            elif reference := _REFERENCE.match(text, position):
                pieces.append(str(self._reference(reference, place)))
                position = reference.end()
            else:
                pieces.append(special[0])
                position = special.end()
        self._depth -= 1
        return "".join([*pieces, text[position:]])

    def _variable(self, inner: str, before: str, place: _Place) -> str:
        self._variables += 1
        if self._variables > _MOST_REFERENCES:
            raise place.error(
                f"this value has more than {_MOST_REFERENCES:,} variables",
                "Write it out, or put all of it into one variable or file",
            )
        if inner.startswith("file:"):
            return self._file(self._text(inner[len("file:") :], place), place)
        found = _VARIABLE.match(inner)
        if found is None:
            raise place.error(
                "`${…}` holds neither a variable's name nor `file:PATH`",
                "Write ${VAR}, ${VAR:-default} or ${file:PATH}; $${ is a literal ${",
            )
        name, default = found["name"], found["default"]
        # As in a shell, :- stands in for an empty variable too.
        if name in self.env and (self.env[name] or default is None):
            value = self.env[name]
            self._register(value, name, before, place)
            return value
        if default is not None:
            return self._text(default, place)
        hint = did_you_mean(name, self.env)
        raise place.error(
            f"the environment variable {name} is not set",
            f"{hint} Set it, or give a default: ${{{name}:-…}}".strip(),
        )

    def _register(self, value: str, name: str, before: str, place: _Place) -> None:
        backwards = before[::-1]
        key = named[1][::-1] if (named := _KEY_BEFORE.match(backwards)) else ""
        if (
            place.secret
            or is_secret_key(name)
            or _PASSWORD_FOLLOWS.match(backwards)
            or len(key) > _LONGEST_KEY  # not looked at
            or is_secret_key(key)
        ):
            self.redactor.add(value)
        else:
            self.redactor.add(*url_secrets(value))

    def _file(self, path: str, place: _Place) -> str:
        full = self.folder / os.path.expanduser(path)
        try:
            with full.open(encoding="utf-8-sig") as file:
                value = file.read(_LONGEST_FILE + 1)
        except FileNotFoundError:
            raise place.error(
                f"there is no file {full}",
                "Create it, or correct the path; it is relative to the spec's folder",
            ) from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise place.error(
                f"{full} cannot be read: {reason}", "Name a readable text file"
            ) from None
        if len(value) > _LONGEST_FILE:
            raise place.error(
                f"{full} holds more than {_LONGEST_FILE:,} characters",
                "Name a file that holds this one value",
            )
        value = value.rstrip("\r\n")
        self.redactor.add(value)
        return value

    def _reference(self, found: re.Match[str], place: _Place) -> Any:
        name, path = found["name"], found["property"]
        self._followed += 1
        if self._followed > _MOST_REFERENCES:
            raise place.error(
                f"this value follows more than {_MOST_REFERENCES} references",
                "Write the value out: references to references multiply",
            )
        plugin = self.plugins.get(name)
        if plugin is None:
            raise place.error(
                f"{found[0]} refers to {name!r}, and no document has that name",
                f"{did_you_mean(name, self.plugins)} Documents here: "
                f"{', '.join(sorted(self.plugins)) or 'none'}",
            )
        if path == "connection" and "connection" not in plugin.spec:
            if plugin.kind != "destination":
                raise place.error(
                    f"{name} is a {plugin.kind} and has no connection",
                    "Refer to a destination",
                )
            return f"strandline://{name}"
        keys = tuple(path.split("."))
        if (plugin.where, keys) in place.through:
            raise place.error(f"{found[0]} refers to itself", "Write the value in one place")
        if len(place.through) >= _DEEPEST:
            what = f"this value follows more than {_DEEPEST} references, each to the next"
            raise place.error(what, "Refer to the last one")
        for prefix in ((), ("spec",)):
            value = _lookup(plugin.spec, (*prefix, *keys))
            if isinstance(value, str | int | float):
                break
        else:
            raise place.error(
                f"{name} has no property {path!r} that is a single value",
                f"Set `{path}` in its spec, or refer to another property",
            )
        if not isinstance(value, str):
            return value
        there = _Place(
            plugin.where, ("spec", *prefix, *keys), (*place.through, (plugin.where, keys))
        )
        whole = _REFERENCE.fullmatch(value)
        return self._reference(whole, there) if whole else self._text(value, there)


@dataclass(frozen=True)
class _Place:
    """Where a value is, and through which references it was reached."""

    where: str
    keys: tuple[str | int, ...]
    through: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def secret(self) -> bool:
        return any(isinstance(key, str) and is_secret_key(key) for key in self.keys)

    def error(self, what: str, remedy: str) -> SpecError:
        path = key_path(self.keys)
        return SpecError(
            what, where=f"{self.where}, {path}" if path else self.where, remedy=remedy.strip()
        )


def names_in(value: Any, is_name: bool = False) -> Iterator[str]:
    """Yields the names in an expanded document: users, hosts, tables, columns, files."""
    if isinstance(value, dict):
        for key, item in value.items():
            if is_name:
                yield str(key)
            if not is_secret_key(str(key)):
                yield from names_in(item, is_name or key in _NAMES)
    elif isinstance(value, list):
        for item in value:
            yield from names_in(item, is_name)
    elif is_name and isinstance(value, str | int):
        yield str(value)


def key_path(keys: Sequence[str | int]) -> str:
    """Formats keys as people write them: ``spec.tables[0]``, ``table_options["a.b"].lookback``."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        elif re.fullmatch(r"[\w*-]+", key):
            text += f".{key}" if text else key
        else:
            text += f'["{key}"]'
    return text


def _closing(text: str, start: int, place: _Place) -> int:
    """Returns the position of the brace that closes the one before `start`; ``${`` nests."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "${" else -1
        if depth == 0:
            return brace.start()
    raise place.error("`${` without `}`", "Close it; $${ is a literal ${")


def _lookup(spec: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return spec

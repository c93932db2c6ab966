"""Parses a spec's YAML. Reads cursors and secrets as strings, and rejects duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import yaml

from loader.errors import SpecError
from loader.spec.redaction import is_secret_key

_MAX_VALUES = 100_000  # values after aliases are expanded; even a thousand tables need fewer
_MAX_DIGITS = 1_000
_TAG_MISMATCH = "this value does not have the type of its `!!` tag"
TEXT_KEYS = frozenset({"initial_cursor"})
"""Keys whose values are always read as strings, like the values of secret keys.

YAML would parse 2025-01-01 as a date, 1.50 as a float and the password 0123 as the number 83.
"""


@dataclass(frozen=True)
class Document:
    """One YAML document.

    Attributes:
        number: the document's position in the file, from 1.
        value: the document's content: dicts with string keys, lists and scalars.
    """

    number: int
    value: Any


def read_documents(text: str, where: str) -> list[Document]:
    """Returns the documents in a YAML file, except empty documents.

    Raises:
        SpecError: if the text is not valid YAML, repeats a key or has a recursive alias. The error
            states the line.
    """
    documents = []
    try:
        loader = _Loader(text)
        number = 0
        while loader.check_node():
            number += 1
            node = loader.get_node()
            assert node is not None  # check_node returned True
            refuse_large_aliases(node)
            value = loader.construct_document(node)
            if value is not None:
                documents.append(Document(number, value))
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, where) from None
    except RecursionError:
        raise SpecError(
            "nested too deeply to be read", where=where, remedy="Nest it less deeply"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(
            f"not YAML: the character {hex(ord(text[error.position]))} is not allowed",
            where=f"{where}:{line}",
            remedy="Remove it, or write it as an escape in double quotes",
        ) from None
    return documents


class _Loader(yaml.SafeLoader):
    """A YAML loader with the scalar types of YAML 1.2, as in CloudQuery.

    YAML 1.2 has no timestamps, no base-60 numbers (`22:22` is a string), and no octal numbers that
    start with a zero. Only true and false are booleans, so the country code `no` is a string.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as PyYAML declares it

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError):  # for example, `!!int abc`
            raise _tag_mismatch(node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):  # for example, `!!map [a]`
            raise _tag_mismatch(node)
        _refuse_duplicates(node)
        self.flatten_mapping(node)
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a string", key_node.start_mark
                )
            key = key_node.value
            is_text = key in TEXT_KEYS or is_secret_key(key)
            mapping[key] = (
                self._construct_text(value_node)
                if is_text
                else self.construct_object(value_node, deep=True)
            )
        return mapping

    def _construct_text(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:null":
            if not node.tag.startswith("tag:yaml.org,2002:"):
                return self.construct_object(node)
            return node.value
        return self.construct_object(node, deep=True)


def _tag_mismatch(node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, _TAG_MISMATCH, node.start_mark)


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > _MAX_DIGITS:
        raise yaml.constructor.ConstructorError(
            None, None, f"a number of {len(text):,} digits", node.start_mark
        )
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


_TAG = "tag:yaml.org,2002:"
for _name, _pattern, _first in (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", "tTfF"),
    ("int", r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z", "-+0123456789"),
    (
        "float",
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
        "-+0123456789.",
    ),
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("merge", r"<<\Z", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), list(_first))
_Loader.add_constructor(f"{_TAG}int", _int)


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == f"{_TAG}merge":
            continue
        if key_node.value in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key `{key_node.value}` appears twice here", key_node.start_mark
            )
        seen.add(key_node.value)


def refuse_large_aliases(node: yaml.Node) -> None:
    """Rejects aliases that contain themselves, or that expand a few bytes to millions of values.

    Raises:
        yaml.MarkedYAMLError: if there is such an alias. The error contains its position.
    """
    sizes: dict[int, int | None] = {}  # None while the node's size is being computed

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            measured = sizes[id(node)]
            if measured is None:
                raise yaml.constructor.ConstructorError(
                    None, None, "an alias refers to a value that contains it", node.start_mark
                )
            return measured
        sizes[id(node)] = None
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        sizes[id(node)] = total = 1 + sum(map(size, children))
        if total > _MAX_VALUES and total > 10 * len(sizes):
            raise yaml.constructor.ConstructorError(
                None, None, f"its aliases expand to {total:,} values", node.start_mark
            )
        return total

    size(node)


def _not_yaml(error: yaml.MarkedYAMLError, where: str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
    problem, remedy = error.problem or "it cannot be parsed", "Correct the YAML there"
    # Replaces PyYAML's messages that quote part of the file, because it may contain a password.
    if problem == _TAG_MISMATCH:
        remedy = "Remove the tag: values need no tags"
    elif "undefined alias" in problem or "alias" in (error.context or ""):
        problem = "`*` begins an alias, but its anchor does not exist"
        remedy = "Put the value in quotes"
    elif "could not determine a constructor" in problem or "tag" in problem:
        problem = "`!` begins a tag, but this tag does not exist"
        remedy = "Put the value in quotes"
    elif "cannot start any token" in problem:
        remedy = "Put the value in quotes; indent with spaces, not tabs"
    elif "mapping values are not allowed" in problem:
        remedy = "Check the indentation; put a value that contains `: ` in quotes"
    elif "aliases expand to" in problem:
        remedy = "Write the values without aliases; the limit protects against exhausting memory"
    elif "a number of" in problem:
        remedy = "Put it in quotes if it is a string"
    elif "`kind` appears twice" in problem:
        remedy = "Begin each document with a line `---`"
    elif "twice" in problem:
        remedy = "Keep one of them"
    elif "expected <block end>" in problem:
        problem = "this line is indented differently from the lines above it"
        remedy = "Start all keys of one level in the same column"
    return SpecError(f"not valid YAML: {problem}", where=place, remedy=remedy)

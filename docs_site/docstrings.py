"""A griffe extension: prepares docstrings for mkdocstrings, which does not know Sphinx's roles."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)
"""Several names with one description, such as `rows, batches: the numbers of them.`"""


class Docstrings(griffe.Extension):
    """Replaces Sphinx's roles with code, and writes sections as griffe reads them."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r":(?:class|func|meth|mod):`[~.]?([^`]+)`", r"`\1`", obj.docstring.value)
            text = re.sub(r"``([^`]+)``", r"`\1`", text)
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
            obj.docstring.value = _SEVERAL.sub(_give_each_its_line, text)


def _give_each_its_line(found: re.Match[str]) -> str:
    indent, names, description = found.groups()
    return "\n".join(f"{indent}{name}: {description}" for name in names.split(", "))

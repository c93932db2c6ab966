"""Changes the data of a hand-written YAML file with as few edits as possible.

The rest stays byte for byte: comments, order, quotes, blank lines, anchors. The parser is the one
that dbt uses, so both read the same. Every result is parsed again and compared with what it should
say; if it differs, or a comment would be lost, the change is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from loader.codegen.merging import Path, same
from loader.codegen.yaml_edits import EditRefused, Edits
from loader.codegen.yaml_layout import Layout
from loader.errors import SpecError

# As in dbt: the C parser, if PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REMEDY = "Correct it, or delete the file to have it written again; nothing was changed"


class YamlText:
    """A text that holds one YAML mapping, or nothing yet.

    Args:
        where: the file, for errors.

    Raises:
        SpecError: if it is something else.
    """

    def __init__(self, text: str, where: str) -> None:
        self._mark = text[: text.startswith("\ufeff")]  # of files from Windows
        self.text = text.removeprefix(self._mark)
        self.layout = Layout(self.text)
        try:
            data = yaml.load(self.text, Loader=_Loader)
            same(data, data)  # ends, unless an alias refers to what it is part of
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise _not_yaml(error, where) from None
        if data is not None and not isinstance(data, dict):
            raise SpecError(
                "it is not a mapping, as a dbt properties file is", where=where, remedy=_REMEDY
            )
        self.data: dict[Any, Any] = data or {}

    def comments(self) -> Counter[str]:
        """Counts the text's comments."""
        return Counter(self.text[start:end].rstrip() for start, end in self.layout.comments)

    def has_comment(self, path: Path, removed: bool) -> bool:
        """Whether there is a comment within what `path` names.

        Args:
            removed: also counts a comment at the end of its last line.
        """
        found = self.layout.entry(self.data, path)
        if found is None:
            return False
        start, node = found
        end = self.layout.end(node)
        return self.layout.has_comment(start, self.layout.line_end(end) if removed else end)

    def brought_to(self, target: Mapping[Any, Any]) -> str:
        """Returns the text, edited to hold `target`.

        Raises:
            EditRefused: if that takes more than adding, replacing and removing entries.
        """
        if same(self.data, target):
            return self._mark + self.text
        try:
            result = YamlText(Edits(self.layout).bringing(self.data, target), "the result")
        except SpecError:
            raise EditRefused from None
        if not same(result.data, target) or self.comments() - result.comments():
            raise EditRefused
        return self._mark + result.text


def _not_yaml(error: Exception, where: str) -> SpecError:
    mark = getattr(error, "problem_mark", None)
    place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
    problem = getattr(error, "problem", None) or "it cannot be parsed"
    if isinstance(error, RecursionError):
        problem = "it is nested too deeply, or an alias refers to what it is part of"
    return SpecError(f"not YAML that can be read: {problem}", where=place, remedy=_REMEDY)

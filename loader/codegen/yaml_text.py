"""A YAML file as a person wrote it, brought to say something else by as few edits as can be.

What stays is untouched, byte for byte: comments, order, quotes, blank lines, anchors. The parser
is the one that dbt reads with, so that both see the same. Every result is parsed again and
compared with what it should say; where it differs, or a comment would be lost, it is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from loader.codegen.merging import Path, same
from loader.codegen.yaml_edits import Edits, Refused
from loader.codegen.yaml_layout import Layout
from loader.errors import SpecError

# As dbt has it: the C parser, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REMEDY = "Correct it, or delete the file to have it written anew; nothing was changed"


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
                "it holds no keys, as a file of dbt properties does", where=where, remedy=_REMEDY
            )
        self.data: dict[Any, Any] = data or {}

    def comments(self) -> Counter[str]:
        """The comments, each as often as it stands there."""
        return Counter(self.text[start:end].rstrip() for start, end in self.layout.comments)

    def commented(self, path: Path, removed: bool) -> bool:
        """Whether a comment stands within what `path` names.

        Args:
            removed: the comment at the end of its last line counts as well.
        """
        found = self.layout.entry(self.data, path)
        if found is None:
            return False
        start, node = found
        end = self.layout.end(node)
        return self.layout.commented(start, self.layout.line_end(end) if removed else end)

    def brought_to(self, target: Mapping[Any, Any]) -> str:
        """The text that says `target`.

        Raises:
            Refused: where that takes more than adding, replacing and removing entries.
        """
        if same(self.data, target):
            return self._mark + self.text
        try:
            result = YamlText(Edits(self.layout).bringing(self.data, target), "the result")
        except SpecError:
            raise Refused from None
        if not same(result.data, target) or self.comments() - result.comments():
            raise Refused
        return self._mark + result.text


def _not_yaml(error: Exception, where: str) -> SpecError:
    mark = getattr(error, "problem_mark", None)
    place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
    problem = getattr(error, "problem", None) or "it cannot be parsed"
    if isinstance(error, RecursionError):
        problem = "it is nested too deeply, or an alias refers to what it is part of"
    return SpecError(f"not YAML that can be read: {problem}", where=place, remedy=_REMEDY)

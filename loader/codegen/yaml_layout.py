"""Locates the parts of a YAML text: entries, their ends, dashes, comments."""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import yaml

from loader.codegen.merging import Path, identities

_BLOCK_SCALARS = ("|", ">")


def in_brackets(node: yaml.Node) -> bool:
    """Whether a mapping or a list is written with brackets."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


class _Composer(yaml.SafeLoader):
    """Composes nodes with their positions; an alias becomes a scalar at its own position."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            return yaml.ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


class Layout:
    """The nodes of a YAML text, found by position or by path."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"

    @cached_property
    def root(self) -> yaml.Node | None:
        """The document's node; None if the text is empty or has only comments."""
        node: yaml.Node | None = _Composer(self.text).get_single_node()
        return node

    @cached_property
    def comments(self) -> list[tuple[int, int]]:
        """The start and end of comments, in order: from a # after a blank, outside scalars."""
        scalars = sorted(self._scalars(self.root))
        found: list[tuple[int, int]] = []
        place = 0
        while (place := self.text.find("#", place)) >= 0:
            before = bisect.bisect_right(scalars, (place, len(self.text))) - 1
            if before >= 0 and place < scalars[before][1]:
                place = scalars[before][1]
            elif place == 0 or self.text[place - 1].isspace():
                found.append((place, self.line_end(place)))
                place = found[-1][1]
            else:
                place += 1
        return found

    def has_comment(self, start: int, end: int) -> bool:
        """Whether a comment begins between two positions."""
        place = bisect.bisect_left(self.comments, (start, start))
        return place < len(self.comments) and self.comments[place][0] < end

    def entry(self, data: Any, path: Path) -> tuple[int, yaml.Node] | None:
        """Returns where the entry at a path begins, and the node of its value.

        Args:
            data: the data of the text.

        Returns:
            None if the text itself has no such entry: it comes from an alias or a merged mapping.
        """
        node, start = self.root, 0
        for depth, name in enumerate(path):
            if isinstance(node, yaml.MappingNode) and isinstance(data, Mapping):
                pairs = {key.value: (key, value) for key, value in node.value}
                if name not in pairs or name not in data:
                    return None
                key, node = pairs[name]
                start, data = key.start_mark.index, data[name]
            elif isinstance(node, yaml.SequenceNode) and isinstance(data, list):
                names = identities(path[:depth], data)
                if name not in names:
                    return None
                place = names.index(name)
                node, data = node.value[place], data[place]
                start = node.start_mark.index
            else:
                return None
        return (start, node) if node is not None else None

    def end(self, node: yaml.Node) -> int:
        """Returns where a node's own text ends, without blanks, comments or lines after it."""
        start, end = node.start_mark.index, int(node.end_mark.index)
        if isinstance(node, yaml.ScalarNode):
            if node.style in _BLOCK_SCALARS:
                return int(start + len(self.text[start:end].rstrip()))
            return end
        if in_brackets(node) or not node.value:
            return end
        last = node.value[-1]
        return self.end(last[1] if isinstance(node, yaml.MappingNode) else last)

    def dash(self, item: yaml.Node) -> int | None:
        """Returns where the dash of a block list's item is; None if it cannot be found."""
        start = item.start_mark.index
        line = self.line_start(start)
        found = re.fullmatch(r"[ \t]*(?:-[ \t]+)*(-)[ \t]+", self.text[line:start])
        while found is None and line > 0:  # then it is in a line above
            end = line - 1
            line = self.line_start(end)
            found = re.fullmatch(r"[ \t]*(?:-[ \t]+)*(-)(?:[ \t]+#.*|\s*)", self.text[line:end])
        return line + found.start(1) if found else None

    def column(self, place: int) -> int:
        """Returns how far a position is from the start of its line."""
        return place - self.line_start(place)

    def line_start(self, place: int) -> int:
        """Returns where a position's line begins."""
        return self.text.rfind("\n", 0, place) + 1

    def line_end(self, place: int) -> int:
        """Returns where a position's line ends, before its line break."""
        end = self.text.find("\n", place)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > place and self.text[end - 1] == "\r" else end

    def next_line(self, place: int) -> int:
        """Returns where the line after a position's line begins."""
        end = self.text.find("\n", place)
        return len(self.text) if end < 0 else end + 1

    def _scalars(self, node: yaml.Node | None) -> list[tuple[int, int]]:
        if node is None:
            return []
        if isinstance(node, yaml.ScalarNode):
            start, end = node.start_mark.index, self.end(node)
            # The | of a block scalar may be followed by a comment.
            return [(self.line_end(start) if node.style in _BLOCK_SCALARS else start, end)]
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        else:
            parts = node.value
        return [span for part in parts for span in self._scalars(part)]

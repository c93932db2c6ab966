"""Edits the text of a YAML file so that it contains given data, with as few changes as possible.

Comments, order, quotes, blank lines and anchors are preserved. It uses the same parser as dbt.
Every result is parsed again. The edit is refused if the result differs from the data, or if a
comment would be lost.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import yaml

from loader.codegen.merging import Path, identities, is_keyed, same
from loader.codegen.yaml_style import flow, in_line, lines
from loader.errors import SpecError

_BLOCK_SCALARS = ("|", ">")


def in_brackets(node: yaml.Node) -> bool:
    """Returns whether a mapping or a list is in flow style (in brackets)."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


class _Composer(yaml.SafeLoader):
    """Composes nodes with their positions. An alias becomes a scalar at the alias's position."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            return yaml.ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


class Layout:
    """The nodes of a YAML text, with their positions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"

    @cached_property
    def root(self) -> yaml.Node | None:
        """The document's root node; None if the text is empty or contains only comments."""
        node: yaml.Node | None = _Composer(self.text).get_single_node()
        return node

    @cached_property
    def comments(self) -> list[tuple[int, int]]:
        """The start and end of each comment, in order. A # outside of scalars starts a comment."""
        scalars = sorted(self._scalars(self.root))
        comments: list[tuple[int, int]] = []
        position = 0
        while (position := self.text.find("#", position)) >= 0:
            before = bisect.bisect_right(scalars, (position, len(self.text))) - 1
            if before >= 0 and position < scalars[before][1]:
                position = scalars[before][1]
            elif position == 0 or self.text[position - 1].isspace():
                comments.append((position, self.line_end(position)))
                position = comments[-1][1]
            else:
                position += 1
        return comments

    def has_comment(self, start: int, end: int) -> bool:
        """Returns whether a comment starts between two positions."""
        index = bisect.bisect_left(self.comments, (start, start))
        return index < len(self.comments) and self.comments[index][0] < end

    def entry(self, data: Any, path: Path) -> tuple[int, yaml.Node] | None:
        """Returns the start of the entry at a path, and the node of its value.

        Returns None if the entry comes from an alias or a merged mapping.
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
                index = names.index(name)
                node, data = node.value[index], data[index]
                start = node.start_mark.index
            else:
                return None
        return (start, node) if node is not None else None

    def end(self, node: yaml.Node) -> int:
        """Returns the end of a node's text, without trailing white space or comments."""
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
        """Returns the position of the dash before a list item, or None if it cannot be found."""
        start = item.start_mark.index
        line = self.line_start(start)
        match = re.fullmatch(r"[ \t]*(?:-[ \t]+)*(-)[ \t]+", self.text[line:start])
        while match is None and line > 0:  # the dash may be in a line above
            end = line - 1
            line = self.line_start(end)
            match = re.fullmatch(r"[ \t]*(?:-[ \t]+)*(-)(?:[ \t]+#.*|\s*)", self.text[line:end])
        return line + match.start(1) if match else None

    def column(self, position: int) -> int:
        return position - self.line_start(position)

    def line_start(self, position: int) -> int:
        return self.text.rfind("\n", 0, position) + 1

    def line_end(self, position: int) -> int:
        """Returns the end of the line that contains a position, excluding the line break."""
        end = self.text.find("\n", position)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > position and self.text[end - 1] == "\r" else end

    def next_line(self, position: int) -> int:
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end + 1

    def _scalars(self, node: yaml.Node | None) -> list[tuple[int, int]]:
        if node is None:
            return []
        if isinstance(node, yaml.ScalarNode):
            start, end = node.start_mark.index, self.end(node)
            # A comment may follow the | of a block scalar, so the scalar's text starts after this
            # line.
            return [(self.line_end(start) if node.style in _BLOCK_SCALARS else start, end)]
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        else:
            parts = node.value
        return [span for part in parts for span in self._scalars(part)]


# The keys of lists whose items are separated by blank lines.
_SPACED = frozenset({"sources", "tables", "models"})


class EditRefused(Exception):
    """Raised if the text cannot be edited to contain the data without losing other content."""


class Edits:
    """Collects the edits that change a text from its current data to new data."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._edits: list[tuple[tuple[int, int, bool], str]] = []

    def apply(self, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> str:
        root, text = self.layout.root, self.layout.text
        if root is None or isinstance(root, yaml.ScalarNode):
            end = len(text)
            gap = [""] if text and not text.endswith("\n") else []
            self._add_edit(end, end, self._format_block([*gap, *lines(dict(new))], 0))
        elif not self._edit_inside(root, old, new, ()):
            raise EditRefused
        pieces, position = [], 0
        for (start, end, _), written in sorted(self._edits, key=lambda edit: edit[0]):
            if start < position:
                raise EditRefused
            pieces += [text[position:start], written]
            position = end
        return "".join([*pieces, text[position:]])

    def _mapping(
        self, node: yaml.MappingNode, old: Mapping[Any, Any], new: Mapping[Any, Any], path: Path
    ) -> bool:
        """Edits the entries of a mapping. Returns False if it must be rewritten instead."""
        pairs = {key.value: (key, value) for key, value in node.value}
        kept = [key for key in new if key in old and key in pairs]
        removed_keys = [key for key in old if key not in new]
        first = node.value[0][0].start_mark.index
        if self._needs_rewrite(node, first, kept, removed_keys, new):
            return False
        for key in removed_keys:
            if key not in pairs:
                raise EditRefused  # the key comes from another mapping, which `<<` merges
            self._remove(node.value, [k.value for k, _ in node.value].index(key))
        for key in kept:
            if not same(old[key], new[key]):
                self._change_pair(node, pairs[key], old[key], new[key], (*path, str(key)))
        column = self.layout.column(first)
        previous = None
        for key, value in new.items():
            if key in kept:
                previous = pairs[key][1]
            elif in_brackets(node):
                self._insert_in_flow(previous, first, flow({key: value})[1:-1])
            else:
                self._insert(previous, first, lines({key: value}), column)
        return True

    def _sequence(
        self, node: yaml.SequenceNode, old: list[Any], new: list[Any], path: Path
    ) -> bool:
        """Edits the items of a list. Returns False if the list must be rewritten instead."""
        names = identities(path, old)
        items = dict(zip(names, zip(node.value, old, strict=True), strict=True))
        wanted = dict(zip(identities(path, new), new, strict=True))
        kept = [name for name in wanted if name in items]
        removed_keys = [place for place, name in enumerate(names) if name not in wanted]
        first = (
            node.value[0].start_mark.index if in_brackets(node) else self._find_dash(node.value[0])
        )
        if self._needs_rewrite(node, first, kept, removed_keys, new):
            return False
        for place in removed_keys:
            self._remove([(item, item) for item in node.value], place, listed=True)
        for name in kept:
            item, value = items[name]
            if not same(value, wanted[name]):
                self._change_item(node, item, value, wanted[name], (*path, name))
        previous = None
        for name, value in wanted.items():
            if name in kept:
                previous = items[name][0]
            elif in_brackets(node):
                self._insert_in_flow(previous, first, flow(value))
            else:
                column, spaced = self.layout.column(first), path[-1] in _SPACED
                self._insert(previous, first, lines([value]), column, spaced)
        return True

    def _needs_rewrite(
        self,
        node: yaml.CollectionNode,
        first: int,
        kept: Sequence[Any],
        removed_keys: Sequence[Any],
        new: Sequence[Any] | Mapping[Any, Any],
    ) -> bool:
        """Returns whether the entries of a container cannot be edited, so it must be rewritten."""
        if in_brackets(node):
            return bool(removed_keys) or not kept
        return not new or not (kept or self._begins_line(first))

    def _edit_inside(self, node: yaml.Node, old: Any, new: Any, path: Path) -> bool:
        """Edits the entries of a container. Returns False if it must be rewritten instead."""
        if not node.value:
            return False
        if isinstance(node, yaml.MappingNode) and isinstance(new, Mapping):
            return self._mapping(node, old, new, path)
        if isinstance(node, yaml.SequenceNode) and isinstance(new, list) and is_keyed(path):
            return self._sequence(node, old, new, path)
        return False

    def _change_pair(
        self,
        parent: yaml.MappingNode,
        pair: tuple[yaml.Node, yaml.Node],
        old: Any,
        new: Any,
        path: Path,
    ) -> None:
        key, value = pair
        if self._edit_inside(value, old, new, path):
            return
        scalar = isinstance(value, yaml.ScalarNode)
        in_flow = in_brackets(parent) or (in_brackets(value) and bool(value.value))
        written = flow(new) if in_flow else in_line(key.value, new)
        start, end = value.start_mark.index, self.layout.end(value)
        if written is not None and (in_flow or scalar):
            blank = "" if self.layout.text[start - 1].isspace() else " "
            self._add_edit(start, end, blank + written)
            return
        colon = self.layout.text.index(":", key.end_mark.index) + 1
        below = self._format_block(["", *lines({key.value: new})[1:]], key.start_mark.column)
        self._add_edit(colon, end, f" {written}" if written else below.rstrip("\r\n"))

    def _change_item(
        self, parent: yaml.SequenceNode, node: yaml.Node, old: Any, new: Any, path: Path
    ) -> None:
        if self._edit_inside(node, old, new, path):
            return
        start, end = node.start_mark.index, self.layout.end(node)
        written = [line[2:] for line in lines([new])]
        in_block = self._join_after(written, node.start_mark.column)
        self._add_edit(start, end, flow(new) if in_brackets(parent) else in_block)

    def _insert(
        self,
        previous: yaml.Node | None,
        first: int,
        written: list[str],
        column: int,
        spaced: bool = False,
    ) -> None:
        """Inserts lines after `previous`, or before the first entry if there is none."""
        if previous is not None:
            place = self.layout.next_line(self.layout.end(previous))
            text = self._format_block([*([""] if spaced else []), *written], column)
            if not self.layout.text[:place].endswith("\n"):
                text = self.layout.newline + text.removesuffix(self.layout.newline)
            self._add_edit(place, place, text)
            return
        text = self._format_block([*written, *([""] if spaced else [])], column)
        if self._begins_line(first):
            first = self.layout.line_start(first)
        else:
            text = text[column:] + " " * column
        self._add_edit(first, first, text, before=True)

    def _insert_in_flow(self, previous: yaml.Node | None, first: int, written: str) -> None:
        if previous is not None:
            place = self.layout.end(previous)
            self._add_edit(place, place, f", {written}")
        else:
            self._add_edit(first, first, f"{written}, ", before=True)

    def _remove(
        self, entries: list[tuple[yaml.Node, yaml.Node]], place: int, listed: bool = False
    ) -> None:
        """Removes the lines of an entry in block style, but not the comments above the entry."""
        first, last = entries[place]
        start = self._find_dash(first) if listed else first.start_mark.index
        if self._begins_line(start):
            line = self.layout.line_start(start)
            self._add_edit(line, self.layout.next_line(self.layout.end(last)), "")
        # The first entry of a list item is on the line of the dash. The next entry moves there.
        elif place + 1 < len(entries) and not listed:
            self._add_edit(start, entries[place + 1][0].start_mark.index, "")
        else:
            raise EditRefused

    def _begins_line(self, place: int) -> bool:
        return not self.layout.text[self.layout.line_start(place) : place].strip()

    def _find_dash(self, item: yaml.Node) -> int:
        found = self.layout.dash(item)
        if found is None:
            raise EditRefused
        return found

    def _format_block(self, written: list[str], column: int) -> str:
        """Indents lines to a column and joins them with line breaks. Empty lines stay empty."""
        indented = (" " * column + line if line else "" for line in written)
        return "".join(line + self.layout.newline for line in indented)

    def _join_after(self, written: list[str], column: int) -> str:
        return self._format_block(written, column)[column:].removesuffix(self.layout.newline)

    def _add_edit(self, start: int, end: int, text: str, before: bool = False) -> None:
        # At the same position, an insertion after the previous entry precedes an insertion before
        # the next entry.
        self._edits.append(((start, end, before), text))


# Like dbt, uses the C parser if PyYAML has it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REMEDY = "Correct the file, or delete it, so that codegen writes it again; nothing was changed"


class YamlText:
    """A text that is empty or contains one YAML mapping.

    Raises a SpecError if the text is not valid YAML, or contains anything but a mapping.
    """

    def __init__(self, text: str, where: str) -> None:
        # Some Windows editors write a byte order mark at the start.
        self._mark = text[: text.startswith("\ufeff")]
        self.text = text.removeprefix(self._mark)
        self.layout = Layout(self.text)
        try:
            data = yaml.load(self.text, Loader=_Loader)
            same(data, data)  # raises RecursionError if an alias refers to its own container
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise _not_yaml(error, where) from None
        if data is not None and not isinstance(data, dict):
            raise SpecError(
                "it is not a mapping, unlike a dbt properties file", where=where, remedy=_REMEDY
            )
        self.data: dict[Any, Any] = data or {}

    def comments(self) -> Counter[str]:
        """Counts the occurrences of each comment in the text."""
        return Counter(self.text[start:end].rstrip() for start, end in self.layout.comments)

    def has_comment(self, path: Path, removed: bool) -> bool:
        """Returns whether the entry at `path` contains a comment.

        Args:
            removed: whether to include a comment at the end of the last line.
        """
        entry = self.layout.entry(self.data, path)
        if entry is None:
            return False
        start, node = entry
        end = self.layout.end(node)
        return self.layout.has_comment(start, self.layout.line_end(end) if removed else end)

    def update_to(self, target: Mapping[Any, Any]) -> str:
        """Returns the text, edited so that it contains the data `target`.

        Raises EditRefused if adding, replacing and removing entries is not enough.
        """
        if same(self.data, target):
            return self._mark + self.text
        try:
            result = YamlText(Edits(self.layout).apply(self.data, target), "the result")
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
        problem = "it is nested too deeply, or an alias refers to its own container"
    return SpecError(f"not valid YAML: {problem}", where=place, remedy=_REMEDY)

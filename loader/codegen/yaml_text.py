"""Changes the data of a hand-written YAML file with as few edits as possible.

The rest stays byte for byte: comments, order, quotes, blank lines, anchors. The parser is the one
that dbt uses, so both read the same. Every result is parsed again and compared with what it should
say; if it differs, or a comment would be lost, the change is refused.
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


# Items of these lists get a blank line between them.
_SPACED = frozenset({"sources", "tables", "models"})


class EditRefused(Exception):
    """Reports that the wanted data needs edits of entries that are not codegen's."""


class Edits:
    """Collects the edits that bring a text to the wanted data."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._found: list[tuple[tuple[int, int, bool], str]] = []

    def bringing(self, now: Mapping[Any, Any], then: Mapping[Any, Any]) -> str:
        """Returns the text after all edits, from its data `now` to the data `then`."""
        root, text = self.layout.root, self.layout.text
        if root is None or isinstance(root, yaml.ScalarNode):
            place = len(text)
            gap = [""] if text and not text.endswith("\n") else []
            self._note(place, place, self._block([*gap, *lines(dict(then))], 0))
        elif not self._inside(root, now, then, ()):
            raise EditRefused
        pieces, place = [], 0
        for (start, end, _), written in sorted(self._found, key=lambda edit: edit[0]):
            if start < place:
                raise EditRefused
            pieces += [text[place:start], written]
            place = end
        return "".join([*pieces, text[place:]])

    def _mapping(
        self, node: yaml.MappingNode, now: Mapping[Any, Any], then: Mapping[Any, Any], path: Path
    ) -> bool:
        """Edits inside a mapping; returns False, without edits, if it must be rewritten whole."""
        pairs = {key.value: (key, value) for key, value in node.value}
        kept = [key for key in then if key in now and key in pairs]
        gone = [key for key in now if key not in then]
        first = node.value[0][0].start_mark.index
        if self._needs_rewrite(node, first, kept, gone, then):
            return False
        for key in gone:
            if key not in pairs:
                raise EditRefused  # it comes from another mapping, by `<<`
            self._remove(node.value, [k.value for k, _ in node.value].index(key))
        for key in kept:
            if not same(now[key], then[key]):
                self._change_pair(node, pairs[key], now[key], then[key], (*path, str(key)))
        column = self.layout.column(first)
        previous = None
        for key, value in then.items():
            if key in kept:
                previous = pairs[key][1]
            elif in_brackets(node):
                self._insert_in_flow(previous, first, flow({key: value})[1:-1])
            else:
                self._insert(previous, first, lines({key: value}), column)
        return True

    def _sequence(
        self, node: yaml.SequenceNode, now: list[Any], then: list[Any], path: Path
    ) -> bool:
        """Edits inside a list of named items; returns False, without edits, to rewrite it whole."""
        names = identities(path, now)
        items = dict(zip(names, zip(node.value, now, strict=True), strict=True))
        wanted = dict(zip(identities(path, then), then, strict=True))
        kept = [name for name in wanted if name in items]
        gone = [place for place, name in enumerate(names) if name not in wanted]
        first = node.value[0].start_mark.index if in_brackets(node) else self._dash(node.value[0])
        if self._needs_rewrite(node, first, kept, gone, then):
            return False
        for place in gone:
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
        gone: Sequence[Any],
        then: Sequence[Any] | Mapping[Any, Any],
    ) -> bool:
        """Whether a container must be rewritten whole, because its entries cannot be edited."""
        if in_brackets(node):
            return bool(gone) or not kept
        return not then or not (kept or self._begins_line(first))

    def _inside(self, node: yaml.Node, now: Any, then: Any, path: Path) -> bool:
        """Edits inside a container, if it stays one of the same kind; returns whether it did."""
        if not node.value:
            return False
        if isinstance(node, yaml.MappingNode) and isinstance(then, Mapping):
            return self._mapping(node, now, then, path)
        if isinstance(node, yaml.SequenceNode) and isinstance(then, list) and is_keyed(path):
            return self._sequence(node, now, then, path)
        return False

    def _change_pair(
        self,
        parent: yaml.MappingNode,
        pair: tuple[yaml.Node, yaml.Node],
        now: Any,
        then: Any,
        path: Path,
    ) -> None:
        key, value = pair
        if self._inside(value, now, then, path):
            return
        scalar = isinstance(value, yaml.ScalarNode)
        in_flow = in_brackets(parent) or (in_brackets(value) and bool(value.value))
        written = flow(then) if in_flow else in_line(key.value, then)
        start, end = value.start_mark.index, self.layout.end(value)
        if written is not None and (in_flow or scalar):
            blank = "" if self.layout.text[start - 1].isspace() else " "
            self._note(start, end, blank + written)
            return
        colon = self.layout.text.index(":", key.end_mark.index) + 1
        below = self._block(["", *lines({key.value: then})[1:]], key.start_mark.column)
        self._note(colon, end, f" {written}" if written else below.rstrip("\r\n"))

    def _change_item(
        self, parent: yaml.SequenceNode, node: yaml.Node, now: Any, then: Any, path: Path
    ) -> None:
        if self._inside(node, now, then, path):
            return
        start, end = node.start_mark.index, self.layout.end(node)
        written = [line[2:] for line in lines([then])]
        in_block = self._behind(written, node.start_mark.column)
        self._note(start, end, flow(then) if in_brackets(parent) else in_block)

    def _insert(
        self,
        previous: yaml.Node | None,
        first: int,
        written: list[str],
        column: int,
        spaced: bool = False,
    ) -> None:
        """Adds lines after an entry, or before the first."""
        if previous is not None:
            place = self.layout.next_line(self.layout.end(previous))
            text = self._block([*([""] if spaced else []), *written], column)
            if not self.layout.text[:place].endswith("\n"):
                text = self.layout.newline + text.removesuffix(self.layout.newline)
            self._note(place, place, text)
            return
        text = self._block([*written, *([""] if spaced else [])], column)
        if self._begins_line(first):
            first = self.layout.line_start(first)
        else:
            text = text[column:] + " " * column
        self._note(first, first, text, before=True)

    def _insert_in_flow(self, previous: yaml.Node | None, first: int, written: str) -> None:
        if previous is not None:
            place = self.layout.end(previous)
            self._note(place, place, f", {written}")
        else:
            self._note(first, first, f"{written}, ", before=True)

    def _remove(
        self, entries: list[tuple[yaml.Node, yaml.Node]], place: int, listed: bool = False
    ) -> None:
        """Removes an entry of a block with its lines; comments above it stay."""
        first, last = entries[place]
        start = self._dash(first) if listed else first.start_mark.index
        if self._begins_line(start):
            line = self.layout.line_start(start)
            self._note(line, self.layout.next_line(self.layout.end(last)), "")
        elif place + 1 < len(entries) and not listed:  # after a dash: the next one moves up
            self._note(start, entries[place + 1][0].start_mark.index, "")
        else:
            raise EditRefused

    def _begins_line(self, place: int) -> bool:
        return not self.layout.text[self.layout.line_start(place) : place].strip()

    def _dash(self, item: yaml.Node) -> int:
        found = self.layout.dash(item)
        if found is None:
            raise EditRefused
        return found

    def _block(self, written: list[str], column: int) -> str:
        """Joins lines, indented to a column, each with a line end; empty ones stay empty."""
        shown = (" " * column + line if line else "" for line in written)
        return "".join(line + self.layout.newline for line in shown)

    def _behind(self, written: list[str], column: int) -> str:
        """Joins lines whose first one is at its column already."""
        return self._block(written, column)[column:].removesuffix(self.layout.newline)

    def _note(self, start: int, end: int, text: str, before: bool = False) -> None:
        # An addition after an entry sorts ahead of one before the next entry.
        self._found.append(((start, end, before), text))


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

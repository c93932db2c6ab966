"""Edits a YAML text so that it holds the wanted data.

Adds, replaces and removes entries in place; the rest of the text stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from loader.codegen.merging import Path, identities, is_keyed, same
from loader.codegen.yaml_layout import Layout, in_brackets
from loader.codegen.yaml_style import flow, in_line, lines

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
        if self._anew(node, first, kept, gone, then):
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
        if self._anew(node, first, kept, gone, then):
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

    def _anew(
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

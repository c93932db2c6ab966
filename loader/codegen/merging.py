"""Merges three ways to keep hand edits: codegen's last output, the file, the new output.

The rule for every value in a file: if it is unchanged since codegen wrote it, it follows codegen;
if it was changed, added or deleted by hand, it stays so. The merge works on plain data (mappings,
lists, scalars); :mod:`loader.codegen.yaml_text` edits a text accordingly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]

# Keys whose lists hold named items: these are merged item by item, in any order. Other lists, such
# as a key's columns, are one value.
_NAMED = frozenset({"sources", "tables", "models", "columns"})
_TESTS = frozenset({"data_tests", "tests"})


class _Absent:
    """Stands for a missing value, because null is a value."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()


@dataclass(frozen=True)
class KeptEdit:
    """An edit that was kept, though codegen would now write something else.

    Attributes:
        path: keys and names from the top of the file.
        wanted: codegen's new value; ABSENT if it would remove the value.
    """

    path: Path
    wanted: Any


@dataclass(frozen=True)
class ThreeWay:
    """A merge, and the edits that it kept.

    Args:
        commented: whether there is a comment within what a path names, so that replacing the
            value, or with `removed` removing it, would lose the comment.
    """

    commented: Callable[[Path, bool], bool] = lambda path, removed: False
    kept: list[KeptEdit] = field(default_factory=list)

    def merge(self, base: Any, mine: Any, new: Any, path: Path = ()) -> Any:
        """Returns the merged value; ABSENT if there should be none.

        Args:
            base: codegen's last output.
            mine: the current file.
            new: codegen's new output.
        """
        if same(mine, new):
            return mine
        if mine is ABSENT:
            return new if base is ABSENT else ABSENT
        if new is ABSENT:
            return self._merge_removed(base, mine, path)
        if isinstance(mine, Mapping) and isinstance(new, Mapping):
            return self._mappings(base, mine, new, path)
        if is_keyed(path) and isinstance(mine, list) and isinstance(new, list):
            return self._lists(base, mine, new, path)
        if same(mine, base) and (_is_scalar(mine) or not self.commented(path, False)):
            return new
        if not same(base, new):
            self.kept.append(KeptEdit(path, new))
        return mine

    def _merge_removed(self, base: Any, mine: Any, path: Path) -> Any:
        if base is ABSENT:
            return mine
        if same(mine, base) and not self.commented(path, True):
            return ABSENT
        if isinstance(mine, Mapping) and isinstance(base, Mapping) and not _is_item(path):
            return self._mappings(base, mine, {}, path) or ABSENT
        if is_keyed(path) and isinstance(mine, list) and isinstance(base, list):
            return self._lists(base, mine, [], path) or ABSENT
        self.kept.append(KeptEdit(path, ABSENT))
        return mine

    def _mappings(
        self, base: Any, mine: Mapping[Any, Any], new: Mapping[Any, Any], path: Path
    ) -> dict[Any, Any]:
        base = base if isinstance(base, Mapping) else {}
        merged = {}
        for key in _in_order(list(mine), list(new)):
            found = self.merge(
                base.get(key, ABSENT),
                mine.get(key, ABSENT),
                new.get(key, ABSENT),
                (*path, str(key)),
            )
            if found is not ABSENT:
                merged[key] = found
        if mine and not merged and self.commented(path, False):
            self.kept.append(KeptEdit(path, ABSENT))
            return dict(mine)
        return merged

    def _lists(self, base: Any, mine: Sequence[Any], new: Sequence[Any], path: Path) -> list[Any]:
        def by_name(items: Sequence[Any]) -> dict[str, Any]:
            return dict(zip(identities(path, items), items, strict=True))

        known = by_name(base) if isinstance(base, list) else {}
        return list(self._mappings(known, by_name(mine), by_name(new), path).values())


def is_keyed(path: Path) -> bool:
    """Whether the list at a path is merged item by item."""
    return bool(path) and path[-1] in _NAMED | _TESTS and not _is_item(path)


def identities(path: Path, items: Sequence[Any]) -> list[str]:
    """Returns what identifies the items of the list at `path`: a name, or the test that it calls.

    A second item with the same name counts as another; one without a name goes by its position.
    """
    named = _find_test_name if path[-1] in _TESTS else _name
    found = [named(item) or f"\0{place}" for place, item in enumerate(items)]
    seen: Counter[str] = Counter()
    unique = []
    for name in found:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}\0{seen[name]}")
    return unique


def same(one: Any, other: Any) -> bool:
    """Compares values; unlike Python's `==`, `true` is not 1. The order of keys does not matter."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _name(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, Mapping) else None
    return name if isinstance(name, str) else None


def _find_test_name(item: Any) -> str | None:
    if isinstance(item, str):
        return item
    if not isinstance(item, Mapping) or not item:
        return None
    called = item.get("test_name") or next(iter(item))
    return called if isinstance(called, str) else None


def _is_item(path: Path) -> bool:
    """Whether a path names an item of a list: that is removed whole or not at all."""
    depth = 0
    while depth < len(path) and path[depth] in _NAMED | _TESTS:
        if depth + 1 == len(path):
            return False
        if depth + 2 == len(path):
            return True
        depth += 2
    return False


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Mapping | list)


def _in_order(mine: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Returns all keys: mine in my order, each new one after its neighbour in the new order."""
    order = list(mine)
    place = 0
    for key in new:
        if key in order:
            place = order.index(key) + 1
        else:
            order.insert(place, key)
            place += 1
    return order

"""Merges codegen's last output, the current file and codegen's new output (a three-way merge).

The new output replaces a value that equals codegen's last output. If users have changed, added or
deleted a value, their edit is kept. The merge works on data: mappings, lists and scalars.
Afterwards, :mod:`loader.codegen.yaml_text` edits the text of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]

# The keys of lists whose items have names. Such lists are merged item by item, in any order. All
# other lists, such as primary keys, are treated as one value.
_NAMED = frozenset({"sources", "tables", "models", "columns"})
_TESTS = frozenset({"data_tests", "tests"})


class _Absent:
    """Represents a missing value, because None represents null, which is a valid value."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()


@dataclass(frozen=True)
class KeptEdit:
    """A manual edit that was kept, although codegen would now write another value.

    Attributes:
        path: the keys and names that lead to the value.
        wanted: codegen's new value; ABSENT if codegen would remove the value.
    """

    path: Path
    wanted: Any


@dataclass(frozen=True)
class ThreeWay:
    """A three-way merge. Collects the manual edits that it keeps.

    Args:
        commented: takes a path and a flag; returns whether the file would lose a comment if the
            value at the path were removed (flag true) or replaced (flag false).
    """

    commented: Callable[[Path, bool], bool] = lambda path, removed: False
    kept: list[KeptEdit] = field(default_factory=list)

    def merge(self, base: Any, mine: Any, new: Any, path: Path = ()) -> Any:
        """Returns the merged value, or ABSENT if the value is deleted.

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
            value = self.merge(
                base.get(key, ABSENT),
                mine.get(key, ABSENT),
                new.get(key, ABSENT),
                (*path, str(key)),
            )
            if value is not ABSENT:
                merged[key] = value
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
    """Returns whether the list at a path is merged item by item."""
    return bool(path) and path[-1] in _NAMED | _TESTS and not _is_item(path)


def identities(path: Path, items: Sequence[Any]) -> list[str]:
    """Returns an identity for each item in the list at `path`: its name, or the test that it calls.

    Repeated names are numbered. The identity of an item without a name is its position.
    """
    get_name = _find_test_name if path[-1] in _TESTS else _name
    names = [get_name(item) or f"\0{position}" for position, item in enumerate(items)]
    counts: Counter[str] = Counter()
    unique = []
    for name in names:
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name}\0{counts[name]}")
    return unique


def same(one: Any, other: Any) -> bool:
    """Compares values. Ignores the order of keys. Unlike in Python, `true` does not equal 1."""
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
    name = item.get("test_name") or next(iter(item))
    return name if isinstance(name, str) else None


def _is_item(path: Path) -> bool:
    """Returns whether a path leads to a list item. List items can only be removed as a whole."""
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
    """Returns a copy of `mine` with each new key inserted after its predecessor in `new`."""
    order = list(mine)
    position = 0
    for key in new:
        if key in order:
            position = order.index(key) + 1
        else:
            order.insert(position, key)
            position += 1
    return order

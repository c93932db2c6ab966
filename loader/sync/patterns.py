"""Which of a source's tables a spec means: its patterns, and the options that it gives by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from loader.errors import TableError
from loader.problems import did_you_mean
from loader.sources import TableRef
from loader.spec.options import TableOptions
from loader.spec.plugins import SourceSpec


def chosen(
    spec: SourceSpec, refs: Sequence[TableRef]
) -> tuple[list[TableRef], dict[str, TableError]]:
    """The tables that a source's patterns choose, and by pattern an error where it finds none.

    An exact name matches without case where only one table fits; wildcards pass over views.
    """
    found: dict[str, TableRef] = {}
    errors: dict[str, TableError] = {}
    for pattern in spec.tables:
        matches = _matching(pattern, refs)
        if not matches:
            names = [ref.name for ref in refs]
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            errors[pattern] = TableError(
                f"the source has no table {pattern!r}",
                where=f"source {spec.name}, tables",
                remedy=f"{did_you_mean(pattern, names)} "
                f"It has: {shown or 'no tables that this user can see'}".strip(),
            )
        for ref in matches:
            found[ref.name] = ref
    for pattern in spec.skip_tables:
        for ref in _matching(pattern, refs):
            found.pop(ref.name, None)
    return list(found.values()), errors


def is_wildcard(pattern: str) -> bool:
    """Whether a pattern stands for more than the one table that it names."""
    return any(mark in pattern for mark in "*?[")


def _matching(pattern: str, refs: Sequence[TableRef]) -> list[TableRef]:
    exact = [ref for ref in refs if ref.name == pattern]
    if exact:
        return exact
    if is_wildcard(pattern):
        lowered = pattern.lower()
        return [
            ref for ref in refs if ref.kind == "table" and fnmatchcase(ref.name.lower(), lowered)
        ]
    loose = [ref for ref in refs if ref.name.lower() == pattern.lower()]
    return loose if len(loose) == 1 else []


def options_for_nothing(
    spec: SourceSpec, options: Mapping[str, TableOptions], refs: Sequence[TableRef]
) -> dict[str, TableError]:
    """Errors for `table_options` of tables that the source does not have, by their names."""
    names = {ref.name.lower(): ref.name for ref in refs}
    asked = {name.lower() for name in spec.tables}  # a missing one of these is an error already
    return {
        name: TableError(
            f"there are options for a table {name!r}, which the source does not have",
            where=f"source {spec.name}, table_options",
            remedy=did_you_mean(name, names.values()) or "`loader discover` lists its tables",
        )
        for name in options
        if name.lower() not in names and name.lower() not in asked
    }

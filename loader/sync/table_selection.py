"""Finds a spec's tables in a source: matches its patterns, and reads columns and keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase

from loader.error_report import did_you_mean
from loader.errors import TableError
from loader.names import is_wildcard
from loader.sources.interface import Source, SourceTable, TableRef
from loader.spark.interruption import check_interruption
from loader.spark.named_steps import step
from loader.spec.options import TableOptions
from loader.spec.plugins import SourceSpec


def match_tables(
    spec: SourceSpec, refs: Sequence[TableRef]
) -> tuple[list[TableRef], dict[str, TableError]]:
    """Returns the tables that a source's patterns match, and an error for each that matches none.

    A name ignores case if no table is spelled exactly so. One with `*`, `?` or `[` is a pattern,
    even if a table has that name: the names of tables must not decide which ones are loaded.
    Patterns skip views.

    A name in `skip_tables` does not depend on other tables: it ignores case, and without a
    dot it is a table's name in any schema, unless `tables` names that table with its schema.
    """
    found: dict[tuple[str, str], TableRef] = {}
    errors: dict[str, TableError] = {}
    names = [ref.name for ref in refs]
    by_name: dict[str, list[TableRef]] = {}
    for ref in refs:
        by_name.setdefault(ref.name.lower(), []).append(ref)
    for pattern in spec.tables:
        matches = _matching(pattern, refs, by_name)
        if not matches:
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            errors[pattern] = TableError(
                f"the source has no table {pattern!r}",
                where=f"source {spec.name}, tables",
                remedy=f"{did_you_mean(pattern, names)} "
                f"It has: {shown or 'no tables that this user can see'}".strip(),
            )
        for ref in matches:
            found[ref.key] = ref
    named = {name.lower() for name in spec.tables if not is_wildcard(name)}
    skipped = [pattern.lower() for pattern in spec.skip_tables]
    wanted = [ref for ref in found.values() if not _is_skipped(ref.name.lower(), skipped, named)]
    return wanted, errors


def _is_skipped(name: str, patterns: Sequence[str], named: Collection[str]) -> bool:
    bare = name.rpartition(".")[2]
    for pattern in patterns:
        match = fnmatchcase if is_wildcard(pattern) else str.__eq__
        if match(name, pattern):
            return True
        if "." not in pattern and name not in named and match(bare, pattern):
            return True
    return False


def _matching(
    pattern: str, refs: Sequence[TableRef], by_name: Mapping[str, list[TableRef]]
) -> list[TableRef]:
    """Returns the tables that a pattern or a name means.

    Args:
        by_name: the tables by their names in lower case: a source may have 100,000 of them.
    """
    if is_wildcard(pattern):
        lowered = pattern.lower()
        return [
            ref for ref in refs if ref.kind == "table" and fnmatchcase(ref.name.lower(), lowered)
        ]
    loose = by_name.get(pattern.lower(), [])
    # of several that fit, raw knows which one is meant
    return [ref for ref in loose if ref.name == pattern] or loose


def options_for_nothing(
    spec: SourceSpec, options: Mapping[str, TableOptions], refs: Sequence[TableRef]
) -> dict[str, TableError]:
    """Returns errors for `table_options` of tables that the source does not have, by name."""
    names = {ref.name.lower(): ref.name for ref in refs}
    asked = {name.lower() for name in spec.tables}  # if one is missing, `match_tables` reports it
    known = names.keys() | asked
    return {
        name: TableError(
            f"there are options for {name!r}, and the source has no such table",
            where=f"source {spec.name}, table_options",
            remedy=did_you_mean(name, names.values()) or "`loader discover` lists its tables",
        )
        for name in options
        if not _is_for_some(name.lower(), known)
    }


def _is_for_some(pattern: str, names: Collection[str]) -> bool:
    if is_wildcard(pattern):
        return any(fnmatchcase(name, pattern) for name in names)
    return pattern in names


_AT_ONCE = 4
"""So many tables, unless the source's `concurrency` says how many."""


def describe_tables(
    source: Source,
    refs: Sequence[TableRef],
    concurrency: int | None,
    working: Callable[[str], AbstractContextManager[None]],
) -> list[SourceTable | Exception]:
    """Describes tables, in their order; the error of a table is in its place.

    Args:
        working: entered with a table's name while the table is described.
    """

    def one(ref: TableRef) -> SourceTable | Exception:
        try:
            # the tables before it may have been locked, and this one, too
            check_interruption(f"table {source.name}.{ref.name}")
            name = f"{source.name}.{ref.lake_name}"
            with step(f"{name}: reading its columns and keys"), working(name):
                return source.describe(ref)
        except Exception as problem:
            return problem

    at_once = min(concurrency or _AT_ONCE, len(refs))
    if at_once < 2:
        return [one(ref) for ref in refs]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, refs))

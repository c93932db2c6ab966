"""Finds the tables that a spec selects and reads their columns and keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase

from loader.errors import TableError, did_you_mean
from loader.names import is_wildcard
from loader.sources.interface import Source, SourceTable, TableRef
from loader.spark.interruption import check_interruption
from loader.spark.named_steps import step
from loader.spec.options import TableOptions
from loader.spec.plugins import SourceSpec


def match_tables(
    spec: SourceSpec, refs: Sequence[TableRef]
) -> tuple[list[TableRef], dict[str, TableError]]:
    """Returns the tables that the spec selects, and an error for each pattern without a match.

    In `tables`, a name is case-insensitive unless a table has exactly this name. A name that
    contains `*`, `?` or `[` is always a pattern, even if a table has exactly this name. Patterns do
    not match views.

    In `skip_tables`, names are case-insensitive. A name without a dot matches tables in any schema,
    except tables that `tables` lists with their schema.
    """
    tables: dict[tuple[str, str], TableRef] = {}
    errors: dict[str, TableError] = {}
    names = [ref.name for ref in refs]
    by_name: dict[str, list[TableRef]] = {}
    for ref in refs:
        by_name.setdefault(ref.name.lower(), []).append(ref)
    for pattern in spec.tables:
        matches = _match_pattern(pattern, refs, by_name)
        if not matches:
            examples = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            errors[pattern] = TableError(
                f"the source has no table {pattern!r}",
                where=f"source {spec.name}, tables",
                remedy=f"{did_you_mean(pattern, names)} "
                f"It has: {examples or 'no tables that this user can see'}".strip(),
            )
        for ref in matches:
            tables[ref.key] = ref
    listed = {name.lower() for name in spec.tables if not is_wildcard(name)}
    skipped = [pattern.lower() for pattern in spec.skip_tables]
    selected = [
        ref for ref in tables.values() if not _is_skipped(ref.name.lower(), skipped, listed)
    ]
    return selected, errors


def _is_skipped(name: str, patterns: Sequence[str], listed: Collection[str]) -> bool:
    unqualified = name.rpartition(".")[2]
    for pattern in patterns:
        match = fnmatchcase if is_wildcard(pattern) else str.__eq__
        if match(name, pattern):
            return True
        if "." not in pattern and name not in listed and match(unqualified, pattern):
            return True
    return False


def _match_pattern(
    pattern: str, refs: Sequence[TableRef], by_name: Mapping[str, list[TableRef]]
) -> list[TableRef]:
    """Returns the tables that a pattern or name matches.

    Args:
        by_name: the tables, keyed by lower-case name. Without it, matching would be slow, because a
            source may have 100,000 tables.
    """
    if is_wildcard(pattern):
        lowered = pattern.lower()
        return [
            ref for ref in refs if ref.kind == "table" and fnmatchcase(ref.name.lower(), lowered)
        ]
    matches = by_name.get(pattern.lower(), [])
    # If several tables match, `find_takeovers` accepts only the raw table's recorded origin.
    return [ref for ref in matches if ref.name == pattern] or matches


def find_unused_options(
    spec: SourceSpec, options: Mapping[str, TableOptions], refs: Sequence[TableRef]
) -> dict[str, TableError]:
    """Returns an error for each entry of `table_options` that has no effect.

    An entry has no effect if it matches no table of the source, or if it defines a query that
    `tables` does not select.
    """
    names = {ref.name.lower(): ref.name for ref in refs}
    # Missing tables are reported by `match_tables`.
    listed = {name.lower() for name in spec.tables}
    names_in_use = names.keys() | listed
    unselected = {
        name: TableError(
            f"{name!r} has a query, but `tables` does not select it",
            where=f"source {spec.name}, table_options",
            remedy=f"Add {name!r} to `tables`, or to `skip_tables` if it should not be loaded",
        )
        for name, option in options.items()
        if getattr(option, "query", None)
        and not any(_matches_any(pattern, {name.lower()}) for pattern in listed)
        and not _is_skipped(name.lower(), [each.lower() for each in spec.skip_tables], listed)
    }
    return unselected | {
        name: TableError(
            f"there are options for {name!r}, but the source has no such table",
            where=f"source {spec.name}, table_options",
            remedy=did_you_mean(name, names.values()) or "`loader discover` lists its tables",
        )
        for name in options
        if not _matches_any(name.lower(), names_in_use)
    }


def _matches_any(pattern: str, names: Collection[str]) -> bool:
    if is_wildcard(pattern):
        return any(fnmatchcase(name, pattern) for name in names)
    return pattern in names


_PARALLEL = 4
"""The number of tables to describe in parallel if the source sets no `concurrency`."""


def describe_tables(
    source: Source,
    refs: Sequence[TableRef],
    concurrency: int | None,
    track: Callable[[str], AbstractContextManager[None]],
) -> list[SourceTable | Exception]:
    """Describes tables in parallel. Returns a description or an error for each table, in order.

    Args:
        track: called with a table's name. The context manager that it returns is active while the
            table is described.
    """

    def describe(ref: TableRef) -> SourceTable | Exception:
        try:
            # A locked table may delay its description for minutes.
            check_interruption(f"table {source.name}.{ref.name}")
            name = f"{source.name}.{ref.lake_name}"
            with step(f"{name}: reading its columns and keys"), track(name):
                return source.describe(ref)
        except Exception as problem:
            return problem

    workers = min(concurrency or _PARALLEL, len(refs))
    if workers < 2:
        return [describe(ref) for ref in refs]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(describe, refs))

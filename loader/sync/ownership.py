"""Checks which sources, and which tables of a source, may be loaded into a raw table.

By default, one source owns a raw table. A second source is rejected before any row is read, unless
both sources declare ``shared: true`` for the table, for example because they are shards or regions.
In a shared table, the source and the key together identify a row. Each source has its own state,
and its rows are compared only with its own earlier rows. All sources of a table share its batch
numbers.

The sources of a spec are compared with each other. Sources of other specs are detected in the raw
table: its newest commit contains the name of a source, and a table property
(:data:`loader.lake.commits.SOURCES`) lists the sources that share the table, with their keys and
cursors.

Several tables of a source can have the same name in the lake, such as `a.b_c` and `a_b.c`, or
`"Orders"` and `orders`. If the search path changes, a name may also come to mean a table in another
schema. Therefore each raw table records its origin, which is the source table that it is
loaded from (:data:`loader.lake.commits.ORIGINS`). Any other table with the same name in the lake is
rejected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.lake.commits import (
    ORIGINS,
    SOURCES,
    Commit,
    newest_commit,
    origins,
    sharers,
    source_of,
)
from loader.lake.lake import Lake
from loader.property_codec import encode_property
from loader.rows.version_order import SOURCE_NAME
from loader.sources.interface import TableRef
from loader.sync.table_plan import TablePlan


@dataclass(frozen=True)
class Claim:
    """A source's request to load one of its tables into a raw table.

    Attributes:
        table: the table's name in the source.
        raw: the raw table as ``schema.table``.
        shared: whether the spec allows other sources to load the same raw table.
    """

    source: str
    table: str
    raw: str
    shared: bool


def list_granted(claims: Sequence[Claim]) -> list[Claim]:
    """Returns all shared claims if the first claim is shared, else only the first claim."""
    return [claim for claim in claims if claim.shared] if claims[0].shared else list(claims[:1])


def list_sharers(claim: Claim, claims: Sequence[Claim]) -> tuple[str, ...]:
    """Returns the sources that load the claim's raw table, in the order of the spec.

    Args:
        claims: all claims on the raw table, ordered as in the spec.

    Raises:
        TableError: if another source loads the raw table, and the table is not shared.
    """
    # `find_takeovers` checks whether two tables of one source have the same raw table.
    claims = [each for each in claims if each.source != claim.source or each == claim]
    allowed = list_granted(claims)
    if claim not in allowed:
        first = allowed[0]
        unshared = [each for each in (first, claim) if not each.shared]
        options = [f"table_options.{each.table}.shared: true in {each.source}" for each in unshared]
        raise TableError(
            f"source {first.source} already loads the raw table {claim.raw}",
            where=f"table {claim.source}.{claim.table}",
            remedy="Set another `schema` in one of the two sources. If they are "
            f"parts of one table (shards, regions), set {' and '.join(options)}",
        )
    if claim.raw != allowed[0].raw:
        raise TableError(
            f"it shares a raw table with source {allowed[0].source}, where the table is spelled "
            f"{allowed[0].table}",
            where=f"table {claim.source}.{claim.table}",
            remedy="Read it through a view with the same spelling",
        )
    return tuple(dict.fromkeys(each.source for each in allowed))


def check_same_shape(plan: TablePlan, other: TablePlan) -> None:
    """Raises a TableError if two sources that share a raw table differ in key or cursor."""
    _compare_shapes(plan, other.source, _describe_shape(other))


def check_ownership(plan: TablePlan, lake: Lake, newest: Commit) -> None:
    """Raises a TableError if the commits and properties of the raw table name another owner.

    Args:
        newest: the newest commit of any source.
    """
    sources = _read_sources(lake, plan, newest)
    raw = f"{lake.schema}.{plan.lake_table}"
    if not plan.is_shared:
        others = [name for name in sources if name not in plan.names]
        # A source that shares the table but has no rows in it does not prevent this source from
        # owning the table.
        others = [name for name in others if _has_rows(lake, plan, name)]
        if others:
            raise TableError(
                f"the raw table {raw} was loaded by source {', '.join(others)}",
                where=f"table {plan.name}",
                remedy=_describe_options(plan, others),
            )
        return
    renamed = [name for name in plan.formerly if name in sources]
    if renamed:
        raise TableError(
            f"{renamed[0]} shares the raw table {raw}, and cannot be renamed: its name is part of "
            "each row's key",
            where=f"table {plan.name}",
            remedy=f"Rename the source back to {renamed[0]}",
        )
    for name in sources:
        if name == plan.source:
            continue
        shape = sources[name]
        if name in plan.sharers:
            continue  # `list_sharers` checks the sources of this spec
        if shape is None:
            raise TableError(
                f"the raw table {raw} was loaded by source {name}, which does not share it",
                where=f"table {plan.name}",
                remedy=f"Also set shared: true in {name}, and sync it once; or "
                + _describe_options(plan, [name]),
            )
        _compare_shapes(plan, name, shape)


def select_own_rows(plan: TablePlan, raw: DataFrame) -> DataFrame:
    """Returns the rows of the plan's source in a raw table."""
    return raw.where(f.col(SOURCE_NAME) == plan.source) if plan.is_shared else raw


def is_loaded_by(lake: Lake, table: str, names: Sequence[str]) -> bool:
    """Returns whether a source has loaded a raw table, according to its properties or commits.

    Args:
        names: the current and former names of the source.
    """
    loaded_by = list(sharers(lake.handle(table)))
    if not loaded_by:
        # The newest commit usually names the source, so that no row need be read.
        source = newest_commit(lake, table).source
        rows = [] if source else lake.frame(table).select(SOURCE_NAME).take(1)
        loaded_by = [source] if source else [str(row[0]) for row in rows]
    return any(name in loaded_by for name in names)


def register_sharer(plan: TablePlan, lake: Lake) -> None:
    """Records in the raw table that the plan's source shares it. The table must be locked."""
    if not plan.is_shared or not lake.exists(plan.lake_table):
        return
    recorded = sharers(lake.handle(plan.lake_table))
    sources = _read_sources(lake, plan, newest_commit(lake, plan.lake_table))
    unshared = [name for name, shape in sources.items() if shape is None and name != plan.source]
    if any(name not in plan.sharers for name in unshared):
        return  # the table is not shared; `check_ownership` raises the error
    sharers_ = {**sources, plan.source: _describe_shape(plan)}
    if sharers_ != recorded:
        lake.set_properties(
            plan.lake_table, {SOURCES: encode_property(json.dumps(sharers_, sort_keys=True))}
        )


def _read_sources(lake: Lake, plan: TablePlan, newest: Commit) -> Mapping[str, Any]:
    """Maps a raw table's sources to their keys and cursors, or to None if it is not shared."""
    sources = sharers(lake.handle(plan.lake_table))
    if sources or not newest.batch:
        return sources
    source = newest.source or source_of(lake, plan.lake_table, newest.batch)
    return {source: None} if source is not None else {}


def _has_rows(lake: Lake, plan: TablePlan, source: str) -> bool:
    return bool(lake.frame(plan.lake_table).where(f.col(SOURCE_NAME) == source).take(1))


def _describe_options(plan: TablePlan, others: Sequence[str]) -> str:
    names = ", ".join(others)
    return (
        f"Set another `schema` in source {plan.source}. If {plan.source} is the new name "
        f"of {others[0]}, write `formerly: [{others[0]}]` in its document. If {names} and "
        f"{plan.source} are parts of one table (shards, regions), set "
        f"table_options.{plan.table.ref.name}.shared: true in each"
    )


def _describe_shape(plan: TablePlan) -> dict[str, Any]:
    return {
        "cursor_field": plan.cursor.name.lower() if plan.cursor else None,
        "primary_key": sorted(name.lower() for name in plan.key),
    }


def _compare_shapes(plan: TablePlan, other: str, shape: Mapping[str, Any]) -> None:
    own_shape = _describe_shape(plan)
    for option in ("primary_key", "cursor_field"):
        if own_shape[option] != shape.get(option):
            raise TableError(
                f"it shares the raw table {plan.lake_table} with source {other}: its "
                f"{option} is {_format_value(own_shape[option])}, but in that source it is "
                f"{_format_value(shape.get(option))}",
                where=f"table {plan.name}, {option}",
                remedy=f"Set the same {option} in table_options.{plan.table.ref.name} of all "
                "sources of the raw table",
            )


def _format_value(value: Any) -> str:
    return (", ".join(value) if isinstance(value, list) else value) or "none"


def find_takeovers(
    lake: Lake,
    names: Sequence[str],
    selected: Sequence[TableRef],
    listed: Sequence[TableRef],
    full_refresh: bool = False,
) -> dict[tuple[str, str], TableError]:
    """Finds tables that would be loaded into a raw table that belongs to another table.

    If the spec selects several tables with the same name in the lake, only the table that the raw
    table records as its origin is accepted. If no origin is recorded, no table is accepted.

    Args:
        names: the current and former names of the source.
        listed: all tables of the source.
        full_refresh: whether the user requested a full refresh of these tables, which may change
            the origin of raw tables.

    Returns:
        The error for each such table, keyed by :attr:`TableRef.key`.
    """
    selected_keys = {ref.key for ref in selected}
    by_raw: dict[str, list[TableRef]] = {}
    for ref in listed:
        by_raw.setdefault(ref.lake_name.lower(), []).append(ref)
    errors: dict[tuple[str, str], TableError] = {}
    for group in by_raw.values():
        rivals = [ref for ref in group if ref.key in selected_keys]
        if len(group) == 1 or not rivals:
            continue
        spellings = dict.fromkeys(ref.lake_name for ref in (*rivals, *group))
        origins_ = (_read_origin(lake, table, names) for table in spellings if lake.exists(table))
        owner = next(filter(None, origins_), "")
        if len(rivals) > 1:
            error = _build_shared_name_error(rivals, owner, names[0])
            errors |= {ref.key: error for ref in rivals if ref.qualified_name != owner}
        elif owner not in ("", rivals[0].qualified_name) and not full_refresh:
            error = _build_takeover_error(lake, rivals[0], owner, names[0])
            errors[rivals[0].key] = error
    return errors


def check_origin(plan: TablePlan, lake: Lake) -> None:
    """Raises a TableError if the raw table was loaded from another table of the source.

    A full refresh of the table may change the origin, if the user requested it.
    """
    origin = _read_origin(lake, plan.lake_table, plan.names)
    if origin not in ("", plan.table.ref.qualified_name) and not plan.accepts_other_origin:
        raise _build_takeover_error(lake, plan.table.ref, origin, plan.source)


def record_origin(plan: TablePlan, lake: Lake) -> None:
    """Records the origin in the raw table. The table must be locked."""
    table = plan.lake_table
    if (
        lake.exists(table)
        and _read_origin(lake, table, plan.names) != plan.table.ref.qualified_name
    ):
        lake.set_properties(table, build_origin_property(plan, origins(lake.handle(table))))


def build_origin_property(plan: TablePlan, recorded: Mapping[str, str]) -> dict[str, str]:
    """Builds the table property that contains the origins of a raw table."""
    tables = {**recorded, plan.source: plan.table.ref.qualified_name}
    return {ORIGINS: encode_property(json.dumps(tables, sort_keys=True))}


def _read_origin(lake: Lake, table: str, names: Sequence[str]) -> str:
    recorded = origins(lake.handle(table))
    return next((recorded[name] for name in names if name in recorded), "")


def _build_shared_name_error(rivals: Sequence[TableRef], owner: str, source: str) -> TableError:
    names = sorted(ref.name for ref in rivals)
    if len(set(names)) < len(names):
        names = sorted(ref.qualified_name for ref in rivals)
    loaded = f", which was loaded from {owner}" if owner else ""
    return TableError(
        f"{', '.join(names[:-1])} and {names[-1]} would share the raw table "
        f"{rivals[0].lake_name}{loaded}",
        where=f"source {source}, tables",
        remedy="Load one of them through a second source with another `schema`, or exclude "
        "it with skip_tables",
    )


def _build_takeover_error(lake: Lake, ref: TableRef, owner: str, source: str) -> TableError:
    name = f"{source}.{ref.lake_name}"
    return TableError(
        f"the raw table {lake.schema}.{ref.lake_name} was loaded from {owner}, and would now be "
        f"loaded from {ref.qualified_name}",
        where=f"table {name}",
        remedy="If this is the same table, renamed or moved, reload it: `loader run "
        f"--full-refresh --select {name}`. If not, write the name of the table that should be "
        f"loaded in `tables` of source {source}, with its schema",
    )

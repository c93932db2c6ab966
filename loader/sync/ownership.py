"""Checks what may load a raw table: one source, or several that share it, and one table of each.

A raw table's batch numbers, state and comparisons belong to its source. So a second source is
refused before anything is read, unless the spec declares in both that they share the table
(``shared: true``: shards, regions). Then everything but the batch numbers is kept per source, and
source and key together identify a row.

Sources of one spec are checked against each other. Sources of other spec files only the raw table
knows: its newest commit names its source, and a property (:data:`loader.lake.commits.SOURCES`)
lists the sources that share it, with the key and the cursor of each.

Names in the lake are not unique in a source: the schema `a` with a table `b_c` would have the raw
table of `a_b.c`; a table `"Orders"` fits a spec that means `orders`; a schema that comes first in
the search path has the table of each bare name. So each raw table records the table that it is
loaded from (:data:`loader.lake.commits.ORIGINS`), and no other table of the same name takes it
over.
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
    """A table of the spec, and the source that loads it.

    Attributes:
        table: its name in the source.
        raw: the raw table, ``schema.table``.
        shared: whether the spec lets other sources load it too.
    """

    source: str
    table: str
    raw: str
    shared: bool


def list_granted(claims: Sequence[Claim]) -> list[Claim]:
    """Returns the granted claims on one raw table: the first in the spec, or all that share it."""
    return [one for one in claims if one.shared] if claims[0].shared else list(claims[:1])


def list_sharers(mine: Claim, claims: Sequence[Claim]) -> tuple[str, ...]:
    """Returns the sources that load the same raw table, in the spec's order.

    Args:
        claims: all on the same raw table, in the spec's order.

    Raises:
        TableError: if another source already loads it, and they do not share it.
    """
    claims = [one for one in claims if one.source != mine.source or one == mine]
    allowed = list_granted(claims)
    if mine not in allowed:
        other = allowed[0]
        lacking = [one for one in (other, mine) if not one.shared]
        options = [f"table_options.{one.table}.shared: true in {one.source}" for one in lacking]
        raise TableError(
            f"source {other.source} loads the raw table {mine.raw} already",
            where=f"table {mine.source}.{mine.table}",
            remedy="Set another `schema` in one of the two sources. If they hold "
            f"parts of one table (shards, regions), set {' and '.join(options)}",
        )
    if mine.raw != allowed[0].raw:
        raise TableError(
            f"it shares a raw table with source {allowed[0].source}, where the table is spelled "
            f"{allowed[0].table}",
            where=f"table {mine.source}.{mine.table}",
            remedy="Read it through a view with the same spelling",
        )
    return tuple(dict.fromkeys(one.source for one in allowed))


def check_same_shape(mine: TablePlan, other: TablePlan) -> None:
    """Refuses a source whose key or cursor differs from the other sharers'.

    Raises:
        TableError: if it differs; names both sources.
    """
    _compare(mine, other.source, _shape(other))


def check_ownership(plan: TablePlan, lake: Lake, head: Commit) -> None:
    """Refuses a source that the raw table does not belong to, according to its own commits.

    Args:
        head: the newest batch of all sources.

    Raises:
        TableError: if it is refused; names the other source, and the ways out.
    """
    there = _sources(lake, plan, head)
    raw = f"{lake.schema}.{plan.lake_table}"
    if not plan.is_shared:
        others = [name for name in there if name not in plan.names]
        # A source that registered as a sharer but has loaded nothing does not block this one.
        others = [name for name in others if _has_rows(lake, plan, name)]
        if others:
            raise TableError(
                f"the raw table {raw} was loaded by source {', '.join(others)}",
                where=f"table {plan.name}",
                remedy=_ways_out(plan, others),
            )
        return
    renamed = [name for name in plan.formerly if name in there]
    if renamed:
        raise TableError(
            f"{renamed[0]} shares the raw table {raw}, and cannot be renamed: its name is part of "
            "each row's key",
            where=f"table {plan.name}",
            remedy=f"Call the source {renamed[0]} again",
        )
    for name in there:
        if name == plan.source:
            continue
        shape = there[name]
        if name in plan.sharers:
            continue  # `list_sharers` has checked it
        if shape is None:
            raise TableError(
                f"the raw table {raw} was loaded by source {name}, which does not share it",
                where=f"table {plan.name}",
                remedy=f"Set shared: true in {name}, too, and sync it once; or "
                + _ways_out(plan, [name]),
            )
        _compare(plan, name, shape)


def own_rows(plan: TablePlan, raw: DataFrame) -> DataFrame:
    """Returns the source's rows of a raw table: all of them, unless it is shared."""
    return raw.where(f.col(SOURCE_NAME) == plan.source) if plan.is_shared else raw


def is_loaded_by(lake: Lake, table: str, names: Sequence[str]) -> bool:
    """Whether a source loads a raw table, according to the table itself.

    Args:
        names: the source's names, now and before.
    """
    there = list(sharers(lake.handle(table)))
    if not there:
        source = newest_commit(lake, table).source  # most tables have it: no rows are read
        rows = [] if source else lake.frame(table).select(SOURCE_NAME).take(1)
        there = [source] if source else [str(row[0]) for row in rows]
    return any(name in there for name in names)


def register_sharer(plan: TablePlan, lake: Lake) -> None:
    """Records in the raw table that a source shares it; the caller holds the lock."""
    if not plan.is_shared or not lake.exists(plan.lake_table):
        return
    before = sharers(lake.handle(plan.lake_table))
    there = _sources(lake, plan, newest_commit(lake, plan.lake_table))
    strange = [name for name, shape in there.items() if shape is None and name != plan.source]
    if any(name not in plan.sharers for name in strange):
        return  # `check_ownership` refuses it
    after = {**there, plan.source: _shape(plan)}
    if after != before:
        lake.set_properties(
            plan.lake_table, {SOURCES: encode_property(json.dumps(after, sort_keys=True))}
        )


def _sources(lake: Lake, plan: TablePlan, head: Commit) -> Mapping[str, Any]:
    """Returns the raw table's sources, each with its shape; None for one that does not share it."""
    found = sharers(lake.handle(plan.lake_table))
    if found or not head.batch:
        return found
    source = head.source or source_of(lake, plan.lake_table, head.batch)
    return {source: None} if source is not None else {}


def _has_rows(lake: Lake, plan: TablePlan, source: str) -> bool:
    return bool(lake.frame(plan.lake_table).where(f.col(SOURCE_NAME) == source).take(1))


def _ways_out(plan: TablePlan, others: Sequence[str]) -> str:
    listed = ", ".join(others)
    return (
        f"Set another `schema` in source {plan.source}. If {plan.source} is the new name "
        f"of {others[0]}, write `formerly: [{others[0]}]` in its document. If {listed} and "
        f"{plan.source} hold parts of one table (shards, regions), set "
        f"table_options.{plan.table.ref.name}.shared: true in each"
    )


def _shape(plan: TablePlan) -> dict[str, Any]:
    return {
        "cursor_field": plan.cursor.name.lower() if plan.cursor else None,
        "primary_key": sorted(name.lower() for name in plan.key),
    }


def _compare(mine: TablePlan, other: str, shape: Mapping[str, Any]) -> None:
    own = _shape(mine)
    for option in ("primary_key", "cursor_field"):
        if own[option] != shape.get(option):
            raise TableError(
                f"it shares the raw table {mine.lake_table} with source {other}, but its "
                f"{option} is {_format_value(own[option])}, there it is "
                f"{_format_value(shape.get(option))}",
                where=f"table {mine.name}, {option}",
                remedy=f"Give table_options.{mine.table.ref.name} the same {option} in all of the "
                "table's sources",
            )


def _format_value(value: Any) -> str:
    return (", ".join(value) if isinstance(value, list) else value) or "none"


def find_takeovers(
    lake: Lake,
    names: Sequence[str],
    wanted: Sequence[TableRef],
    listed: Sequence[TableRef],
    full_refresh: bool = False,
) -> dict[tuple[str, str], TableError]:
    """Finds the tables that would be loaded into another one's raw table.

    Of several that the spec chooses, only that goes on which raw has rows of; none, if raw does not
    record it.

    Args:
        names: the source's names, now and before.
        wanted: the tables that the spec chooses.
        listed: all tables of the source.
        full_refresh: the user asked to read these tables again, and may mean others by them.

    Returns:
        An error for each, by :attr:`TableRef.key`.
    """
    chosen = {ref.key for ref in wanted}
    by_raw: dict[str, list[TableRef]] = {}
    for ref in listed:
        by_raw.setdefault(ref.lake_name.lower(), []).append(ref)
    errors: dict[tuple[str, str], TableError] = {}
    for same in by_raw.values():
        rivals = [ref for ref in same if ref.key in chosen]
        if len(same) == 1 or not rivals:
            continue
        spelled = dict.fromkeys(ref.lake_name for ref in (*rivals, *same))
        recorded = (_read_recorded(lake, table, names) for table in spelled if lake.exists(table))
        owner = next(filter(None, recorded), "")
        if len(rivals) > 1:
            error = _sharing(rivals, owner, names[0])
            errors |= {ref.key: error for ref in rivals if ref.place != owner}
        elif owner not in ("", rivals[0].place) and not full_refresh:
            error = _other(lake, rivals[0], owner, names[0])
            errors[rivals[0].key] = error
    return errors


def check_origin(plan: TablePlan, lake: Lake) -> None:
    """Refuses a table if its raw table was loaded from another one of its source.

    Raises:
        TableError: if it was, unless the user asked for a full refresh.
    """
    before = _read_recorded(lake, plan.lake_table, plan.names)
    if before not in ("", plan.table.ref.place) and not plan.accepts_other_origin:
        raise _other(lake, plan.table.ref, before, plan.source)


def record_origin(plan: TablePlan, lake: Lake) -> None:
    """Records in the raw table which table a source loads; the caller holds the lock."""
    table = plan.lake_table
    if lake.exists(table) and _read_recorded(lake, table, plan.names) != plan.table.ref.place:
        lake.set_properties(table, origin_property(plan, origins(lake.handle(table))))


def origin_property(plan: TablePlan, before: Mapping[str, str]) -> dict[str, str]:
    """Returns the property of a raw table that records which table a source loads into it.

    Args:
        before: what is recorded of its other sources.
    """
    after = {**before, plan.source: plan.table.ref.place}
    return {ORIGINS: encode_property(json.dumps(after, sort_keys=True))}


def _read_recorded(lake: Lake, table: str, names: Sequence[str]) -> str:
    there = origins(lake.handle(table))
    return next((there[name] for name in names if name in there), "")


def _sharing(rivals: Sequence[TableRef], owner: str, source: str) -> TableError:
    names = sorted(ref.name for ref in rivals)
    if len(set(names)) < len(names):
        names = sorted(ref.place for ref in rivals)
    loaded = f", which was loaded from {owner}" if owner else ""
    return TableError(
        f"{', '.join(names[:-1])} and {names[-1]} would share the raw table "
        f"{rivals[0].lake_name}{loaded}",
        where=f"source {source}, tables",
        remedy="Load one of them through a second source with another `schema`, or name "
        "it in skip_tables",
    )


def _other(lake: Lake, ref: TableRef, owner: str, source: str) -> TableError:
    name = f"{source}.{ref.lake_name}"
    return TableError(
        f"the raw table {lake.schema}.{ref.lake_name} was loaded from {owner}, and would now be "
        f"loaded from {ref.place}",
        where=f"table {name}",
        remedy="If this is the same table, renamed or moved, read all of it again: `loader run "
        f"--full-refresh --select {name}`. If not, write the right one's name in `tables` of "
        f"source {source}, with its schema",
    )

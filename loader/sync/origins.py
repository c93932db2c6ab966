"""Records the source table that each raw table is loaded from.

Names in the lake are not unique in the source: the schema `a` with a table `b_c` would have the raw
table of `a_b.c`; a table `"Orders"` fits a spec that means `orders`; a schema that comes first in
the search path has the table of each bare name. So each raw table records the table that it is
loaded from (:data:`loader.lake.commits.ORIGINS`), and no other table of the same name takes it
over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from loader.errors import TableError
from loader.lake.commits import ORIGINS, origins
from loader.lake.lake import Lake
from loader.property_codec import encode_property
from loader.sources import TableRef
from loader.sync.plan import Plan


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


def check_origin(plan: Plan, lake: Lake) -> None:
    """Refuses a table if its raw table was loaded from another one of its source.

    Raises:
        TableError: if it was, unless the user asked for a full refresh.
    """
    before = _read_recorded(lake, plan.lake_table, plan.names)
    if before not in ("", plan.table.ref.place) and not plan.accepts_other_origin:
        raise _other(lake, plan.table.ref, before, plan.source)


def record_origin(plan: Plan, lake: Lake) -> None:
    """Records in the raw table which table a source loads; the caller holds the lock."""
    table = plan.lake_table
    if lake.exists(table) and _read_recorded(lake, table, plan.names) != plan.table.ref.place:
        lake.set_properties(table, origin_property(plan, origins(lake.handle(table))))


def origin_property(plan: Plan, before: Mapping[str, str]) -> dict[str, str]:
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

"""Describes the spec's tables from their sources, and from the lake if they are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loader.codegen.table import OWN_COLUMNS, Column, Table
from loader.errors import LoaderError
from loader.lake.lake import Lake
from loader.rows.delta import COLUMNS
from loader.rows.order import SOURCE_NAME
from loader.sync.pipeline import Pipeline
from loader.sync.plan import FULL_REFRESH, Plan
from loader.sync.selection import Planned


def described(pipeline: Pipeline, select: Sequence[str]) -> Iterator[Table | LoaderError]:
    """Yields the selected tables, and an error for each that could not be read.

    A table that sources share comes once, under the first of them; its key begins with the source's
    name.

    Raises:
        SpecError: if a selection matches nothing.
    """
    shared: set[tuple[str, str]] = set()
    for part in pipeline.planned(select):
        yield from part.problems
        for plan in part.plans:
            try:
                table = _table(pipeline, part, plan)
                if plan.shared and (table.schema, table.name) in shared:
                    continue
                shared.add((table.schema, table.name))
                yield table
            except Exception as error:
                yield pipeline.cleared(error, f"table {plan.name}")


def _table(pipeline: Pipeline, part: Planned, plan: Plan) -> Table:
    lake = pipeline.stores(part.spec).lake
    synced = lake.exists(plan.lake_table)
    return Table(
        source=plan.sharers[0] if plan.shared else plan.source,
        asked=plan.table.ref.name,
        name=plan.lake_table,
        schema=lake.schema,
        columns=tuple(_columns(lake, plan, synced)),
        key=(SOURCE_NAME, *plan.key) if plan.shared and plan.key else plan.key,
        cursor=plan.cursor,
        incremental=plan.mode != FULL_REFRESH,
        keeps_redeliveries=plan.keeps_redeliveries,
        # the package's tests find the source's state only beside its raw tables
        state_in_lake=pipeline.spec.state_schema_of(part.spec) == lake.schema,
        description=plan.table.comment,
        synced=synced,
    )


def _columns(lake: Lake, plan: Plan, synced: bool) -> Iterator[Column]:
    if synced:
        fields = [(f.name, f.dataType) for f in lake.frame(plan.lake_table).schema.fields]
    else:
        fields = [(f.name, f.dataType) for f in plan.table.schema.fields]
        fields += COLUMNS.items()
    for name, type_ in fields:
        about = OWN_COLUMNS.get(name) or plan.table.column_comments.get(name, "")
        yield Column(name, type_.simpleString(), " ".join(about.split()))

"""Describes the spec's tables from their sources, and from the lake if they are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loader.codegen.table import OWN_COLUMNS, Column, Table
from loader.errors import LoaderError, TableError
from loader.lake.lake import Lake
from loader.rows.order import SOURCE_NAME
from loader.sync.pipeline import Pipeline, Planned
from loader.sync.table_plan import FULL_REFRESH, TablePlan


@dataclass(frozen=True)
class NotSynced:
    """A table that has no raw table yet: models on it could not be built."""

    name: str


def describe_tables(
    pipeline: Pipeline, select: Sequence[str]
) -> Iterator[Table | NotSynced | LoaderError]:
    """Yields the selected tables, and an error for each that could not be read.

    A table that sources share comes once, under the first of them; its key begins with the source's
    name.

    Raises:
        SpecError: if a selection matches nothing.
    """
    shared: set[tuple[str, str]] = set()
    for part in pipeline.plan_tables(select):
        yield from part.problems
        for plan in part.plans:
            try:
                if not pipeline.stores(part.spec).lake.exists(plan.lake_table):
                    yield NotSynced(plan.name)
                    continue
                table = _table(pipeline, part, plan)
                if plan.is_shared and (table.schema, table.name) in shared:
                    continue
                shared.add((table.schema, table.name))
                yield table
            except Exception as error:
                yield pipeline.redact_error(error, f"table {plan.name}")


def _table(pipeline: Pipeline, part: Planned, plan: TablePlan) -> Table:
    lake = pipeline.stores(part.spec).lake
    return Table(
        source=plan.sharers[0] if plan.is_shared else plan.source,
        asked=plan.table.ref.name,
        name=plan.lake_table,
        schema=lake.schema,
        columns=tuple(_columns(lake, plan)),
        key=(SOURCE_NAME, *plan.key) if plan.is_shared and plan.key else plan.key,
        cursor=plan.cursor,
        incremental=plan.mode != FULL_REFRESH,
        keeps_redeliveries=plan.keeps_redeliveries,
        # the package's tests find the source's state only beside its raw tables
        state_in_lake=pipeline.spec.state_schema_of(part.spec) == lake.schema,
        description=plan.table.comment,
    )


def _columns(lake: Lake, plan: TablePlan) -> Iterator[Column]:
    for field in lake.frame(plan.lake_table).schema.fields:
        if field.name.startswith("#"):
            raise TableError(
                f"dbt-spark sees no columns from {field.name!r} on, as their list would end where "
                "a name begins with #",
                where=f"table {plan.name}",
                remedy="Load it through a view that gives the column another name",
            )
        about = OWN_COLUMNS.get(field.name) or plan.table.column_comments.get(field.name, "")
        yield Column(field.name, field.dataType.simpleString(), " ".join(about.split()))

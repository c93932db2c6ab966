"""Collects the facts about tables that codegen needs, and assigns their names in dbt."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loader.errors import LoaderError, TableError
from loader.lake.lake import Lake
from loader.rows.version_order import SOURCE_NAME
from loader.rows.window import CursorField
from loader.sources.masked_table import MaskedTable
from loader.sync.pipeline import Pipeline, PlannedSource
from loader.sync.table_plan import FULL_REFRESH, TablePlan

# Descriptions of the loader's columns. The descriptions of other columns come from the source.
OWN_COLUMNS = {
    "_cq_source_name": "The source's name in loader.yml.",
    "_cq_sync_time": "Start of the sync that appended the row, in UTC; one time for each batch.",
    "_cq_batch": "The batch number: 1, 2, 3 and so on for each table, one per commit.",
    "_cq_seq": "The row's position within its batch; ascending, with possible gaps.",
    "_cq_row_hash": "A hash of the source's columns; equal rows have equal hashes.",
    "_cq_deleted": "Whether the row marks its key as deleted.",
    "_cq_generation": "A version with a higher generation is newer, even if its cursor is lower.",
}


@dataclass(frozen=True)
class Column:
    """A column. The description and the mask may be empty."""

    name: str
    type: str
    description: str = ""
    mask: str = ""


@dataclass(frozen=True)
class Table:
    """A raw table that codegen declares in dbt.

    Attributes:
        source: the source's name in the spec.
        spec_name: the table's name in the spec. `--select` and `--history` match this name.
        cursor: the cursor column; None for a full refresh without a cursor.
        incremental: whether syncs read only changes instead of all rows.
        state_in_lake: whether the table's cursor is in a state table in the same schema. Tests of
            the state require this.
        description: the table's comment in the source.
    """

    source: str
    spec_name: str
    name: str
    schema: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    cursor: CursorField | None = None
    incremental: bool = True
    state_in_lake: bool = True
    description: str = ""

    @property
    def full_name(self) -> str:
        """``<source>.<table>``, as in the state and in messages."""
        return f"{self.source}.{self.name}"

    @property
    def selectable(self) -> str:
        """The name that the patterns of ``--select`` and ``--history`` must match."""
        return f"{self.source}.{self.spec_name}"


def make_safe(name: str) -> str:
    """Converts a name to lower-case letters, digits and underscores, for a model's name."""
    folded = unicodedata.normalize("NFKD", name.casefold())
    letters = "".join(mark for mark in folded if not unicodedata.combining(mark))
    if re.fullmatch(r"[a-z0-9_]+", letters):
        return letters
    return re.sub(r"[^a-z0-9_]+", "_", letters).strip("_") or "table"


def is_plain(name: str) -> bool:
    """Returns whether Spark and dbt accept a name without quotes."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def assign_names(proposals: Mapping[str, str], remembered: Mapping[str, str]) -> dict[str, str]:
    """Assigns a unique name to each item.

    Existing names are kept. If several new items have the same proposed name, the item with exactly
    this name gets it or, if there is none, the first item in alphabetical order. A number is added
    to the other items' names.

    Args:
        proposals: maps the exact name of each item to its proposed name.
        remembered: the existing names, including the names of items that are not selected.
    """
    names = {exact: remembered[exact] for exact in proposals if exact in remembered}
    taken = {name.lower() for name in remembered.values()}
    fresh = [exact for exact in proposals if exact not in names]
    for exact in sorted(fresh, key=lambda exact: (proposals[exact] != exact, exact)):
        name, number = proposals[exact], 1
        while name.lower() in taken:
            number += 1
            name = f"{proposals[exact]}_{number}"
        names[exact] = name
        taken.add(name.lower())
    return {exact: names[exact] for exact in proposals}


@dataclass(frozen=True)
class NotSynced:
    """A table in the spec that has no raw table yet, so its models could not be built."""

    name: str


def describe_tables(
    pipeline: Pipeline, select: Sequence[str]
) -> Iterator[Table | NotSynced | LoaderError]:
    """Yields the selected tables, and an error for each table that could not be read.

    A table that several sources share is yielded only once, for the first source. The first column
    of its key contains the source's name. Raises a SpecError if a selection matches nothing.
    """
    shared: set[tuple[str, str]] = set()
    for part in pipeline.plan_tables(select):
        yield from part.problems
        for plan in part.plans:
            try:
                if not pipeline.open_stores(part.spec).lake.exists(plan.lake_table):
                    yield NotSynced(plan.name)
                    continue
                table = _table(pipeline, part, plan)
                if plan.is_shared and (table.schema, table.name) in shared:
                    continue
                shared.add((table.schema, table.name))
                yield table
            except Exception as error:
                yield pipeline.redact_error(error, f"table {plan.name}")


def _table(pipeline: Pipeline, part: PlannedSource, plan: TablePlan) -> Table:
    lake = pipeline.open_stores(part.spec).lake
    return Table(
        source=plan.sharers[0] if plan.is_shared else plan.source,
        spec_name=plan.table.ref.name,
        name=plan.lake_table,
        schema=lake.schema,
        columns=tuple(_columns(lake, plan)),
        key=(SOURCE_NAME, *plan.key) if plan.is_shared and plan.key else plan.key,
        cursor=plan.cursor,
        incremental=plan.mode != FULL_REFRESH,
        # The `state_consistent` test reads state only from the schema of the raw tables.
        state_in_lake=pipeline.spec.state_schema_of(part.spec) == lake.schema,
        description=plan.table.comment,
    )


def _columns(lake: Lake, plan: TablePlan) -> Iterator[Column]:
    masks: dict[str, str] = {}
    if isinstance(plan.table, MaskedTable):
        masks = {name.lower(): mask for name, mask in plan.table.masks.items()}
    for field in lake.frame(plan.lake_table).schema.fields:
        if field.name.startswith("#"):
            raise TableError(
                f"dbt-spark ignores {field.name!r} and all columns after it, because its list of "
                "columns ends at a name that begins with #",
                where=f"table {plan.name}",
                remedy="Load a view that gives the column another name",
            )
        about = OWN_COLUMNS.get(field.name) or plan.table.column_comments.get(field.name, "")
        mask = masks.get(field.name.lower(), "")
        yield Column(field.name, field.dataType.simpleString(), " ".join(about.split()), mask)

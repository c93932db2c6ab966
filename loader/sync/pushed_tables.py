"""Finds raw tables whose rows were pushed by another program.

The sources of these tables are not in the spec. Each pushed raw table has a property with the key
that the other program declared. Commands find the tables by this property.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loader.errors import DamagedError, LoaderError, SpecError, TableError
from loader.lake.commits import newest_commit
from loader.lake.lake import Lake
from loader.lake.locks import create_lease
from loader.lake.raw_table import list_raw_tables
from loader.lake.system_tables import STATES, describe_remedy
from loader.names import in_the_lake
from loader.property_codec import decode_property, encode_property
from loader.rows.bookkeeping import COLUMNS
from loader.sources.interface import Progress, Source, SourceTable, TableRef
from loader.spark.error_translation import translate_error
from loader.spec.options import TableOptions
from loader.spec.plugins import LakeDestination, SourceSpec

if TYPE_CHECKING:
    from loader.sources.interface import Snapshot
    from loader.spec.spec import Spec
    from loader.sync.pipeline import Pipeline

REMEDY = describe_remedy("Pushes of other programs", STATES)
PUSHED = "pushed tables"
"""The location that messages give for pushed sources, which have no document in the spec."""

_PROPERTY = "strandline.served"
"""The table property that contains the key and says whether a batch contains all rows."""


@dataclass(frozen=True)
class PushedTable:
    """A table in a batch that another program pushes.

    Attributes:
        primary_key: the key columns. If this is empty, the recorded key is kept.
        is_whole: whether the batch contains all rows of the table.
    """

    name: str
    primary_key: Sequence[str]
    is_whole: bool


def record_pushed(lake: Lake, table: PushedTable) -> None:
    """Records in a raw table that its rows are pushed, and which key the program declared.

    Raises a LockedError if another run has locked the table.
    """
    raw = in_the_lake(table.name)
    if not lake.exists(raw):
        return
    recorded = _read_property(lake, raw)
    keys = [*table.primary_key] or (recorded or {}).get("primary_key", [])
    note = {"primary_key": keys, "whole": table.is_whole}
    if note == recorded:
        return
    lease = create_lease(lake, raw, f"table {lake.schema}.{raw}", uuid.uuid4().hex[:12])
    lease.acquire()
    try:
        lake.set_properties(raw, {_PROPERTY: encode_property(json.dumps(note, sort_keys=True))})
    finally:
        lease.release()


def add_pushed_tables(pipeline: Pipeline, where: str, warn: Callable[[str, str], None]) -> None:
    """Adds the pushed tables of a spec's lakes to a pipeline's sources.

    A table that a source of the spec has since loaded belongs to that source. If the spec has
    sources, an unreadable lake is skipped, because the commands that need the lake report the
    error. The errors of unreadable tables are added to
    :attr:`loader.sync.pipeline.Pipeline.unreadable`.

    Args:
        warn: called with the location of each skipped table or source, and with the reason.

    Raises:
        LoaderError: if there is no source, or if a lake is unreadable and the spec has no source.
    """
    spec = pipeline.spec
    names = {name for source in spec.sources for name in (source.name, *source.formerly)}
    for destination in _list_lakes(spec):
        lake = Lake(pipeline.spark, destination.lake.schema_)
        try:
            tables_by_source, unreadable = _read_properties(lake)
        except Exception as problem:
            if not spec.sources:
                raise pipeline.redact_error(problem, f"destination {destination.name}") from problem
            continue
        for table, why in unreadable.items():
            pipeline.unreadable.append(pipeline.redact_error(why, f"table {lake.schema}.{table}"))
        for name, tables in tables_by_source.items():
            if name in names:
                text = (
                    f"a source of the spec has the same name, {name}: the pushed tables are skipped"
                )
                warn(lake.schema, text)
                continue
            names.add(name)
            source = SourceSpec(
                name=name, path="served", tables=("*",), destinations=(destination.name,)
            )
            source._where, source._redactor = PUSHED, spec.redactor
            pipeline.sources.append((source, PushedSource(name, lake, tables, spec.folder)))
    if not pipeline.sources:
        raise next(iter(pipeline.unreadable), _build_no_source_error(where))
    for error in pipeline.unreadable:
        text = f"{error.what}. If another program pushed it, it is skipped. {error.remedy}"
        warn(error.where, text)
    sources = tuple(source for source, _ in pipeline.sources)
    pipeline.spec = spec.model_copy(update={"sources": sources})


def _build_no_source_error(where: str) -> LoaderError:
    return SpecError(
        "there is no source, and no program has pushed a table yet",
        where=where,
        remedy="Add a document with `kind: source`, or push a table into the lake",
    )


def _list_lakes(spec: Spec) -> list[LakeDestination]:
    """Returns the lakes of a spec that this process's Spark session can read."""
    every = [lake for lake in spec.destinations if isinstance(lake, LakeDestination)]
    used = [spec.destination(source.destinations[0]).lake for source in spec.sources]
    target = next(((lake.profile, lake.target) for lake in (*used, *(e.lake for e in every))), None)
    lakes: dict[str, LakeDestination] = {}
    for lake in every:
        if (lake.lake.profile, lake.lake.target) == target:
            lakes.setdefault(lake.lake.schema_, lake)
    return list(lakes.values())


def _read_properties(
    lake: Lake,
) -> tuple[dict[str, dict[str, dict[str, Any]]], dict[str, Exception]]:
    """Reads the properties of all pushed tables, keyed by source and table.

    Also returns the error of each unreadable table, because it may be a pushed table.
    """
    properties_by_source: dict[str, dict[str, dict[str, Any]]] = {}
    if not _has_state_table(lake):
        return properties_by_source, {}
    tables, unreadable = list_raw_tables(lake)
    for table in tables:
        try:
            properties = _read_property(lake, table)
            source = newest_commit(lake, table).source if properties else None
        except (Py4JError, PySparkException, TableError) as problem:
            unreadable[table] = problem
            continue
        if properties and source:
            properties_by_source.setdefault(source, {})[table] = properties
    return properties_by_source, unreadable


def _has_state_table(lake: Lake) -> bool:
    """Returns whether a lake has the table that :meth:`Ingest.prepare` creates."""
    try:
        return lake.exists(STATES)
    except (Py4JError, PySparkException) as problem:
        if isinstance(translate_error(problem, f"table {lake.schema}.{STATES}"), DamagedError):
            return True
        raise


def _read_property(lake: Lake, table: str) -> dict[str, Any] | None:
    text = lake.handle(table).properties().get(_PROPERTY)
    properties: dict[str, Any] | None = json.loads(decode_property(text)) if text else None
    return properties


class PushedSource(Source):
    """A source whose rows are pushed. Only the raw tables describe its tables."""

    def __init__(
        self, name: str, lake: Lake, properties: Mapping[str, Mapping[str, Any]], folder: Path
    ) -> None:
        super().__init__(name, None, lake.spark, folder)
        self.lake = lake
        self._said = properties

    @property
    def table_options(self) -> Mapping[str, TableOptions]:
        """The options of each table, derived from the property of its raw table."""
        return {
            name: TableOptions(
                sync_mode="full_refresh" if properties["whole"] else "incremental",
                redelivered_rows="drop" if properties["primary_key"] else "append",
            )
            for name, properties in self._said.items()
        }

    def tables(self) -> list[TableRef]:
        return [TableRef(name) for name in sorted(self._said)]

    def describe(self, ref: TableRef) -> SourceTable:
        """Describes a table with the columns of its raw table and the recorded key."""
        schema = self.lake.schema_of(in_the_lake(ref.name))
        bookkeeping_columns = {name.lower() for name in COLUMNS}
        columns = type(schema)(
            [field for field in schema if field.name.lower() not in bookkeeping_columns]
        )
        key = tuple(self._said[ref.name]["primary_key"])
        return SourceTable(ref, columns, primary_key=key, progress=Progress.MARK)

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        """Raises an error, because only the other program can read the rows."""
        yield self._refuse()

    def _refuse(self) -> NoReturn:
        raise TableError(
            "another program pushes its tables, so the loader cannot read them from a source",
            where=f"source {self.name}",
            remedy="Run the program that pushes them",
        )

"""Finds tables that `loader serve` has appended, for other commands: sources not in the spec.

The spec does not name the tables that others sync into the lake. Each served raw table has a
property that marks it, with the key that the sync declared.
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
from loader.spark.error_translation import clear
from loader.spec.options import TableOptions
from loader.spec.plugins import LakeDestination, SourceSpec

if TYPE_CHECKING:
    from loader.sources.interface import Snapshot
    from loader.spec.spec import Spec
    from loader.sync.pipeline import Pipeline

REMEDY = describe_remedy("What `cloudquery sync` writes", STATES)
SERVER = "loader serve"
"""The place of a served source in messages: in no spec, but with this command."""

SERVED = "strandline.served"
"""Property of a raw table that `loader serve` has written: its key, and whether it was whole."""


@dataclass(frozen=True)
class PushedTable:
    """A table of a batch that another program pushes.

    Attributes:
        name: as the program names it.
        primary_key: its columns; if none are given, the table keeps the key that it has.
        is_whole: whether the batch brings all rows that there are.
    """

    name: str
    primary_key: Sequence[str]
    is_whole: bool


def record_pushed(lake: Lake, table: PushedTable) -> None:
    """Records in a raw table that it is pushed, and its key.

    Raises:
        LockedError: if another run holds the table by now.
    """
    raw = in_the_lake(table.name)
    if not lake.exists(raw):
        return
    before = _read_note(lake, raw)
    keys = [*table.primary_key] or (before or {}).get("primary_key", [])
    now = {"primary_key": keys, "whole": table.is_whole}
    if now == before:
        return
    lease = create_lease(lake, raw, f"table {lake.schema}.{raw}", uuid.uuid4().hex[:12])
    lease.acquire()
    try:
        lake.set_properties(raw, {SERVED: encode_property(json.dumps(now, sort_keys=True))})
    finally:
        lease.release()


def add_served(pipeline: Pipeline, where: str, warn: Callable[[str, str], None]) -> None:
    """Adds the tables served into a spec's lakes to a pipeline's sources.

    A table that a source of the spec has loaded since belongs to that source. A lake that cannot be
    looked at has none, if the spec has sources: commands that need it report its error. Tables
    that cannot be read are in :attr:`loader.sync.pipeline.Pipeline.unreadable`.

    Args:
        warn: called for each table or source that is left out, with its name and the reason.

    Raises:
        LoaderError: if there is no source then, neither in the spec nor in a lake. If a table
            cannot be read, that is the error.
    """
    spec = pipeline.spec
    named = {name for one in spec.sources for name in (one.name, *one.formerly)}
    for destination in _lakes(spec):
        lake = Lake(pipeline.spark, destination.lake.schema_)
        try:
            served, unread = _read_served(lake)
        except Exception as problem:
            if not spec.sources:
                raise pipeline.redact_error(problem, f"destination {destination.name}") from problem
            continue
        for table, why in unread.items():
            pipeline.unreadable.append(pipeline.redact_error(why, f"table {lake.schema}.{table}"))
        for name, tables in served.items():
            if name in named:
                text = f"another source is called {name}, too: what `loader serve` has written for "
                warn(lake.schema, f"{text}it is left out")
                continue
            named.add(name)
            source = SourceSpec(
                name=name, path="served", tables=("*",), destinations=(destination.name,)
            )
            source._where, source._redactor = SERVER, spec.redactor
            pipeline.sources.append((source, PushedSource(name, lake, tables, spec.folder)))
    if not pipeline.sources:
        raise next(iter(pipeline.unreadable), _nothing(where))
    for error in pipeline.unreadable:
        text = f"{error.what}. If `loader serve` has written it, it is left out. {error.remedy}"
        warn(error.where, text)
    sources = tuple(source for source, _ in pipeline.sources)
    pipeline.spec = spec.model_copy(update={"sources": sources})


def _nothing(where: str) -> LoaderError:
    return SpecError(
        "there is no source, and `loader serve` has not written a table yet",
        where=where,
        remedy="Add a document with `kind: source`, or run a `cloudquery sync` into the lake",
    )


def _lakes(spec: Spec) -> list[LakeDestination]:
    """Returns the destinations of a spec that are lakes of this process's Spark, each lake once."""
    every = [one for one in spec.destinations if isinstance(one, LakeDestination)]
    used = [spec.destination(source.destinations[0]).lake for source in spec.sources]
    own = next(((lake.profile, lake.target) for lake in (*used, *(e.lake for e in every))), None)
    found: dict[str, LakeDestination] = {}
    for one in every:
        if (one.lake.profile, one.lake.target) == own:
            found.setdefault(one.lake.schema_, one)
    return list(found.values())


def _read_served(lake: Lake) -> tuple[dict[str, dict[str, dict[str, Any]]], dict[str, Exception]]:
    """Reads each served table's property, by source and table.

    Also returns the errors of tables that cannot be read, which may be served.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    if not _is_served(lake):
        return found, {}
    tables, unread = list_raw_tables(lake)
    for table in tables:
        try:
            said = _read_note(lake, table)
            source = newest_commit(lake, table).source if said else None
        except (Py4JError, PySparkException, TableError) as problem:
            unread[table] = problem
            continue
        if said and source:
            found.setdefault(source, {})[table] = said
    return found, unread


def _is_served(lake: Lake) -> bool:
    """Returns whether there is the table that each server makes before anything else."""
    try:
        return lake.exists(STATES)
    except (Py4JError, PySparkException) as problem:
        if isinstance(clear(problem, f"table {lake.schema}.{STATES}"), DamagedError):
            return True
        raise


def _read_note(lake: Lake, table: str) -> dict[str, Any] | None:
    text = lake.handle(table).properties().get(SERVED)
    said: dict[str, Any] | None = json.loads(decode_property(text)) if text else None
    return said


class PushedSource(Source):
    """The tables of a source that others sync into the lake, described as raw has them."""

    def __init__(
        self, name: str, lake: Lake, said: Mapping[str, Mapping[str, Any]], folder: Path
    ) -> None:
        super().__init__(name, None, lake.spark, folder)
        self.lake = lake
        self._said = said

    @property
    def table_options(self) -> Mapping[str, TableOptions]:
        """The options of tables that were synced so."""
        return {
            name: TableOptions(
                sync_mode="full_refresh" if said["whole"] else "incremental",
                redelivered_rows="drop" if said["primary_key"] else "append",
            )
            for name, said in self._said.items()
        }

    def tables(self) -> list[TableRef]:
        """Lists them."""
        return [TableRef(name) for name in sorted(self._said)]

    def describe(self, ref: TableRef) -> SourceTable:
        """Describes a table by its columns in raw."""
        schema = self.lake.schema_of(in_the_lake(ref.name))
        own = {name.lower() for name in COLUMNS}
        columns = type(schema)([field for field in schema if field.name.lower() not in own])
        key = tuple(self._said[ref.name]["primary_key"])
        return SourceTable(ref, columns, primary_key=key, progress=Progress.MARK)

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        """Refuses: nothing can be read from here."""
        yield self._refuse()

    def _refuse(self) -> NoReturn:
        raise TableError(
            "`loader serve` writes its tables, so they cannot be read from a source",
            where=f"source {self.name}",
            remedy="Sync them with `cloudquery sync`",
        )

"""``loader state``: shows and changes cursors by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import click

from loader.cli import state_upkeep
from loader.cli.state_stores import find_key, lock_tables, stores_of
from loader.errors import SpecError, StateError, TableError

if TYPE_CHECKING:
    from loader.cli.settings import Settings
    from loader.state import TableState
    from loader.sync.pipeline import Pipeline
    from loader.sync.stores import Stores


@click.group(short_help="Shows, moves, exports or rebuilds cursors.")
def state() -> None:
    """Shows and changes stored cursors. A change is a new version; old ones stay."""


@state.command("list", short_help="Shows every table's cursor.")
@click.pass_obj
def list_(settings: Settings) -> None:
    """Shows the newest state of every table."""
    from loader.cli.settings import read_progress
    from loader.state import StateRow, TableState
    from loader.state.value import choose_effective_row
    from loader.sync.status_readers import StatusReaders, list_state_readers

    def read(progress: Sequence[StatusReaders]) -> list[list[StateRow]]:
        return [state.rows() for state in list_state_readers(progress)]

    rows: list[tuple[object, ...]] = []
    found = read_progress(settings, read)
    by_key = (pair for each in found for pair in groupby(each, key=lambda row: row.key))
    for key, group in by_key:
        top, *others = group
        try:
            said = [top, *(row for row in others if row.version == top.version)]
            top = choose_effective_row(said, partial(settings.output.warning, table=key)) or top
            known = TableState.from_json(top.value, key)
            cursor = known.cursor.text if known.cursor else None
            rows.append((key, cursor, known.cursor_field, known.batch, top.version))
        except StateError as error:
            settings.output.warning(str(error), table=key)
            rows.append((key, top.value, None, None, top.version))
    columns = ("table", "cursor", "field", "batch", "version")
    if rows or settings.output.json:
        settings.output.table("state", columns, rows)
    else:
        settings.output.say("No cursor is stored yet: run `loader run`.")


@state.command(short_help="Shows all versions of a cursor.")
@click.argument("table")
@click.pass_obj
def show(settings: Settings, table: str) -> None:
    """Shows all versions of TABLE's state, newest first: source.table, or table if it is clear."""
    from loader.cli.settings import read_progress
    from loader.state import StateRow
    from loader.sync.status_readers import StatusReaders

    def read(progress: Sequence[StatusReaders]) -> list[StateRow]:
        key = find_key(progress, table, "loader state show")
        source = key.partition(".")[0]
        [one, *_] = (one for one in progress if source in one.names)
        return one.state.rows(key)

    settings.output.table(
        "state",
        ("version", "value", "updated_at"),
        [(row.version, row.value, row.updated_at) for row in read_progress(settings, read)],
    )


@state.command("set", short_help="Moves a cursor.")
@click.argument("table")
@click.argument("cursor")
@click.pass_obj
def set_(settings: Settings, table: str, cursor: str) -> None:
    """Starts TABLE's next sync at CURSOR (inclusive).

    An older value is safe: rows that are read again are recognised. A newer one skips rows.
    """
    from loader.cli.settings import open_pipeline_with_served
    from loader.sources.interface import is_connector_state
    from loader.sync.table_plan import parse_cursor

    with open_pipeline_with_served(settings) as pipeline:
        table = _resolve_name(pipeline, table, "loader state set")
        stores = stores_of(pipeline, table)
        known = _read_known_state(stores, table)
        if known is not None and is_connector_state(known.mark):
            raise SpecError(
                f"{table} goes on from its connector's own state, which is not a cursor",
                where="loader state set",
                remedy="`loader state reset` makes the connector start from the beginning; most "
                "connectors have a start date in their own `config`",
            )
        if known is None or not known.batch:
            raise SpecError(
                f"{table} has no cursor yet, so its type is not known",
                where="loader state set",
                remedy="Set `initial_cursor` in the spec, or run a first sync",
            )
        if known.cursor is None or known.cursor_field is None:
            raise SpecError(
                f"{table} has no cursor: it was not read by one",
                where="loader state set",
                remedy="`loader run --full-refresh` reads all of it again",
            )
        try:
            moved = parse_cursor(cursor, known.cursor.type, "loader state set")
        except TableError as error:
            raise SpecError(error.what, where=error.where, remedy=error.remedy) from None
        _store(settings, pipeline, table, known.set_by_hand(moved))


@state.command(short_help="Begins a table again from the start.")
@click.argument("table")
@click.pass_obj
def reset(settings: Settings, table: str) -> None:
    """Forgets TABLE's cursor: the next sync reads from the beginning and appends what is new."""
    from loader.cli.settings import open_pipeline_with_served

    with open_pipeline_with_served(settings) as pipeline:
        table = _resolve_name(pipeline, table, "loader state reset")
        stores = stores_of(pipeline, table)
        known = _read_known_state(stores, table)
        if known is None:
            raise SpecError(
                f"there is no state for {table!r}",
                where="loader state reset",
                remedy="`loader state list` shows what there is",
            )
        _store(settings, pipeline, table, known.move_cursor(None, known.cursor_field))


def _resolve_name(pipeline: Pipeline, table: str, where: str) -> str:
    """Returns a table's name with its source, which may be left out if it is clear."""
    from loader.sync.status_readers import list_readers_by_spark

    return table if "." in table else find_key(list_readers_by_spark(pipeline), table, where)


def _read_known_state(stores: Stores, table: str) -> TableState | None:
    """Returns a table's state, or, if that cannot be read, the one in its newest data commit."""
    from loader.lake.commits import newest_commit, sharers
    from loader.state import TableState

    try:
        return stores.state.read(table)
    except StateError:
        source, _, name = table.partition(".")
        lake = stores.lake
        of = (source,) if lake.exists(name) and sharers(lake.handle(name)) else ()
        head = newest_commit(lake, name, of) if lake.exists(name) else None
        if head is None or head.state is None:
            return TableState(batch=head.batch if head else 0)
        return TableState.from_json(head.state, table)


def _store(settings: Settings, pipeline: Pipeline, table: str, wanted: TableState) -> None:
    with lock_tables(pipeline, [table]):
        row = stores_of(pipeline, table).state.write(table, wanted)
    shown = wanted.cursor.text if wanted.cursor else "none: the next sync reads from the beginning"
    version = f" (version {row.version})" if row else " (unchanged)"
    settings.output.say(f"{table}: cursor {shown}{version}")


for _command in (
    state_upkeep.prune,
    state_upkeep.export,
    state_upkeep.import_,
    state_upkeep.rebuild,
):
    state.add_command(_command)

"""``loader state``: shows, moves, prunes, exports, imports and rebuilds cursors."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from typing import IO, TYPE_CHECKING

import click

from loader.cli.console import OUT
from loader.cli.system_table_upkeep import list_backends, list_system_tables
from loader.error_report import did_you_mean
from loader.errors import LoaderError, LockedError, SpecError, StateError, TableError
from loader.names import explain_refusal, in_the_lake, is_wildcard, match_selection
from loader.spark.named_steps import step

if TYPE_CHECKING:
    from loader.cli.settings import Settings
    from loader.lake.lease import Lease
    from loader.state import TableState
    from loader.sync.pipeline import Pipeline
    from loader.sync.status_readers import StatusReaders
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
    from loader.sync.status_readers import list_state_readers

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


@state.command(short_help="Forgets old versions of cursors.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many versions of each table's state to keep.",
)
@click.pass_obj
def prune(settings: Settings, keep: int) -> None:
    """Forgets all but the newest N versions of each table's state."""
    from loader.cli.settings import open_pipeline_with_served

    with open_pipeline_with_served(settings) as pipeline:
        pruned = [one for shared in list_backends(pipeline) for one in shared.prune(keep)]
        settings.output.table("pruned", ("table", "versions"), pruned)
        if not pruned:
            settings.output.say(f"No table has more than {keep} versions.")


@state.command(short_help="Writes all cursors to a file.")
@click.argument("file", type=click.File("w", encoding="utf-8", atomic=True), default="-")
@click.pass_obj
def export(settings: Settings, file: IO[str]) -> None:
    """Writes every version of every cursor to FILE (default: stdout), one JSON object per line."""
    from loader.cli.settings import open_pipeline_with_served

    lines = []  # all of them, before an earlier export makes way
    with open_pipeline_with_served(settings) as pipeline:
        for shared in list_backends(pipeline):
            for row in reversed(shared.stores.state.rows()):  # as they were written
                if shared.holds(row.key):
                    line = {
                        "key": row.key,
                        "value": row.value,
                        "version": row.version,
                        "updated_at": row.updated_at,
                    }
                    lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    text = "".join(lines)
    if file.name == "<stdout>":
        settings.output.streams.write(OUT, partial(file.write, text))
    else:
        file.write(text)


@state.command("import", short_help="Adds the cursors of an export.")
@click.argument("file", type=click.File("r", encoding="utf-8-sig"))
@click.option("--force", is_flag=True, help="Import even if the backend has other, newer versions.")
@click.pass_obj
def import_(settings: Settings, file: IO[str], force: bool) -> None:
    """Adds the cursors that `loader state export` wrote to FILE (- for stdin).

    A table without state gets all its versions; one that has state gets FILE's newest as a new
    version. Everything is checked before anything is written.
    """
    from loader.cli.settings import open_pipeline_with_served
    from loader.state.export import choose_rows, read_export

    with open_pipeline_with_served(settings) as pipeline:
        given = read_export(file)
        stores = {key: stores_of(pipeline, key) for key in given}
        _refuse_own(pipeline, stores)
        for key in given:
            if not _in_spec(pipeline, key):
                text = f"{key}: the spec has no such table, so no run uses this cursor"
                settings.output.warning(text, table=key)
        by_backend = {
            key: shared.stores.state
            for shared in list_backends(pipeline)
            for key in given
            if shared.holds(key)
        }
        with lock_tables(pipeline, sorted(stores)):
            for state in {id(state): state for state in by_backend.values()}.values():
                state.prepare()
            wanted = {
                key: choose_rows(by_backend[key], key, rows, force) for key, rows in given.items()
            }
            for state in {id(state): state for state in by_backend.values()}.values():
                keys = [key for key, backend in by_backend.items() if backend is state]
                state.append([row for key in keys for row in wanted[key]])
        shown = [(k, len(rows), rows[-1].version if rows else None) for k, rows in wanted.items()]
        settings.output.table("imported", ("table", "versions_added", "version"), shown)


@state.command(short_help="Rebuilds state and ledger from raw tables.")
@click.option("-s", "--select", multiple=True, help="source.table or a wildcard; repeatable.")
@click.pass_obj
def rebuild(settings: Settings, select: tuple[str, ...]) -> None:
    """Rebuilds state and ledger from the raw tables' own commits.

    Existing rows stay; a state that differs from the newest commit gets a new version. Without
    --select, state and ledger that are damaged are put aside first.
    """
    from loader.cli.settings import open_pipeline_with_served
    from loader.maintenance.rebuild import (
        quarantine_table,
        raw_tables,
        rebuild_table,
        source_commits,
    )

    with open_pipeline_with_served(settings) as pipeline:
        rows: list[tuple[object, ...]] = []
        failed: set[str] = set()

        def report_problem(where: str, problem: Exception) -> None:
            if where not in failed:  # sources that share a lake report the same damaged table
                settings.output.error(pipeline.redact_error(problem, where))
            failed.add(where)

        for own in (
            list_system_tables(pipeline) if not select else ()
        ):  # it is recreated whole, or not
            where = f"{own.lake.schema}.{own.name}"
            try:
                aside = quarantine_table(own.lake, own.name)
                if aside is not None:
                    settings.output.warning(f"{where}: {aside}", table=where)
            except Exception as problem:
                report_problem(f"table {where}", problem)
        for source, _ in pipeline.sources:
            names = (source.name, *source.formerly)
            try:
                pipeline.prepare(source)
                stores = pipeline.stores(source)
                found, unreadable = raw_tables(stores, names)
                batches = stores.ledger.batches(names)
            except Exception as problem:
                report_problem(f"source {source.name}", problem)
                continue
            for table, why in unreadable.items():
                if _is_chosen(f"{source.name}.{table}", select):
                    report_problem(f"table {stores.lake.schema}.{table}", why)
            for table in found:
                name = f"{source.name}.{table}"
                if not _is_chosen(name, select):
                    continue
                tell = partial(settings.output.warning, table=name)
                try:
                    with step(f"{name}: rebuilding"), lock_tables(pipeline, [name]) as run_id:
                        # Read again: a run may have published before the table was locked.
                        known = batches.get(table, set())
                        commits = source_commits(stores.lake, table, names, known)
                        done = rebuild_table(names, table, commits, stores, run_id, tell, known)
                    rows.append((done.table, done.batches, done.states, done.syncs))
                except Exception as problem:
                    report_problem(f"table {name}", problem)
        columns = ("table", "batches", "states_added", "syncs_added")
        settings.output.table("rebuilt", columns, rows)
        if not rows and not failed:
            raise SpecError(
                "there is no such raw table" if select else "there is no raw table yet",
                where="loader state rebuild",
                remedy="`loader run` creates them",
            )
        if failed:
            sys.exit(LoaderError.exit_code)


def _is_chosen(name: str, select: tuple[str, ...]) -> bool:
    return not select or bool(match_selection(name, select))


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


def _refuse_own(pipeline: Pipeline, keys: Iterable[str]) -> None:
    """Refuses keys of the loader's own tables: they have no cursor.

    Raises:
        SpecError: names the key.
    """
    from loader.lake.catalog_owners import TABLE as OWNERS

    own = {OWNERS, *(table.name.lower() for table in list_system_tables(pipeline))}
    for key in keys:
        name = key.partition(".")[2]
        if name.lower() in own:
            raise SpecError(
                f"{name!r} is one of the loader's own tables, which have no cursor",
                where=f"state {key}",
                remedy="Leave its lines out",
            )


def _in_spec(pipeline: Pipeline, key: str) -> bool:
    """Whether the spec may name a table; a wildcard is not compared with the source."""
    source, _, table = key.lower().partition(".")
    return any(
        fnmatchcase(table, in_the_lake(pattern).lower())
        for spec, _ in pipeline.sources
        if spec.name.lower() == source
        for pattern in spec.tables
    )


def stores_of(pipeline: Pipeline, table: str) -> Stores:
    """Returns the stores that hold a table's state.

    Raises:
        SpecError: if the name is not `source.table`, or the spec has no such source or table.
    """
    name, dot, rest = table.partition(".")
    _refuse_impossible(table)
    for source, _ in pipeline.sources:
        if source.name == name and dot and rest:
            return pipeline.stores(source)
    names = [source.name for source, _ in pipeline.sources]
    raise SpecError(
        f"{table!r} is not `source.table` with a source of the spec",
        where="loader state",
        remedy=f"Its sources: {', '.join(names)}; `loader state list` shows the tables",
    )


def _refuse_impossible(table: str) -> None:
    """Refuses the key of a table that cannot exist."""
    rest = table.partition(".")[2]
    wrong = explain_refusal(rest) if rest else None
    if wrong is not None:
        raise SpecError(
            wrong,
            where=f"state {table!r}",
            remedy="No table can be named so: leave it out; `loader state list` shows the tables",
        )


def find_key(progress: Sequence[StatusReaders], table: str, where: str) -> str:
    """Returns the key of a table's state; the name of its source may be left out if it is clear.

    Args:
        where: the command, for errors.

    Raises:
        SpecError: if there is no such state, or several sources have one.
    """
    from loader.sync.status_readers import list_state_readers

    _refuse_impossible(table)
    sources = {name for one in progress for name in one.names}
    stored = {row.key for state in list_state_readers(progress) for row in state.rows()}
    keys = sorted(key for key in stored if key.partition(".")[0] in sources)
    if table in keys:
        return table
    wanted = {table.lower(), in_the_lake(table).lower()}
    found = [key for key in keys if key.partition(".")[2].lower() in wanted]
    if not found and not is_wildcard(table):
        found = [key for key in keys if match_selection(key, [table])]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(
            f"{len(found)} tables are called {table!r}",
            where=where,
            remedy=f"Name one with its source: {', '.join(found[:20])}",
        )
    near = did_you_mean(table, keys) or did_you_mean(table, [key.partition(".")[2] for key in keys])
    raise SpecError(
        f"there is no state for {table!r}",
        where=where,
        remedy=f"{near} `loader state list` shows what there is".strip(),
    )


@contextmanager
def lock_tables(pipeline: Pipeline, tables: Sequence[str]) -> Iterator[str]:
    """Locks tables (`source.table`) against runs; yields the run id that holds the locks.

    Raises:
        LockedError: if a run holds one of them; this does not wait for it.
    """
    from loader.lake.lease import Heartbeat
    from loader.lake.locks import create_lease

    run_id = uuid.uuid4().hex[:12]
    leases: list[Lease] = []
    with ExitStack() as stack:
        taken: set[tuple[str, str]] = set()
        for table in tables:
            lake, raw = stores_of(pipeline, table).lake, table.partition(".")[2]
            if (lake.schema, raw) in taken:
                continue  # several sources share it
            taken.add((lake.schema, raw))
            lease = create_lease(lake, raw, f"table {table}", run_id)
            try:
                lease.acquire()
            except LockedError:
                raise LockedError(
                    "a run is syncing this table",
                    where=f"table {table}",
                    remedy="Wait for it, then try again: its end would overwrite the change",
                ) from None
            stack.callback(lease.release)
            leases.append(lease)
        stack.enter_context(Heartbeat(leases))
        yield run_id

"""``loader state``: shows, moves, prunes, exports, imports and rebuilds cursors."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from typing import IO, TYPE_CHECKING

import click

from loader.cli.console import OUT
from loader.cli.options import complete_tables, select_option
from loader.cli.settings import LOCAL, Settings, open_pipeline_with_pushed_tables, read_progress
from loader.cli.system_table_upkeep import list_backends, list_system_tables
from loader.errors import (
    LoaderError,
    LockedError,
    NewerStateError,
    SpecError,
    StateError,
    TableError,
    did_you_mean,
)
from loader.names import explain_refusal, in_the_lake, is_wildcard, match_selection
from loader.spark.named_steps import step

if TYPE_CHECKING:
    from loader.lake.locks import Lease
    from loader.spec.plugins import SourceSpec
    from loader.state import TableState
    from loader.sync.pipeline import Pipeline
    from loader.sync.status_readers import StatusReaders
    from loader.sync.stores import Stores


@click.group(short_help="Shows, moves, exports or rebuilds cursors.")
@click.pass_obj
def state(settings: Settings) -> None:
    """Shows and changes stored cursors. Each change adds a version."""
    settings.master = LOCAL


@state.command("list", short_help="Shows every table's cursor.")
@click.pass_obj
def list_(settings: Settings) -> None:
    """Shows the latest state of every table."""
    from loader.state import StateRow, TableState
    from loader.state.value import choose_effective_row
    from loader.sync.status_readers import list_state_readers

    def read(progress: Sequence[StatusReaders]) -> list[list[StateRow]]:
        return [state.rows() for state in list_state_readers(progress)]

    rows: list[tuple[object, ...]] = []
    stored = read_progress(settings, read)
    by_key = (pair for each in stored for pair in groupby(each, key=lambda row: row.key))
    for key, group in by_key:
        newest, *older = group
        try:
            same_version = [newest, *(row for row in older if row.version == newest.version)]
            warn = partial(settings.output.warning, table=key)
            newest = choose_effective_row(same_version, warn) or newest
            table_state = TableState.from_json(newest.value, key)
            cursor = table_state.cursor.text if table_state.cursor else None
            rows.append((key, cursor, table_state.cursor_field, table_state.batch, newest.version))
        except StateError as error:
            settings.output.warning(str(error), table=key)
            rows.append((key, newest.value, None, None, newest.version))
    columns = ("table", "cursor", "field", "batch", "version")
    if rows or settings.output.json:
        settings.output.table("state", columns, rows)
    else:
        settings.output.say("No cursor is stored yet: run `loader run`.")


@state.command(short_help="Shows all versions of a cursor.")
@click.argument("table", shell_complete=complete_tables)
@click.pass_obj
def show(settings: Settings, table: str) -> None:
    """Shows all versions of TABLE's state, newest first.

    TABLE is source.table, or the name alone if only one source has such a table.
    """
    from loader.state import StateRow

    def read(progress: Sequence[StatusReaders]) -> list[StateRow]:
        key = find_key(progress, table, "loader state show")
        source = key.partition(".")[0]
        readers = next(each for each in progress if source in each.names)
        return readers.state.rows(key)

    settings.output.table(
        "state",
        ("version", "value", "updated_at"),
        [(row.version, row.value, row.updated_at) for row in read_progress(settings, read)],
    )


@state.command("set", short_help="Moves a cursor.")
@click.argument("table", shell_complete=complete_tables)
@click.argument("cursor")
@click.pass_obj
def set_(settings: Settings, table: str, cursor: str) -> None:
    """Starts TABLE's next sync at CURSOR (inclusive).

    A lower value is safe, because rows that the raw table already contains are not appended again.
    A higher value skips rows.
    """
    from loader.sources.interface import is_connector_state
    from loader.sync.table_plan import parse_cursor

    def change(known: TableState | None) -> TableState:
        if known is not None and is_connector_state(known.mark):
            raise SpecError(
                f"{table} resumes from its connector's state, which is not a cursor",
                where="loader state set",
                remedy="`loader state reset` makes the connector start from the beginning; most "
                "connectors have a start date in their `config`",
            )
        if known is None or not known.batch:
            raise SpecError(
                f"{table} has no cursor yet, so the type of its cursor is unknown",
                where="loader state set",
                remedy="Set `initial_cursor` in the spec, or run a first sync",
            )
        if known.cursor is None or known.cursor_field is None:
            raise SpecError(
                f"{table} has no cursor: it was last synced without one",
                where="loader state set",
                remedy="`loader run --full-refresh` reloads it",
            )
        try:
            return known.set_by_hand(parse_cursor(cursor, known.cursor.type, "loader state set"))
        except TableError as error:
            raise SpecError(error.what, where=error.where, remedy=error.remedy) from None

    _store(settings, table, change, "loader state set")


@state.command(short_help="Resets a cursor, to read a table from the beginning.")
@click.argument("table", shell_complete=complete_tables)
@click.pass_obj
def reset(settings: Settings, table: str) -> None:
    """Resets TABLE's cursor: the next sync reads all rows, and appends those that are missing."""

    def change(known: TableState | None) -> TableState:
        if known is None:
            raise SpecError(
                f"there is no state for {table!r}",
                where="loader state reset",
                remedy="`loader state list` shows the stored cursors",
            )
        return known.start_over()

    _store(settings, table, change, "loader state reset")


@state.command(short_help="Deletes old versions of cursors.")
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
    """Deletes all but the newest N versions of each table's state."""
    with open_pipeline_with_pushed_tables(settings) as pipeline:
        pruned = [row for backend in list_backends(pipeline) for row in backend.prune(keep)]
        settings.output.table("pruned", ("table", "versions"), pruned)
        if not pruned:
            settings.output.say(f"No table has more than {keep} versions.")


@state.command(short_help="Writes all cursors to a file.")
@click.argument("file", type=click.File("w", encoding="utf-8", atomic=True), default="-")
@click.pass_obj
def export(settings: Settings, file: IO[str]) -> None:
    """Writes every version of every cursor to FILE (default: stdout), one JSON object per line."""
    lines = []  # Collected first, so that an error does not destroy an earlier export.
    with open_pipeline_with_pushed_tables(settings) as pipeline:
        for backend in list_backends(pipeline):
            for row in reversed(backend.stores.state.rows()):  # oldest first
                if backend.is_responsible(row.key):
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

    A table without state gets all versions; a table with state gets the newest version in FILE as
    a new version. All lines are checked before the first is written.
    """
    from loader.state.export import choose_rows, read_export

    with open_pipeline_with_pushed_tables(settings) as pipeline:
        imported = read_export(file)
        names = {key: list_keys(pipeline, key)[0] for key in imported}
        _refuse_system_tables(pipeline, imported)
        for key in imported:
            if not pipeline.spec.may_contain(names[key]):
                text = f"{key}: the spec does not contain this table, so no run uses its cursor"
                settings.output.warning(text, table=key)
        by_backend = {
            key: backend.stores.state
            for backend in list_backends(pipeline)
            for key in imported
            if backend.is_responsible(key)
        }
        with lock_tables(pipeline, sorted(imported)):
            for state in {id(state): state for state in by_backend.values()}.values():
                state.prepare()
            added = {
                key: choose_rows(by_backend[key], key, rows, force)
                for key, rows in imported.items()
            }
            for state in {id(state): state for state in by_backend.values()}.values():
                keys = [key for key, backend in by_backend.items() if backend is state]
                state.append([row for key in keys for row in added[key]])
        lines = [(k, len(rows), rows[-1].version if rows else None) for k, rows in added.items()]
        settings.output.table("imported", ("table", "versions_added", "version"), lines)


@state.command(short_help="Rebuilds state and ledger from raw tables.")
@select_option
@click.pass_obj
def rebuild(settings: Settings, select: tuple[str, ...]) -> None:
    """Rebuilds state and ledger from the commits of the raw tables.

    Existing rows are kept; a state that differs from the newest commit gets a new version. Without
    --select, damaged state and ledger tables are first moved to a quarantine folder.
    """
    from loader.maintenance.rebuild_state import (
        find_source_tables,
        list_source_commits,
        quarantine_table,
        rebuild_table,
    )

    with open_pipeline_with_pushed_tables(settings) as pipeline:
        rows: list[tuple[object, ...]] = []
        failed: set[str] = set()

        def report_error(where: str, error: Exception) -> None:
            if where not in failed:  # sources that share a lake report the same damaged table
                settings.output.error(pipeline.redact_error(error, where))
            failed.add(where)

        for own in (
            list_system_tables(pipeline) if not select else ()
        ):  # a quarantined table must be rebuilt for all its sources
            where = f"{own.lake.schema}.{own.name}"
            try:
                note = quarantine_table(own.lake, own.name)
                if note is not None:
                    settings.output.warning(f"{where}: {note}", table=where)
            except Exception as error:
                report_error(f"table {where}", error)
        for source, _ in pipeline.sources:
            names = (source.name, *source.formerly)
            try:
                pipeline.prepare(source)
                stores = pipeline.open_stores(source)
                tables, unreadable = find_source_tables(stores, names)
                batches = stores.ledger.batches(names)
            except Exception as error:
                report_error(f"source {source.name}", error)
                continue
            for table, read_error in unreadable.items():
                if _is_selected(f"{source.name}.{table}", select):
                    report_error(f"table {stores.lake.schema}.{table}", read_error)
            for table in tables:
                name = f"{source.name}.{table}"
                if not _is_selected(name, select):
                    continue
                warn = partial(settings.output.warning, table=name)
                try:
                    with step(f"{name}: rebuilding"), lock_tables(pipeline, [name]) as run_id:
                        # Reads the commits again, because a run may have published batches before
                        # the table was locked.
                        known = batches.get(table, set())
                        commits = list_source_commits(stores.lake, table, names, known)
                        done = rebuild_table(names, table, commits, stores, run_id, warn, known)
                    rows.append((done.table, done.batches, done.states, done.syncs))
                except Exception as error:
                    report_error(f"table {name}", error)
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


def _is_selected(name: str, select: tuple[str, ...]) -> bool:
    return not select or bool(match_selection(name, select))


def _read_known_state(stores: Stores, keys: Sequence[str]) -> TableState | None:
    """Returns a table's state, or the newest commit's state if the store has no valid one.

    A state that belongs to a table in another lake is not valid. Takes the result of `list_keys`.
    """
    from loader.lake.commits import newest_commit, sharers
    from loader.state import TableState

    table = keys[0]
    try:
        state = next(filter(None, map(stores.state.read, keys)), None)
        if state is None or not stores.is_foreign(table, state):
            return state
    except StateError as error:
        if isinstance(error, NewerStateError):
            raise
    source, _, name = table.partition(".")
    lake = stores.lake
    sources = (source,) if lake.exists(name) and sharers(lake.handle(name)) else ()
    head = newest_commit(lake, name, sources) if lake.exists(name) else None
    if head is None or head.state is None:
        return TableState(batch=head.batch if head else 0)
    return TableState.from_json(head.state, table)


def _store(
    settings: Settings,
    table: str,
    change: Callable[[TableState | None], TableState],
    where: str,
) -> None:
    """Changes a table's state. The name may lack the source if only one source matches."""
    from loader.sync.status_readers import list_readers_by_spark

    with open_pipeline_with_pushed_tables(settings) as pipeline:
        if "." not in table:
            table = find_key(list_readers_by_spark(pipeline), table, where)
        stores, keys = stores_of(pipeline, table), list_keys(pipeline, table)
        table = keys[0]
        change(_read_known_state(stores, keys))  # refuses an invalid change before it locks
        with lock_tables(pipeline, [table]):
            new = change(_read_known_state(stores, keys))
            row = stores.state.write(table, stores.add_table_id(table, new))
    cursor = new.cursor.text if new.cursor else "none: the next sync reads from the beginning"
    version = f" (version {row.version})" if row else " (unchanged)"
    settings.output.say(f"{table}: cursor {cursor}{version}")


def _refuse_system_tables(pipeline: Pipeline, keys: Iterable[str]) -> None:
    from loader.lake.catalog_lock_store import TABLE as OWNERS

    system_tables = {OWNERS, *(table.name.lower() for table in list_system_tables(pipeline))}
    for key in keys:
        name = key.partition(".")[2]
        if name.lower() in system_tables:
            raise SpecError(
                f"{name!r} is one of the loader's own tables, which have no cursor",
                where=f"state {key}",
                remedy="Remove its lines from the file",
            )


def stores_of(pipeline: Pipeline, table: str) -> Stores:
    """Returns the stores that contain a table's state. Raises the errors of `list_keys`."""
    return pipeline.open_stores(_find_source(pipeline, table))


def list_keys(pipeline: Pipeline, table: str) -> list[str]:
    """Returns the keys of a table's state under the current and former names of its source.

    Raises a SpecError if the name is not `source.table`, or the spec has no such source or table.
    """
    source = _find_source(pipeline, table)
    return [f"{name}.{table.partition('.')[2]}" for name in (source.name, *source.formerly)]


def _find_source(pipeline: Pipeline, table: str) -> SourceSpec:
    name, _, rest = table.partition(".")
    _refuse_impossible(table)
    sources = [source for source, _ in pipeline.sources] if rest else []
    matches = [source for source in sources if source.name == name]
    matches = matches or [source for source in sources if name in source.formerly]
    if len(matches) > 1:  # a source was divided
        matches = [s for s in matches if pipeline.spec.may_contain(f"{s.name}.{rest}")]
    if len(matches) == 1:
        return matches[0]
    names = [source.name for source, _ in pipeline.sources]
    raise SpecError(
        f"{table!r} is not `source.table` with a source of the spec",
        where="loader state",
        remedy=f"Its sources: {', '.join(names)}; `loader state list` shows the tables",
    )


def _refuse_impossible(table: str) -> None:
    rest = table.partition(".")[2]
    reason = explain_refusal(rest) if rest else None
    if reason is not None:
        raise SpecError(
            reason,
            where=f"state {table!r}",
            remedy="No table can have this name; `loader state list` shows the tables",
        )


def find_key(progress: Sequence[StatusReaders], table: str, where: str) -> str:
    """Returns the key of a table's state. `table` may omit the source if only one source matches.

    Raises a SpecError if there is no such state, or if several sources match.
    """
    from loader.sync.status_readers import list_state_readers

    _refuse_impossible(table)
    newer = {name: each.names[:i] for each in progress for i, name in enumerate(each.names)}
    stored = {row.key for state in list_state_readers(progress) for row in state.rows()}
    keys = sorted(key for key in stored if key.partition(".")[0] in newer)
    if table in keys:
        return table

    def is_replaced(key: str) -> bool:
        """Returns whether the table also has a state under a newer name of its source."""
        source, _, name = key.partition(".")
        return any(f"{newer_name}.{name}" in stored for newer_name in newer[source])

    keys = [key for key in keys if not is_replaced(key)]
    names = {table.lower(), in_the_lake(table).lower()}
    matches = [key for key in keys if key.partition(".")[2].lower() in names]
    if not matches and not is_wildcard(table):
        matches = [key for key in keys if match_selection(key, [table])]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SpecError(
            f"{len(matches)} tables are called {table!r}",
            where=where,
            remedy=f"Write the name with its source: {', '.join(matches[:20])}",
        )
    near = did_you_mean(table, keys) or did_you_mean(table, [key.partition(".")[2] for key in keys])
    raise SpecError(
        f"there is no state for {table!r}",
        where=where,
        remedy=f"{near} `loader state list` shows the stored cursors".strip(),
    )


@contextmanager
def lock_tables(pipeline: Pipeline, tables: Sequence[str]) -> Iterator[str]:
    """Locks tables (`source.table`), and yields the run id that holds the locks.

    Raises a LockedError immediately if a run has locked one of the tables.
    """
    from loader.lake.locks import Heartbeat, create_lease

    run_id = uuid.uuid4().hex[:12]
    leases: list[Lease] = []
    with ExitStack() as stack:
        stack.enter_context(Heartbeat(leases))
        locked: set[tuple[str, str]] = set()
        for table in tables:
            lake, raw = stores_of(pipeline, table).lake, table.partition(".")[2]
            if (lake.schema, raw) in locked:
                continue  # several sources share the table
            locked.add((lake.schema, raw))
            lease = create_lease(lake, raw, f"table {table}", run_id)
            leases.append(lease)
            try:
                lease.acquire()
            except LockedError:
                raise LockedError(
                    "a run is syncing this table",
                    where=f"table {table}",
                    remedy="Retry after the run, which would otherwise overwrite the change",
                ) from None
            stack.callback(lease.release)
        yield run_id

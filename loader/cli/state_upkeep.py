"""``loader state prune | export | import | rebuild``: all cursors of a backend at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click

from loader.cli.compact import own_tables
from loader.cli.state_stores import backends, lock_tables, stores_of
from loader.cli.streams import OUT
from loader.errors import LoaderError, NewerStateError, SpecError, StateError
from loader.names import in_the_lake, match_selection
from loader.spark.named_steps import step

if TYPE_CHECKING:
    from loader.cli.settings import Settings
    from loader.state import StateBackend, StateRow
    from loader.sync.pipeline import Pipeline


@click.command(short_help="Forgets old versions of cursors.")
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
        pruned = [one for shared in backends(pipeline) for one in shared.prune(keep)]
        settings.output.table("pruned", ("table", "versions"), pruned)
        if not pruned:
            settings.output.say(f"No table has more than {keep} versions.")


@click.command(short_help="Writes all cursors to a file.")
@click.argument("file", type=click.File("w", encoding="utf-8", atomic=True), default="-")
@click.pass_obj
def export(settings: Settings, file: IO[str]) -> None:
    """Writes every version of every cursor to FILE (default: stdout), one JSON object per line."""
    from loader.cli.settings import open_pipeline_with_served

    lines = []  # all of them, before an earlier export makes way
    with open_pipeline_with_served(settings) as pipeline:
        for shared in backends(pipeline):
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


@click.command("import", short_help="Adds the cursors of an export.")
@click.argument("file", type=click.File("r", encoding="utf-8-sig"))
@click.option("--force", is_flag=True, help="Import even if the backend has other, newer versions.")
@click.pass_obj
def import_(settings: Settings, file: IO[str], force: bool) -> None:
    """Adds the cursors that `loader state export` wrote to FILE (- for stdin).

    A table without state gets all its versions; one that has state gets FILE's newest as a new
    version. Everything is checked before anything is written.
    """
    from loader.cli.settings import open_pipeline_with_served

    with open_pipeline_with_served(settings) as pipeline:
        given = _read(file)
        stores = {key: stores_of(pipeline, key) for key in given}
        _refuse_own(pipeline, stores)
        for key in given:
            if not _in_spec(pipeline, key):
                text = f"{key}: the spec has no such table, so no run uses this cursor"
                settings.output.warning(text, table=key)
        by_backend = {
            key: shared.stores.state
            for shared in backends(pipeline)
            for key in given
            if shared.holds(key)
        }
        with lock_tables(pipeline, sorted(stores)):
            for state in {id(state): state for state in by_backend.values()}.values():
                state.prepare()
            wanted = {
                key: _choose_rows(by_backend[key], key, rows, force) for key, rows in given.items()
            }
            for state in {id(state): state for state in by_backend.values()}.values():
                keys = [key for key, backend in by_backend.items() if backend is state]
                state.append([row for key in keys for row in wanted[key]])
        shown = [(k, len(rows), rows[-1].version if rows else None) for k, rows in wanted.items()]
        settings.output.table("imported", ("table", "versions_added", "version"), shown)


def _read(file: IO[str]) -> dict[str, list[StateRow]]:
    """Returns an export's rows by key, oldest version first.

    Raises:
        SpecError: if a line is not from an export.
        StateError: if a line's value is not a state of this loader.
    """
    from loader.state import TableState

    found: dict[str, list[StateRow]] = {}
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        where = f"{file.name}, line {number}"
        try:
            row = _row(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise SpecError(
                "this line was not written by `loader state export`",
                where=where,
                remedy='A line is {"key": …, "value": "…", "version": …, "updated_at": …}',
            ) from None
        try:
            TableState.from_json(row.value, row.key)
        except NewerStateError as error:
            raise NewerStateError(error.what, where=where, remedy=error.remedy) from None
        except StateError as error:
            raise StateError(error.what, where=where, remedy="Leave the line out") from None
        found.setdefault(row.key, []).append(row)
    return {key: sorted(rows, key=lambda row: row.version) for key, rows in found.items()}


def _lines(file: IO[str]) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError:
        raise SpecError(
            "not UTF-8 text",
            where=file.name,
            remedy="Name the file that `loader state export` wrote",
        ) from None


def _row(read: Any) -> StateRow:
    """Returns the row that a line describes; raises one of many exceptions if it does not."""
    from loader.state import StateRow
    from loader.state.value import LARGEST, format_time, parse_time

    at, version = read.get("updated_at"), read["version"]
    version = 0 if version is None else version
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= LARGEST:
        raise ValueError
    if not isinstance(read["key"], str) or not isinstance(read["value"], str):
        raise TypeError
    written = format_time(parse_time(at)) if at is not None else None
    return StateRow(read["key"], read["value"], version, written)


def _refuse_own(pipeline: Pipeline, keys: Iterable[str]) -> None:
    """Refuses keys of the loader's own tables: they have no cursor.

    Raises:
        SpecError: names the key.
    """
    from loader.cli.compact import own_tables
    from loader.lake.catalog_owners import TABLE as OWNERS

    own = {OWNERS, *(table.name.lower() for table in own_tables(pipeline))}
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


def _choose_rows(
    state: StateBackend, key: str, rows: list[StateRow], force: bool
) -> list[StateRow]:
    """Returns the rows to add.

    Raises:
        StateError: if the backend has another value of the same or a newer version.
    """
    from loader.state import StateRow, TableState
    from loader.state.value import choose_effective_row

    newest = choose_effective_row([row for row in rows if row.version == rows[-1].version], _silent)
    there = state.newest(key)
    assert newest is not None
    if there is None:
        return [row for row in rows if row.version < newest.version] + [newest]
    if there.value == newest.value:
        return []
    if not force:
        TableState.refuse_newer(there.value, key)
    if there.version >= newest.version and not force:
        raise StateError(
            f"the backend has version {there.version}, the file {newest.version}, and they differ",
            where=f"state {key}",
            remedy="Nothing was imported. Leave the table out of the file, or overwrite the "
            "backend's value with --force",
        )
    return [StateRow(key, newest.value, there.version + 1)]


@click.command(short_help="Rebuilds state and ledger from raw tables.")
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

        for own in own_tables(pipeline) if not select else ():  # it is recreated whole, or not
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


def _silent(text: str) -> None:
    """Ignores the notes on an export's versions: they are imported as they are."""

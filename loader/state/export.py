"""Reads files written by ``loader state export`` and chooses the rows to import."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from loader.errors import NewerStateError, SpecError, StateError
from loader.state import StateBackend, StateRow, TableState, ignore_warning
from loader.state.value import LARGEST, choose_effective_row, format_time, parse_time


def read_export(file: IO[str]) -> dict[str, list[StateRow]]:
    """Returns the rows of an export, grouped by key and sorted by version.

    Raises:
        SpecError: if a line was not written by `loader state export`.
        StateError: if the value in a line is not a state that this version of the loader reads.
    """
    rows_by_key: dict[str, list[StateRow]] = {}
    for number, line in enumerate(_read_lines(file), start=1):
        if not line.strip():
            continue
        where = f"{file.name}, line {number}"
        try:
            row = _parse_row(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise SpecError(
                "this line was not written by `loader state export`",
                where=where,
                remedy='Write each line as {"key": …, "value": "…", "version": …, "updated_at": …}',
            ) from None
        try:
            TableState.from_json(row.value, row.key)
        except NewerStateError as error:
            raise NewerStateError(error.what, where=where, remedy=error.remedy) from None
        except StateError as error:
            raise StateError(error.what, where=where, remedy="Delete the line") from None
        rows_by_key.setdefault(row.key, []).append(row)
    return {key: sorted(rows, key=lambda row: row.version) for key, rows in rows_by_key.items()}


def _read_lines(file: IO[str]) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError:
        raise SpecError(
            "not UTF-8 text",
            where=file.name,
            remedy="Choose a file that `loader state export` wrote",
        ) from None


def _parse_row(read: Any) -> StateRow:
    """Parses a row from a line's JSON value. Raises various exceptions if it is invalid."""
    at, version = read.get("updated_at"), read["version"]
    version = 0 if version is None else version
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= LARGEST:
        raise ValueError
    if not isinstance(read["key"], str) or not isinstance(read["value"], str):
        raise TypeError
    written = format_time(parse_time(at)) if at is not None else None
    return StateRow(read["key"], read["value"], version, written)


def choose_rows(state: StateBackend, key: str, rows: list[StateRow], force: bool) -> list[StateRow]:
    """Returns the rows to import for a key.

    Raises a StateError if the backend has a different value with the same or a newer version, and
    `force` is not set.
    """
    latest = [row for row in rows if row.version == rows[-1].version]
    newest = choose_effective_row(latest, ignore_warning)  # only the safest value is imported
    stored = state.newest(key)
    assert newest is not None
    if stored is None:
        return [row for row in rows if row.version < newest.version] + [newest]
    if stored.value == newest.value:
        return []
    if not force:
        TableState.refuse_newer(stored.value, key)
    if stored.version >= newest.version and not force:
        raise StateError(
            f"the backend has version {stored.version}, the file {newest.version}, and they differ",
            where=f"state {key}",
            remedy="Nothing was imported. Remove the table from the file, or overwrite the "
            "backend's value with --force",
        )
    return [StateRow(key, newest.value, stored.version + 1)]

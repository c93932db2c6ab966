"""Stores cursors: one narrow interface, and the base of every backend.

A backend stores rows ``key, value, version``; a change is a new row. The newest version of a key
wins; a null version counts as 0 (CloudQuery's first state tables have none).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from loader.errors import StateError
from loader.spec.redaction import excerpt
from loader.state.value import LARGEST, StateRow, TableState, choose_effective_row

__all__ = ["StateBackend", "StateRow", "StoreLocation", "TableState"]


@dataclass(frozen=True)
class StoreLocation:
    """A spec's settings for a backend beyond its own options.

    Attributes:
        table: ``backend_options.table_name``.
        folder: the spec's folder; relative paths are relative to it.
        where: the document and its key, for errors.
    """

    table: str
    folder: Path
    where: str


def _unheard(text: str) -> None:
    """Ignores a warning."""


class StateBackend(ABC):
    """Stores state rows; a new backend is one class with these four methods.

    A backend that a package provides in the entry-point group ``strandline.state`` has an
    `options_model`, which validates the destination's inner ``spec``, and a constructor that takes
    the options and a :class:`StoreLocation`. The constructor connects to nothing.
    """

    options_model: ClassVar[type[BaseModel]]

    def __init__(self, options: Any, location: StoreLocation) -> None:
        self.options = options
        self.location = location

    @abstractmethod
    def prepare(self) -> None:
        """Creates what the backend needs, if it does not exist yet.

        Raises:
            StateError: if the backend cannot be reached, or is not ours to write to.
        """

    @abstractmethod
    def rows(self, key: str | None = None) -> list[StateRow]:
        """Returns all rows, or one key's, by key, newest version first; none if never prepared.

        Raises:
            StateError: if the backend cannot be read.
        """

    @abstractmethod
    def append(self, rows: Sequence[StateRow]) -> None:
        """Adds rows durably before it returns; all or none of them if the store can do that.

        Raises:
            StateError: if a key's version exists already, or another writer adds it at the same
                moment; if the backend cannot be written.
        """

    @abstractmethod
    def prune(self, floors: Mapping[str, int]) -> None:
        """Deletes the versions below a key's floor (a null version counts as 0), and no others.

        Raises:
            StateError: if the backend cannot be written.
        """

    def latest(self, key: str) -> list[StateRow]:
        """Returns the rows of a key's highest version: one, unless something went wrong.

        Override it if the store can find them without reading all of a key's versions.
        """
        rows = self.rows(key)
        return [row for row in rows if row.version == rows[0].version]

    def newest(self, key: str, tell: Callable[[str], None] = _unheard) -> StateRow | None:
        """Returns the row in effect; None if the key has none.

        Args:
            tell: gets a warning if the newest version has several values; it says which counts.

        Raises:
            StateError: if several values differ and none of them is safe.
        """
        return choose_effective_row(self.latest(key), tell)

    def read(self, key: str, tell: Callable[[str], None] = _unheard) -> TableState | None:
        """Returns the state of a table; None if there is none.

        Raises:
            StateError: if the backend cannot be read, or the value is not ours.
        """
        return choose_effective_state(key, self.latest(key), tell)

    def write(self, key: str, state: TableState) -> StateRow | None:
        """Adds the next version, unless the newest has the same content.

        Raises:
            NewerStateError: if a newer loader has written the newest.
        """
        row = self.build_next_rows({key: state})[key]
        if isinstance(row, Exception):
            raise row
        if row is not None:
            self.append([row])
        return row

    def build_next_rows(
        self, states: Mapping[str, TableState]
    ) -> dict[str, StateRow | StateError | None]:
        """The next version of each key: None if the newest is the same, or why there is none."""
        known = self.latest_by_key(list(states))
        found: dict[str, StateRow | StateError | None] = {}
        for key, state in states.items():
            latest = known[key]
            try:
                if isinstance(latest, StateError):
                    raise latest
                for row in latest:
                    TableState.refuse_newer(row.value, key)
                    if row.version >= LARGEST:
                        raise StateError(
                            f"its stored version {excerpt(str(row.version), 30)} leaves no room "
                            "for another one",
                            where=f"state {key}",
                            remedy="This loader did not write it: delete it from the state store",
                        )
            except StateError as error:
                found[key] = error
                continue
            value = state.to_json()
            version = (latest[0].version if latest else 0) + 1
            said = {row.value for row in latest} == {value}
            found[key] = None if said else StateRow(key, value, version)
        return found

    def latest_by_key(self, keys: Sequence[str]) -> dict[str, list[StateRow] | StateError]:
        """The result of :meth:`latest` for each key, or its error.

        Worth overriding where the keys of a run can be read at once.
        """
        found: dict[str, list[StateRow] | StateError] = {}
        for key in keys:
            try:
                found[key] = self.latest(key)
            except StateError as error:
                found[key] = error
        return found

    def floors(self, keep: int) -> dict[str, int]:
        """Returns the lowest version to keep, for :meth:`prune`, of keys with more than `keep`."""
        floors = {}
        for key, rows in groupby(self.rows(), key=lambda row: row.key):
            versions = sorted({row.version for row in rows}, reverse=True)
            if len(versions) > keep:
                floors[key] = versions[keep - 1]
        return floors


def choose_effective_state(
    key: str, rows: Sequence[StateRow], tell: Callable[[str], None] = _unheard
) -> TableState | None:
    """Returns the state that counts among the rows of a key's highest version; None if none is.

    Raises:
        StateError: as :meth:`StateBackend.read` does.
    """
    row = choose_effective_row(rows, tell)
    return TableState.from_json(row.value, key) if row is not None else None


def second_writer_error(row: StateRow, where: str) -> StateError:
    """Returns the error for a writer that came second."""
    return StateError(
        f"version {row.version} of {row.key} is there already: another run has written it",
        where=where,
        remedy="Nothing was lost; run again when the other is done",
    )

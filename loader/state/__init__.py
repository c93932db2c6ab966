"""Defines the interface of state backends, which store cursors.

A backend stores rows of the form ``key, value, version``. Each change adds a row with the next
version. The row with the highest version is in effect. A null version counts as 0, because
CloudQuery's early state tables have no versions.
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
    """The location of a backend's rows, as configured in the spec.

    Attributes:
        table: the value of ``backend_options.table_name``.
        folder: the spec's folder, which relative paths refer to.
        where: the document and key in the spec, for error messages.
    """

    table: str
    folder: Path
    where: str


def ignore_warning(text: str) -> None:
    """Does nothing."""


class StateBackend(ABC):
    """A store of state rows. To write a new backend, implement the four abstract methods.

    A package registers its backend in the entry-point group ``strandline.state``. The class has an
    `options_model`, which validates the destination's ``spec``. The constructor receives the
    options and a :class:`StoreLocation`, and must not open a connection.
    """

    options_model: ClassVar[type[BaseModel]]

    def __init__(self, options: Any, location: StoreLocation) -> None:
        self.options = options
        self.location = location

    @abstractmethod
    def prepare(self) -> None:
        """Creates the backend's tables or files if they do not exist.

        Raises:
            StateError: if the backend is unreachable or contains another tool's data.
        """

    @abstractmethod
    def rows(self, key: str | None = None) -> list[StateRow]:
        """Returns all rows, or all rows of one key, sorted by key and then by descending version.

        Returns no rows if :meth:`prepare` has not been called yet.

        Raises:
            StateError: if the backend cannot be read.
        """

    @abstractmethod
    def append(self, rows: Sequence[StateRow]) -> None:
        """Durably adds rows. If the store has transactions, adds either all rows or none.

        Raises:
            StateError: if a version of a key already exists, if another writer concurrently adds
                the same version, or if the backend is not writable.
        """

    @abstractmethod
    def prune(self, floors: Mapping[str, int]) -> None:
        """Deletes all versions of each key that are below the key's floor.

        A null version counts as 0.

        Raises:
            StateError: if the backend is not writable.
        """

    def latest(self, key: str) -> list[StateRow]:
        """Returns the rows of a key's highest version: one row, or several if two writers wrote it.

        Override this method if the store can find these rows without reading all versions of the
        key.
        """
        rows = self.rows(key)
        return [row for row in rows if row.version == rows[0].version]

    def newest(self, key: str, warn: Callable[[str], None] = ignore_warning) -> StateRow | None:
        """Returns the row that is in effect, or None if the key has no row.

        Args:
            warn: called with a warning if the highest version has several values.

        Raises:
            StateError: if the highest version has several values whose cursors cannot be ordered.
        """
        return choose_effective_row(self.latest(key), warn)

    def read(self, key: str, warn: Callable[[str], None] = ignore_warning) -> TableState | None:
        """Returns the state of a table, or None if there is none.

        Raises:
            StateError: if the backend cannot be read, or if this loader did not write the value.
        """
        return choose_effective_state(key, self.latest(key), warn)

    def write(self, key: str, state: TableState) -> StateRow | None:
        """Adds the next version unless the state is unchanged.

        Returns the new row, or None if the state is unchanged.

        Raises:
            NewerStateError: if a newer loader wrote the highest version.
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
        """Maps each key to its next row, to None if its state is unchanged, or to an error."""
        stored = self.latest_by_key(list(states))
        results: dict[str, StateRow | StateError | None] = {}
        for key, state in states.items():
            latest = stored[key]
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
                results[key] = error
                continue
            value = state.to_json()
            version = (latest[0].version if latest else 0) + 1
            is_unchanged = {row.value for row in latest} == {value}
            results[key] = None if is_unchanged else StateRow(key, value, version)
        return results

    def latest_by_key(self, keys: Sequence[str]) -> dict[str, list[StateRow] | StateError]:
        """Returns, for each key, what :meth:`latest` returns or the error that it raises.

        Override this method if the store can read many keys at once.
        """
        results: dict[str, list[StateRow] | StateError] = {}
        for key in keys:
            try:
                results[key] = self.latest(key)
            except StateError as error:
                results[key] = error
        return results

    def floors(self, keep: int) -> dict[str, int]:
        """Returns floors for :meth:`prune` that leave the newest `keep` versions of each key."""
        floors = {}
        for key, rows in groupby(self.rows(), key=lambda row: row.key):
            versions = sorted({row.version for row in rows}, reverse=True)
            if len(versions) > keep:
                floors[key] = versions[keep - 1]
        return floors


def choose_effective_state(
    key: str, rows: Sequence[StateRow], warn: Callable[[str], None] = ignore_warning
) -> TableState | None:
    """Chooses the state that is in effect among the rows of a key's highest version.

    Raises:
        StateError: see :meth:`StateBackend.read`.
    """
    row = choose_effective_row(rows, warn)
    return TableState.from_json(row.value, key) if row is not None else None


def build_second_writer_error(row: StateRow, where: str) -> StateError:
    """Returns the error for a version that another writer has already written."""
    return StateError(
        f"version {row.version} of {row.key} already exists: another run wrote it",
        where=where,
        remedy="Nothing was lost; run again when the other run has finished",
    )

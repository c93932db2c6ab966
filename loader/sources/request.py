"""Describes a run's request to a source that delivers its tables itself, before the first read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from loader.sources.table import SourceTable


@dataclass(frozen=True)
class Request:
    """One table that a run wants.

    Attributes:
        name: the table's name in messages, ``<source>.<table>``.
        mark: the connector's state as of the last batch; None to begin from scratch.
        whole: everything is read again, and must come in one piece.
        cursor: the cursor column; None if there is none.
        key: the primary key; empty if there is none.
    """

    table: SourceTable
    name: str
    mark: Mapping[str, Any] | None
    whole: bool
    cursor: str | None
    key: tuple[str, ...]


class RunContext(Protocol):
    """The run's watch, as a source sees it."""

    def warn(self, table: str, text: str) -> None:
        """Warns the user; the run goes on."""

    def check_interruption(self, table: str) -> None:
        """Raises a TableError if the run was asked to stop."""

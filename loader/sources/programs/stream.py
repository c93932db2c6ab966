"""Tracks one stream of a read: its records so far, and how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from loader.errors import LoaderError, TableError
from loader.sources.programs.spool import Piece, Spool
from loader.spec.redaction import excerpt


@dataclass
class Stream:
    """One stream that is read.

    Attributes:
        name: the table's name, for messages.
        remembers: whether it goes on from a state; if not, it is complete without one.
        begun: the program has reported that the stream began.
        complete: the program has reported that the stream ended well.
        incomplete: the program has reported that the stream did not end well.
        problem: why it has not.
        error: the table's error, after its last piece.
        ended: nothing more comes.
        doubt: why records may be missing from now on, so that no further state counts.
    """

    name: str
    spool: Spool
    remembers: bool = True
    complete: bool = False
    problem: LoaderError | None = None
    pieces: deque[Piece] = field(default_factory=deque)
    error: LoaderError | None = None
    incomplete: bool = False
    begun: bool = False
    ended: bool = False
    doubt: LoaderError | None = None
    wanted: bool = True
    received: int = 0

    def takes(self) -> bool:
        """Whether its records are still wanted."""
        return self.wanted and self.error is None

    def explain_doubt(self) -> LoaderError | None:
        """Returns why records may be missing from now on; None if nothing says so."""
        return self.problem or self.doubt

    def of_its_own(self, failure: str) -> LoaderError | None:
        """Returns the error that the program reports for this stream; None if there is none.

        Args:
            failure: the error that it reports for the whole read, if any.
        """
        if self.problem is not None or not self.incomplete:
            return self.problem
        return read_error(
            failure or "the program did not complete the stream", f"table {self.name}"
        )

    def is_whole(self) -> bool:
        """Whether it has ended well, however the program ends.

        One with a state of all streams has not, until the last of these states has come.
        """
        memory = self.spool.memory
        return self.complete and not (memory is not None and memory.shared)


def read_error(text: str, where: str) -> TableError:
    """Returns the error of a read that a program did not bring to its end."""
    return TableError(
        excerpt(text.strip(), 1000).rstrip("."),
        where=where,
        remedy="What its states cover is appended; correct the cause, and run again",
    )


def format_stream(key: Hashable) -> str:
    """Returns a stream's name, with its namespace if it has one."""
    return ".".join(str(part) for part in key if part) if isinstance(key, tuple) else str(key)

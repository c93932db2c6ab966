"""Errors, one class for each reaction of a caller; each has a problem, a place and a remedy."""

from __future__ import annotations

import re


def sentence(error: BaseException) -> str:
    """Returns the first line of Spark's message, without its error class and the full stop.

    Of an error that came straight from Java, it is the line after Py4J's own, without the class.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    called = lines[0].startswith("An error occurred while calling ") and len(lines) > 1
    first = re.sub(r"^: (?:[\w$]+\.)+[\w$]+: ", "", lines[1]) if called else lines[0]
    first = re.sub(r"\s*SQLSTATE: \w{5}$", "", first)  # Spark 4 adds it
    return re.sub(r"^\[[A-Z_.]+\] ", "", first).rstrip(". ")


class LoaderError(Exception):
    """An error that a user can act on; shown with a stack trace only with ``--debug``.

    Args:
        what: the problem, one sentence without a final full stop.
        where: the file, document, key, table or connection it is about.
        remedy: the remedy, an imperative sentence.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.remedy}" if self.remedy else f"{text}."


class SpecError(LoaderError):
    """Wrong usage, spec, profile or installation: nothing was started; exit code 2."""

    exit_code = 2


class TableError(LoaderError):
    """One table cannot be synced: it fails, the others go on; exit code 1."""


class JavaEndedError(TableError):
    """Spark's Java process has ended: every table that is not synced yet fails; exit code 1."""


class LockedError(TableError):
    """Another run holds this table's lock: the table is skipped; exit code 1."""


class DamagedError(TableError):
    """A table in the lake has a file that is cut off, corrupt or missing; exit code 1."""


class StateError(TableError):
    """A stored cursor cannot be trusted or written: refused, never restarted from nothing."""


class NewerStateError(StateError):
    """A newer loader has written the stored cursor: this one neither reads nor replaces it."""

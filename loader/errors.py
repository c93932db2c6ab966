"""The loader's errors. Each states a problem, a location and a remedy."""

from __future__ import annotations

import bisect
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

_MAX_ERRORS = 50  # if a file has more mistakes, it is usually the wrong file
_MAX_NAMES = 1000


def sentence(error: BaseException) -> str:
    """Returns the first line of a Spark error, without the error class and the full stop.

    If Py4J reports a Java exception, the message is on the second line, after the exception's
    class.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    called = lines[0].startswith("An error occurred while calling ") and len(lines) > 1
    first = re.sub(r"^: (?:[\w$]+\.)+[\w$]+: ", "", lines[1]) if called else lines[0]
    first = re.sub(r"\s*SQLSTATE: \w{5}$", "", first)  # Spark 4 adds this suffix
    return re.sub(r"^\[[A-Z_.]+\] ", "", first).rstrip(". ")


class LoaderError(Exception):
    """An error with a remedy. Its stack trace is printed only with ``--debug``.

    Args:
        what: the problem, as a sentence without a full stop.
        where: the location: a file, document, key, table or connection.
        remedy: an instruction to the user, as an imperative sentence.

    Attributes:
        is_retryable: whether the same run may succeed later without human intervention.
    """

    exit_code = 1
    is_retryable = True

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.remedy}" if self.remedy else f"{text}."


class SpecError(LoaderError):
    """The usage, spec, profile or installation is invalid, so no table was synced. Exit code 2."""

    exit_code = 2
    is_retryable = False


class TableError(LoaderError):
    """One table cannot be synced. The run continues with other tables. Exit code 1."""


class JavaEndedError(TableError):
    """Spark's Java process has exited, so all remaining tables fail. Exit code 1."""


class LockedError(TableError):
    """Another run has locked the table, so this run skips it. Exit code 1."""


class DamagedError(TableError):
    """A table in the lake has a truncated, corrupt or missing file. Exit code 1."""

    is_retryable = False


class StateError(TableError):
    """A stored cursor is invalid, or a cursor cannot be stored. The table is not reloaded."""


class NewerStateError(StateError):
    """A newer version of the loader wrote the stored cursor. It is neither used nor replaced."""

    is_retryable = False


E = TypeVar("E", bound=LoaderError)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns "Did you mean …?" with the most similar known name; empty if none is similar."""
    names = {name.lower(): name for name in known}
    candidates = list(names)
    if len(candidates) > _MAX_NAMES:  # comparing all names would be slow
        candidates.sort()
        index = bisect.bisect(candidates, word.lower())
        candidates = candidates[max(0, index - _MAX_NAMES // 2) : index + _MAX_NAMES // 2]
    near = difflib.get_close_matches(word.lower(), candidates, 1, cutoff=0.6)
    return f"Did you mean `{names[near[0]]}`?" if near else ""


def unknown_column(name: str, columns: Sequence[str], where: str) -> TableError:
    """Returns the error for a column in the spec that a table lacks. It lists the columns."""
    remedy = f"{did_you_mean(name, columns)} Its columns: {', '.join(columns)}".strip()
    return TableError(f"there is no column {name!r}", where=where, remedy=remedy)


def one_error(errors: Sequence[E], where: str) -> E:
    """Merges several errors into one error that lists them. Returns a single error unchanged."""
    if len(errors) == 1:
        return errors[0]
    lines = "".join(f"\n- {error}" for error in errors[:_MAX_ERRORS])
    head = f"{len(errors):,} problems"
    if len(errors) > _MAX_ERRORS:
        head += f", the first {_MAX_ERRORS} of them"
    return type(errors[0])(f"{head}:{lines.removesuffix('.')}", where=where)

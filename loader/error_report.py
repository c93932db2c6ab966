"""Suggests similar names, and merges several errors into one error."""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from loader.errors import LoaderError, TableError

E = TypeVar("E", bound=LoaderError)

_MAX_ERRORS = 50  # if a file has more mistakes, it is usually the wrong file
_MAX_NAMES = 1000


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

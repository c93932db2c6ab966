"""Reports several mistakes in one file or table at once."""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from loader.errors import LoaderError

E = TypeVar("E", bound=LoaderError)

_MOST_LINES = 50  # more do not help: a file with so many mistakes is usually another file
_MOST_NAMES = 1000


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns "Did you mean …?" for a misspelt name; empty if no known name is close."""
    names = {name.lower(): name for name in known}
    likely = list(names)
    if len(likely) > _MOST_NAMES:  # each takes time: only those next to it in the alphabet
        likely.sort()
        place = bisect.bisect(likely, word.lower())
        likely = likely[max(0, place - _MOST_NAMES // 2) : place + _MOST_NAMES // 2]
    near = difflib.get_close_matches(word.lower(), likely, 1, cutoff=0.6)
    return f"Did you mean `{names[near[0]]}`?" if near else ""


def one_error(errors: Sequence[E], where: str) -> E:
    """Merges `errors` into one: a single error as it is, several as a list under `where`."""
    if len(errors) == 1:
        return errors[0]
    lines = "".join(f"\n- {error}" for error in errors[:_MOST_LINES])
    head = f"{len(errors):,} problems"
    if len(errors) > _MOST_LINES:
        head += f", the first {_MOST_LINES} of them"
    return type(errors[0])(f"{head}:{lines.removesuffix('.')}", where=where)

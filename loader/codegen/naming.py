"""Names for dbt out of names of any kind: safe, unique, and the same at every run."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping


def safe(name: str) -> str:
    """A name in lower case letters, digits and underscores, for a model and its file."""
    folded = unicodedata.normalize("NFKD", name.casefold())
    letters = "".join(mark for mark in folded if not unicodedata.combining(mark))
    if re.fullmatch(r"[a-z0-9_]+", letters):
        return letters
    return re.sub(r"[^a-z0-9_]+", "_", letters).strip("_") or "table"


def plain(name: str) -> bool:
    """Whether Spark and dbt take a name without quotes."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def assigned(proposals: Mapping[str, str], remembered: Mapping[str, str]) -> dict[str, str]:
    """A name of its own for each thing.

    What has a name keeps it. Of several new ones with the same proposal, one whose own name it is
    comes first, then the alphabet decides; the others are numbered.

    Args:
        proposals: by the things' exact names.
        remembered: the names that they, or others that are not asked for now, have already.
    """
    names = {exact: remembered[exact] for exact in proposals if exact in remembered}
    taken = {name.lower() for name in remembered.values()}
    fresh = [exact for exact in proposals if exact not in names]
    for exact in sorted(fresh, key=lambda exact: (proposals[exact] != exact, exact)):
        name, number = proposals[exact], 1
        while name.lower() in taken:
            number += 1
            name = f"{proposals[exact]}_{number}"
        names[exact] = name
        taken.add(name.lower())
    return {exact: names[exact] for exact in proposals}

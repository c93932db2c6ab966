"""Turns any names into names for dbt: safe, unique, and the same in every run."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping


def safe(name: str) -> str:
    """Returns a name in lower case letters, digits and underscores, for a model and its file."""
    folded = unicodedata.normalize("NFKD", name.casefold())
    letters = "".join(mark for mark in folded if not unicodedata.combining(mark))
    if re.fullmatch(r"[a-z0-9_]+", letters):
        return letters
    return re.sub(r"[^a-z0-9_]+", "_", letters).strip("_") or "table"


def plain(name: str) -> bool:
    """Whether Spark and dbt accept a name without quotes."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def assign_names(proposals: Mapping[str, str], remembered: Mapping[str, str]) -> dict[str, str]:
    """Assigns each item a unique name.

    An item that has a name keeps it. If several new items have the same proposal, the one whose
    exact name it is gets it, else the first by alphabet; the others are numbered.

    Args:
        proposals: by the items' exact names.
        remembered: the names that these, or others not selected now, already have.
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

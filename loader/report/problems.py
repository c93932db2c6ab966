"""The problems that the report lists, and the sentence at its top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loader.formatting import format_count
from loader.report.proofs import Proof

BAD, WARN, GOOD, NONE = "bad", "warn", "good", "none"
"""Levels of the verdict and of problems."""


@dataclass(frozen=True)
class _Kind:
    """A kind of problem.

    Attributes:
        state: a word for a table with this problem.
        one, several: the words after the number of such problems in the verdict.
    """

    level: str
    state: str
    one: str
    several: str


KINDS = {
    "failing": _Kind(BAD, "failing", "table fails", "tables fail"),
    "stale": _Kind(BAD, "stale", "table is stale", "tables are stale"),
    "differs": _Kind(BAD, "differs", "table differs from its source", "tables differ from theirs"),
    "proof fails": _Kind(BAD, "fails", "proof does not hold", "proofs do not hold"),
    "proof breaks": _Kind(BAD, "error", "proof could not run", "proofs could not run"),
    "not built": _Kind(BAD, "not built", "model was not built", "models were not built"),
    "never": _Kind(WARN, "never synced", "table was never synced", "tables were never synced"),
    "behind": _Kind(WARN, "behind", "table is far behind", "tables are far behind"),
    "unclear": _Kind(WARN, "unclear", "table may lack rows", "tables may lack rows"),
    "proof warns": _Kind(WARN, "warns", "proof warns", "proofs warn"),
    "unproved": _Kind(WARN, "unproved", "the proofs are missing or old", ""),
}
"""The kinds of problems, in the order in which the verdict counts them."""


@dataclass(frozen=True)
class Problem:
    """A line of the list at the top of the report.

    Attributes:
        kind: a key of `KINDS`.
        subjects: the tables or the proof, with the ids of their sections.
        text: the rest of the sentence, after the subjects.
        detail: an error or the keys of failing rows.
        seconds: the age of the last successful sync; None if unknown.
    """

    kind: str
    subjects: Sequence[tuple[str, str]]
    text: str
    detail: str = ""
    seconds: float | None = None

    @property
    def level(self) -> str:
        return KINDS[self.kind].level


def merge_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Returns the problems, worst first. Tables with the same problem share one line.

    For example, if a database or the loader is down, all tables have the same problem.
    """
    groups: dict[tuple[str, str, str], list[Problem]] = {}
    for each in problems:
        is_shared = each.kind in ("failing", "stale")
        key = each.kind, each.detail, "" if is_shared else each.text + str(each.subjects)
        groups.setdefault(key, []).append(each)
    merged = []
    for (kind, detail, _), group in groups.items():
        if len(group) == 1:
            merged += group
            continue
        ages = [each.seconds for each in group if each.seconds is not None]
        oldest = f": the oldest sync was {format_age(max(ages))} ago" if ages else ""
        verb = "fail" if kind == "failing" else "are stale"
        subjects = [subject for each in group for subject in each.subjects]
        merged.append(Problem(kind, subjects, verb + oldest, detail, max(ages, default=None)))
    return sorted(merged, key=lambda each: list(KINDS).index(each.kind))


def describe_proof(proof: Proof, target: str) -> Problem:
    if not proof.is_test:
        return Problem("not built", [(proof.name, target)], "was not built", proof.message)
    subjects = [(f"{proof.name} on {proof.subject}" if proof.subject else proof.name, target)]
    if proof.status not in ("fail", "warn"):
        return Problem("proof breaks", subjects, "could not run", proof.message)
    rows = f" for {format_count(proof.failures, 'row')}" if proof.failures else ""
    kind, verb = ("proof warns", "warns") if proof.has_warned else ("proof fails", "does not hold")
    return Problem(kind, subjects, verb + rows, _list_keys(proof))


def _list_keys(proof: Proof) -> str:
    key = {name.lower() for name in proof.key}
    places = [i for i, name in enumerate(proof.rows.columns) if name.lower() in key]
    if not places:
        return ""
    columns = ", ".join(proof.rows.columns[i] for i in places)
    keys = list(dict.fromkeys(", ".join(row[i] for i in places) for row in proof.rows.rows))
    shown = [f"({each})" if len(places) > 1 else each for each in keys[:5]]
    more = ", …" if len(keys) > len(shown) or proof.rows.has_more else ""
    return f"{columns}: {', '.join(shown)}{more}"


def summarize(
    level: str, problems: Sequence[Problem], tables: Sequence[str], proofs: Sequence[Proof]
) -> str:
    """Returns the sentence at the top of the page.

    Args:
        tables: the level of each table.
    """
    if level == NONE:
        return "Nothing has been synced yet: run `loader run`."
    tests = [proof for proof in proofs if proof.is_test]
    fine = tables.count(GOOD)
    good = f"{_all_of(fine, len(tables), 'table')} up to date"
    if level == GOOD:
        holding = sum(proof.status == "pass" for proof in tests)
        return f"All is well: {good}, and {_all_of(holding, len(tests), 'proof', 'hold')}."
    counts = _count_problems(problems, level)
    if level == BAD:
        return f"Something is wrong: {counts}."
    return f"Nothing has failed, but {counts}."


def _count_problems(problems: Sequence[Problem], level: str) -> str:
    parts = []
    for kind, words in KINDS.items():
        count = sum(len(each.subjects) for each in problems if each.kind == kind)
        if count and words.level == level:
            parts.append(
                format_count(count, words.one, words.several) if words.several else words.one
            )
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if parts[1:] else parts[0]


def _all_of(count: int, total: int, one: str, verb: str = "") -> str:
    several = f"{one}s"
    if total == 1:
        return f"the {one} {'holds' if verb else 'is'}"
    if count == total:
        return f"all {total:,} {several} {verb or 'are'}"
    return f"{count:,} of {total:,} {several} {verb or 'are'}"


def format_age(seconds: float) -> str:
    """Formats an age in one unit, such as `3 days`."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return format_count(round(seconds / size), unit)
    return format_count(max(round(seconds), 0), "second")

"""Merges a generated file with what codegen would write now, and records what it wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader.codegen.merging import ABSENT, KeptEdit, ThreeWay, same
from loader.codegen.yaml_style import document
from loader.codegen.yaml_text import EditRefused, YamlText
from loader.errors import SpecError

WRITTEN = "written"
UPDATED = "updated"
UNCHANGED = "unchanged"
KEPT = "kept"
LEFT_OUT = "left out"
MOVED = "moved"

_HEADER = (
    "Written by `loader codegen`, and yours to edit: run again, it adds what is new and updates\n"
    "what nobody touched. What you changed, added or deleted stays as you left it."
)


@dataclass(frozen=True)
class File:
    """A generated file.

    Attributes:
        what: `written` (it is new), `updated`, `unchanged`, `kept` (it has edits, and there is
            nothing else to do), `left out` (it was deleted by hand), `moved` (elsewhere in the
            project).
        before: its text now; None if it does not exist.
        text: its text as it should be; None if it should not exist.
        data: the data of a YAML file after the merge.
        notes: edits that differ from what codegen would write now.
        merged: whether the merge is settled: each entry was written, or the user's edit kept;
            False if the file could not be updated, to try again next time.
    """

    name: str
    what: str
    before: str | None
    text: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    merged: bool = True


def model_file(name: str, text: str, before: str | None, memory: Manifest, moved: bool) -> File:
    """Returns a model's file: new, or updated if it was not edited by hand.

    Args:
        before: its text now.
        moved: whether a model of that name is elsewhere in the project.
    """
    if before is None:
        if name not in memory.models:
            return File(name, WRITTEN, None, text)
        return File(name, MOVED if moved else LEFT_OUT, None, None)
    if fingerprint(before) == fingerprint(text):
        return File(name, UNCHANGED, before, before)
    if memory.wrote(name, before):
        ends = "\r\n" if "\r\n" in before else "\n"
        return File(name, UPDATED, before, text.replace("\n", ends))
    notes: tuple[str, ...] = ()
    if memory.models.get(name) != fingerprint(text):
        notes = (f"kept as you wrote it; codegen would now write:\n{text.rstrip()}",)
    return File(name, KEPT, before, before, notes=notes)


def properties_file(
    name: str,
    base: Mapping[str, Any],
    new: Mapping[str, Any],
    before: str | None,
    where: str,
    spaced: tuple[int, ...],
) -> File:
    """Returns a file of sources or models, merged entry by entry.

    Args:
        base: codegen's last output.
        new: its output now.
        before: its text now; a file that is gone is written again.
        where: the file, for errors.
        spaced: the indents of dashes that get a blank line before them in a new file.

    Raises:
        SpecError: if its text is not YAML, or not of the expected shape.
    """
    if before is None:
        return File(name, WRITTEN, None, document(new, _HEADER, spaced), new)
    text = YamlText(before, where)
    three_way = ThreeWay(text.has_comment)
    target = three_way.merge(base, text.data, new)
    notes = tuple(_describe_kept(kept) for kept in three_way.kept)
    try:
        after = text.brought_to(target)
    except EditRefused:
        note = "not updated: its aliases or layout leave no safe place for new entries"
        return File(name, KEPT, before, before, text.data, (note,), merged=False)
    if after != before:
        return File(name, UPDATED, before, after, target, notes)
    what = UNCHANGED if same(target, new) else KEPT
    return File(name, what, before, before, target, notes)


def carry_over(
    base: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    gone: Container[str] = (),
) -> list[dict[str, Any]]:
    """Returns the new entries, then the existing entries for all other tables.

    So a table is neither removed nor changed if it is not selected, its source is down, or it has
    left the spec.

    Args:
        gone: names to drop.
    """
    known = {str(entry["name"]): entry for entry in base}
    entries = []
    for entry in new:
        before = known.get(str(entry["name"]), {})
        tables = carry_over(before.get("tables", []), entry.get("tables", []))
        entries.append({**entry, "tables": tables} if tables else dict(entry))
    names = {entry["name"] for entry in new}
    rest = (dict(entry) for name, entry in known.items() if name not in names)
    return [*entries, *(entry for entry in rest if entry["name"] not in gone)]


def _describe_kept(kept: KeptEdit) -> str:
    place = ".".join(part.partition("\0")[0] for part in kept.path[1:])
    if kept.wanted is ABSENT:
        return f"kept your {place}; codegen would now remove it"
    wanted = json.dumps(kept.wanted, ensure_ascii=False, default=str)
    return f"kept your {place}; codegen would now write {wanted}"


FILE = "codegen.json"
_ABOUT = (
    "What `loader codegen` wrote last, to tell your edits from its own: commit this file, do not "
    "edit it. Without it nothing of yours is overwritten, but what you deleted comes back."
)
_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """Codegen's last output.

    Attributes:
        data: each YAML file's data, by file.
        models: a hash of each model's text, by file.
        names: by ``<source>.<table>``, the dbt source table's name and the stem of its models.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def wrote(self, file: str, text: str) -> bool:
        """Whether a model's text is as codegen wrote it."""
        return self.models.get(file) == fingerprint(text)

    def to_json(self) -> str:
        """Returns the file's text, one line for each small item, to make its changes reviewable."""
        content = {
            "about": _ABOUT,
            "version": _VERSION,
            "names": {name: list(pair) for name, pair in sorted(self.names.items())},
            "models": dict(sorted(self.models.items())),
            "data": self.data,
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | None, where: str) -> Manifest:
        """Reads the file's text; None is a file that does not exist yet.

        Raises:
            SpecError: if it was edited, or a newer loader wrote it.
        """
        if text is None:
            return cls()
        try:
            content = json.loads(text)
            version = content["version"]
            if version == _VERSION:
                names = {name: (table, stem) for name, (table, stem) in content["names"].items()}
                return cls(dict(content["data"]), dict(content["models"]), names)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SpecError(
                "not as codegen wrote it",
                where=where,
                remedy="Restore it from version control; or delete it: nothing of yours will "
                "be overwritten, but what you deleted comes back",
            ) from None
        raise SpecError(
            f"written by another version of the loader (format {version})",
            where=where,
            remedy="Upgrade the loader",
        )


def fingerprint(text: str) -> str:
    """Hashes a model's text; ignores line ends, because version control changes them."""
    return hashlib.sha256("\n".join(text.splitlines()).encode()).hexdigest()[:16]

"""One generated file: what stands there, what codegen would write now, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader.codegen.memory import Memory, fingerprint
from loader.codegen.merging import ABSENT, Kept, ThreeWay, same
from loader.codegen.yaml_edits import Refused
from loader.codegen.yaml_style import document
from loader.codegen.yaml_text import YamlText

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
        what: `written` (it is new), `updated`, `unchanged`, `kept` (it has edits, and nothing
            else is to be done), `left out` (it was deleted by hand), `moved` (elsewhere in the
            project).
        before: its text as it stands there; None if it is not there.
        text: its text as it should be; None if it should not be there.
        data: what a YAML file will say.
        notes: edits that codegen would now write otherwise.
        merged: what codegen wants is in it, or was turned down; False if it waits.
    """

    name: str
    what: str
    before: str | None
    text: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    merged: bool = True


def model_file(name: str, text: str, before: str | None, memory: Memory, moved: bool) -> File:
    """A model: written once, and from then on updated only while it is as it was written.

    Args:
        before: what stands there.
        moved: a model of that name stands elsewhere in the project.
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
    """A file of sources or models: merged entry by entry.

    Args:
        base: what codegen wrote last.
        new: what it would write now.
        before: what stands there; a file that is gone is written anew.
        where: the file, for errors.
        spaced: the indents of dashes that get a blank line in a new file.

    Raises:
        SpecError: if what stands there is no YAML, or not of that shape.
    """
    if before is None:
        return File(name, WRITTEN, None, document(new, _HEADER, spaced), new)
    text = YamlText(before, where)
    three_way = ThreeWay(text.commented)
    target = three_way.merge(base, text.data, new)
    notes = tuple(_kept(kept) for kept in three_way.kept)
    try:
        after = text.brought_to(target)
    except Refused:
        note = "not updated, as its aliases or layout leave no safe place for what is new"
        return File(name, KEPT, before, before, text.data, (note,), merged=False)
    if after != before:
        return File(name, UPDATED, before, after, target, notes)
    what = UNCHANGED if same(target, new) else KEPT
    return File(name, what, before, before, target, notes)


def carried(
    base: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    gone: Container[str] = (),
) -> list[dict[str, Any]]:
    """What codegen would write now, and behind it what it wrote before of tables not asked for.

    A table that is not selected, whose source is down or that left the spec is thus neither
    removed nor changed.

    Args:
        gone: names that are not to be carried on.
    """
    known = {str(entry["name"]): entry for entry in base}
    entries = []
    for entry in new:
        before = known.get(str(entry["name"]), {})
        tables = carried(before.get("tables", []), entry.get("tables", []))
        entries.append({**entry, "tables": tables} if tables else dict(entry))
    names = {entry["name"] for entry in new}
    rest = (dict(entry) for name, entry in known.items() if name not in names)
    return [*entries, *(entry for entry in rest if entry["name"] not in gone)]


def _kept(kept: Kept) -> str:
    place = ".".join(part.partition("\0")[0] for part in kept.path[1:])
    if kept.wanted is ABSENT:
        return f"kept your {place}, which codegen would now leave away"
    wanted = json.dumps(kept.wanted, ensure_ascii=False, default=str)
    return f"kept your {place}; codegen would now write {wanted}"

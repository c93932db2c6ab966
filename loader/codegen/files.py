"""Merges generated content with the project's files, and records the last output of codegen."""

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
    "Written by `loader codegen`. You may edit this file: later runs add new entries and update\n"
    "unedited ones. Whatever you changed, added or deleted stays that way."
)
_CHOICES = """

More tests to choose from, for the `data_tests` of a model:
  - strandline.unique_key  # a key that is in the table more than once
  - strandline.cursor_plausible  # a cursor that is missing, lies in the future or went back
  - strandline.no_duplicates  # a row that was loaded again without a change: warns
  - strandline.row_hash_valid  # values that are not those that the loader wrote
For a source table `_cq_reconciled` next to the raw tables:
  - strandline.reconciled_recently  # a table not compared with its source for a day: warns
For a source table `_cq_syncs` next to the raw tables:
  - strandline.complete_recently  # commits of the last day may be missing: warns
  - strandline.volume_plausible  # far more or far fewer rows than on any day before: warns
The package tests ledger and state of all tables at once, on its models cq_sync_log and
cq_state_current: batches_complete, inclusive_cursor and state_consistent."""


@dataclass(frozen=True)
class File:
    """A generated file.

    Attributes:
        status: `written` (a new file), `updated`, `unchanged`, `kept` (only manual edits differ),
            `left out` (deleted by the user), or `moved` (to another folder of the project, by the
            user).
        before: the current text; None if the file does not exist.
        text: the new text; None if the file should not exist.
        data: the data of a YAML file after the merge.
        notes: messages about manual edits that differ from the generated content.
        merged: whether the file could be updated. If not, the next run tries again.
    """

    name: str
    status: str
    before: str | None
    text: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    merged: bool = True


def model_file(name: str, text: str, before: str | None, manifest: Manifest, moved: bool) -> File:
    """Returns the file of a model. Keeps the current text if it was edited manually.

    Args:
        before: the file's current text; None if the file does not exist.
        moved: whether another folder in the project contains a model with this name.
    """
    if before is None:
        if name not in manifest.models:
            return File(name, WRITTEN, None, text)
        return File(name, MOVED if moved else LEFT_OUT, None, None)
    if fingerprint(before) == fingerprint(text):
        return File(name, UNCHANGED, before, before)
    if manifest.wrote(name, before):
        newline = "\r\n" if "\r\n" in before else "\n"
        return File(name, UPDATED, before, text.replace("\n", newline))
    notes: tuple[str, ...] = ()
    if manifest.models.get(name) != fingerprint(text):
        notes = (f"kept with your edits; codegen would now write:\n{text.rstrip()}",)
    return File(name, KEPT, before, before, notes=notes)


def properties_file(
    name: str,
    base: Mapping[str, Any],
    new: Mapping[str, Any],
    before: str | None,
    where: str,
    spaced: tuple[int, ...],
) -> File:
    """Returns a YAML file (`sources.yml`, `models.yml`). Merges new entries into the current text.

    Args:
        base: the last content that codegen wrote.
        new: the content that codegen would write now.
        spaced: passed to :func:`document` for a new file.
    """
    if before is None:
        header = _HEADER + (_CHOICES if "models" in new else "")
        return File(name, WRITTEN, None, document(new, header, spaced), new)
    text = YamlText(before, where)
    three_way = ThreeWay(text.has_comment)
    target = three_way.merge(base, text.data, new)
    notes = tuple(_describe_kept(kept) for kept in three_way.kept)
    try:
        after = text.update_to(target)
    except EditRefused:
        note = "not updated: because of its aliases or layout, new entries cannot be added safely"
        return File(name, KEPT, before, before, text.data, (note,), merged=False)
    if after != before:
        return File(name, UPDATED, before, after, target, notes)
    status = UNCHANGED if same(target, new) else KEPT
    return File(name, status, before, before, target, notes)


def carry_over(
    base: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    removed: Container[str] = (),
) -> list[dict[str, Any]]:
    """Returns the new entries, followed by the existing entries of all other tables.

    So a table's entry is kept if this run does not select the table, if the table's source is
    unreachable, or if the spec no longer contains the table.

    Args:
        removed: the names of the entries to drop.
    """
    existing = {str(entry["name"]): entry for entry in base}
    entries = []
    for entry in new:
        before = existing.get(str(entry["name"]), {})
        tables = carry_over(before.get("tables", []), entry.get("tables", []))
        entries.append({**entry, "tables": tables} if tables else dict(entry))
    names = {entry["name"] for entry in new}
    rest = (dict(entry) for name, entry in existing.items() if name not in names)
    return [*entries, *(entry for entry in rest if entry["name"] not in removed)]


def _describe_kept(kept: KeptEdit) -> str:
    path = ".".join(part.partition("\0")[0] for part in kept.path[1:])
    if kept.wanted is ABSENT:
        return f"kept your {path}; codegen would now remove it"
    wanted = json.dumps(kept.wanted, ensure_ascii=False, default=str)
    return f"kept your {path}; codegen would now write {wanted}"


FILE = "codegen.json"
_ABOUT = (
    "The last output of `loader codegen`, to distinguish it from your edits: commit this file, do "
    "not edit it. Without it, no edit is overwritten, but deleted entries are generated again."
)
_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """The last output of codegen.

    Attributes:
        data: the data of each YAML file, keyed by file name.
        models: a hash of the text of each model, keyed by file name.
        names: maps ``<source>.<table>`` to the name of the source table in dbt and the stem of its
            models' names.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def wrote(self, file: str, text: str) -> bool:
        return self.models.get(file) == fingerprint(text)

    def to_json(self) -> str:
        """Returns the file's text. Each value has its own line, so that diffs are readable."""
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
        """Parses the text of `codegen.json`, which is None if the file does not exist yet.

        Raises a SpecError if the text was edited, or if a newer loader wrote it.
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
                "this file was edited by hand",
                where=where,
                remedy="Restore it from version control, or delete it: no edit will be "
                "overwritten, but deleted entries are generated again",
            ) from None
        raise SpecError(
            f"written by another version of the loader (format {version})",
            where=where,
            remedy="Upgrade the loader",
        )


def fingerprint(text: str) -> str:
    """Hashes a model's text. Normalizes line breaks, because version control may change them."""
    return hashlib.sha256("\n".join(text.splitlines()).encode()).hexdigest()[:16]

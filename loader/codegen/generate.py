"""From tables to files: merges what codegen would write now with what is there."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader.codegen import rendering
from loader.codegen.dbt_project import Elsewhere, entries
from loader.codegen.files import (
    LEFT_OUT,
    File,
    Manifest,
    carry_over,
    fingerprint,
    model_file,
    properties_file,
)
from loader.codegen.rendering import HISTORY, LATEST, NamedTable
from loader.codegen.table import Table, assign_names, is_plain, make_safe
from loader.names import match_selection

SOURCES = "sources.yml"
MODELS = "models.yml"

_KINDS = (LATEST, HISTORY)
# Indents of the dashes that get a blank line before them in a new file: sources, tables; models.
_SPACED = {SOURCES: (2, 6), MODELS: (2,)}


@dataclass(frozen=True)
class Folder:
    """The output folder as it is now.

    Attributes:
        read: returns a file's text; None if there is no such file.
        shown: returns a file's name for messages.
        elsewhere: the project's declarations outside the folder.
        raw_schema: the value of the variable `strandline__raw_schema`.
    """

    read: Callable[[str], str | None]
    shown: Callable[[str], str] = str
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    raw_schema: str = "raw"


@dataclass(frozen=True)
class Generated:
    """The files to write.

    Attributes:
        files: the generated files.
        notes: for the user, each with its table or file.
        memory: the manifest for the next run.
    """

    files: list[File]
    notes: list[tuple[str, str]]
    memory: Manifest


def generate(
    tables: Sequence[Table],
    folder: Folder,
    memory: Manifest,
    history: Sequence[str] = (),
    complete: Container[str] = (),
) -> Generated:
    """Generates all files.

    Args:
        tables: the selected tables; what was written for others stays.
        history: patterns of tables that also get a `deduped_history` model. Tables that have
            one keep it.
        complete: sources whose tables are all in `tables`.

    Raises:
        SpecError: if an existing file is not YAML of the expected shape.
    """
    notes: list[tuple[str, str]] = []
    named = _name_tables(tables, memory)
    declared = [one for one in named if _declares(one, folder, memory, notes)]
    schemas = {one.table.source: _schema(one.table, folder) for one in named}
    sources = _properties(SOURCES, rendering.sources(schemas, declared), (), folder, memory)
    standing = {*folder.elsewhere.tables, *_standing(sources)}
    models, hashes = _models(named, standing, folder, memory, history, notes)
    there = {
        kind: [one for (one, of), file in models.items() if of == kind and file.what != LEFT_OUT]
        for kind in _KINDS
    }
    gone = {one.model(kind) for (one, kind), file in models.items() if file.what == LEFT_OUT}
    described = rendering.models(there[LATEST], there[HISTORY])
    properties = [sources, _properties(MODELS, described, gone, folder, memory)]

    files = [*(file for file, _ in properties if file), *models.values()]
    notes += [(folder.shown(file.name), note) for file in files for note in file.notes]
    notes += _stale(standing, named, memory, complete)
    remembered = zip((SOURCES, MODELS), properties, strict=True)
    data = {name: said for name, (_, said) in remembered if said}
    names = {one.table.full_name: (one.dbt_name, one.stem) for one in named}
    return Generated(files, notes, Manifest(data, hashes, {**memory.names, **names}))


def matches(table: Table, patterns: Sequence[str]) -> list[str]:
    """Returns the patterns that match the table."""
    return sorted(match_selection(table.selectable, patterns))


def _name_tables(tables: Sequence[Table], memory: Manifest) -> list[NamedTable]:
    names: dict[str, str] = {}
    for source in dict.fromkeys(table.source for table in tables):
        own = [table.name for table in tables if table.source == source]
        start = f"{source}."
        known = {
            full.removeprefix(start): name
            for full, (name, _) in memory.names.items()
            if full.startswith(start)
        }
        proposals = {name: name if is_plain(name) else make_safe(name) for name in own}
        assigned = assign_names(proposals, known)
        names |= {start + name: assigned[name] for name in own}
    stems = assign_names(
        {t.full_name: f"{make_safe(t.source)}_{make_safe(names[t.full_name])}" for t in tables},
        {full: stem for full, (_, stem) in memory.names.items()},
    )
    return [NamedTable(t, names[t.full_name], stems[t.full_name]) for t in tables]


def _schema(table: Table, folder: Folder) -> str:
    """Returns the package's schema variable if it has the same value, else the schema's name."""
    if table.schema != folder.raw_schema or not is_plain(table.schema):
        return rendering.as_text(table.schema)
    return f"{{{{ var('strandline__raw_schema', '{table.schema}') }}}}"


def _declares(
    one: NamedTable, folder: Folder, memory: Manifest, notes: list[tuple[str, str]]
) -> bool:
    """Whether codegen should write the table's source entry."""
    table = one.table
    place = folder.elsewhere.tables.get((table.source, one.dbt_name))
    if place is None:
        return True
    if table.full_name not in memory.names:
        notes.append((table.full_name, f"already declared in {place}, and left there"))
    return False


def _kinds(
    one: NamedTable,
    standing: Container[tuple[str, str]],
    folder: Folder,
    memory: Manifest,
    history: Sequence[str],
    notes: list[tuple[str, str]],
) -> list[str]:
    """Returns the kinds of models that the table gets."""
    table, elsewhere = one.table, folder.elsewhere
    if not table.key:
        text = "no primary key, so no snapshot model; if it has one, name it in "
        notes.append((table.full_name, f"{text}table_options.{table.asked}.primary_key"))
        return []
    kinds = []
    for kind in _KINDS:
        place = elsewhere.models.get(one.model(kind))
        if kind == LATEST and place is None:
            place = elsewhere.snapshots.get((table.source, one.dbt_name))
        known = f"{one.model(kind)}.sql" in memory.models
        asked = kind == LATEST or matches(table, history)
        declared = (table.source, one.dbt_name) in standing
        if known or (asked and declared and place is None):
            kinds.append(kind)
        elif asked:
            why = f"{place} builds it already" if place else f"{SOURCES} does not declare it"
            notes.append((table.full_name, f"{why}: no {kind} model"))
    return kinds


def _models(
    named: Sequence[NamedTable],
    standing: Container[tuple[str, str]],
    folder: Folder,
    memory: Manifest,
    history: Sequence[str],
    notes: list[tuple[str, str]],
) -> tuple[dict[tuple[NamedTable, str], File], dict[str, str]]:
    """Returns the models' files, and their part of the manifest."""
    files: dict[tuple[NamedTable, str], File] = {}
    hashes = dict(memory.models)
    for one in named:
        for kind in _kinds(one, standing, folder, memory, history, notes):
            name, text = f"{one.model(kind)}.sql", rendering.sql(one, kind)
            moved = one.model(kind) in folder.elsewhere.models
            files[one, kind] = model_file(name, text, folder.read(name), memory, moved)
            hashes[name] = fingerprint(text)
    return files, hashes


def _properties(
    name: str,
    said: Mapping[str, Sequence[Mapping[str, Any]]],
    gone: Container[str],
    folder: Folder,
    memory: Manifest,
) -> tuple[File | None, Mapping[str, Any]]:
    """Returns a YAML file, None if it would be empty; and its part of the manifest."""
    base = memory.data.get(name, {})
    known = {key: carry_over(base.get(key, []), listed, gone) for key, listed in said.items()}
    new = {key: listed for key, listed in known.items() if listed}
    before = folder.read(name)
    if before is None and not new:
        return None, base
    file = properties_file(name, base, new, before, folder.shown(name), _SPACED[name])
    return file, new if file.merged else base


def _standing(sources: tuple[File | None, Any]) -> set[tuple[str, str]]:
    """Returns the tables that sources.yml declares, generated or written by hand."""
    file, _ = sources
    return {
        (str(source.get("name")), str(table.get("name")))
        for source in entries(file.data if file else {}, "sources")
        for table in entries(source, "tables")
    }


def _stale(
    standing: Container[tuple[str, str]],
    named: Sequence[NamedTable],
    memory: Manifest,
    complete: Container[str],
) -> list[tuple[str, str]]:
    """Notes tables that are still declared, though the spec no longer has them."""
    current = {one.table.full_name for one in named}
    text = "no longer a table of the spec: what was generated for it stays; delete it by hand"
    return [
        (full, text)
        for full, (name, _) in sorted(memory.names.items())
        for source in [full.partition(".")[0]]
        if full not in current and source in complete and (source, name) in standing
    ]

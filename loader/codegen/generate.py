"""Generates all files for the tables, and merges them with the existing files."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loader.codegen import rendering
from loader.codegen.dbt_project import Elsewhere, list_source_tables
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
# The indents of the list items that are preceded by a blank line in a new file: sources and tables
# in one file, and models in the other.
_SPACED = {SOURCES: (2, 6), MODELS: (2,)}


@dataclass(frozen=True)
class Folder:
    """The current content of the output folder.

    Attributes:
        elsewhere: the project's declarations outside the folder.
    """

    read: Callable[[str], str | None]
    relative_path: Callable[[str], str] = str
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    raw_schema: str = "raw"


@dataclass(frozen=True)
class Generated:
    """The result of codegen.

    Attributes:
        notes: messages for the user, each with its table or file.
    """

    files: list[File]
    notes: list[tuple[str, str]]
    manifest: Manifest


def generate(
    tables: Sequence[Table],
    folder: Folder,
    memory: Manifest,
    history: Sequence[str] = (),
    complete: Container[str] = (),
) -> Generated:
    """Generates all files.

    Args:
        tables: the selected tables. The entries of all other tables are kept.
        history: patterns of tables that also get a `deduped_history` model. Existing history models
            are kept.
        complete: the names of those sources whose tables are all in `tables`.

    Raises a SpecError if an existing file is not a valid properties file.
    """
    notes: list[tuple[str, str]] = []
    named = _name_tables(tables, memory)
    declared = [table for table in named if _is_declared_here(table, folder, memory, notes)]
    schemas = {each.table.source: _schema(each.table, folder) for each in named}
    sources = _properties(SOURCES, rendering.sources(schemas, declared), (), folder, memory)
    written = sources[0].data if sources[0] else {}
    all_declared = {*folder.elsewhere.tables, *list_source_tables(written)}
    models, hashes = _models(named, all_declared, folder, memory, history, notes)
    by_kind = {
        kind: [
            table
            for (table, model_kind), file in models.items()
            if model_kind == kind and file.status != LEFT_OUT
        ]
        for kind in _KINDS
    }
    left_out = {
        table.model(kind) for (table, kind), file in models.items() if file.status == LEFT_OUT
    }
    rendered = rendering.models(by_kind[LATEST], by_kind[HISTORY])
    properties = [sources, _properties(MODELS, rendered, left_out, folder, memory)]

    files = [*(file for file, _ in properties if file), *models.values()]
    notes += [(folder.relative_path(file.name), note) for file in files for note in file.notes]
    notes += _list_stale_tables(all_declared, named, memory, complete)
    by_file = zip((SOURCES, MODELS), properties, strict=True)
    data = {name: content for name, (_, content) in by_file if content}
    names = {table.table.full_name: (table.dbt_name, table.stem) for table in named}
    return Generated(files, notes, Manifest(data, hashes, {**memory.names, **names}))


def match_patterns(table: Table, patterns: Sequence[str]) -> list[str]:
    return sorted(match_selection(table.selectable, patterns))


def _name_tables(tables: Sequence[Table], memory: Manifest) -> list[NamedTable]:
    names: dict[str, str] = {}
    for source in dict.fromkeys(table.source for table in tables):
        exact_names = [table.name for table in tables if table.source == source]
        start = f"{source}."
        known = {
            full.removeprefix(start): name
            for full, (name, _) in memory.names.items()
            if full.startswith(start)
        }
        proposals = {name: name if is_plain(name) else make_safe(name) for name in exact_names}
        assigned = assign_names(proposals, known)
        names |= {start + name: assigned[name] for name in exact_names}
    stems = assign_names(
        {t.full_name: f"{make_safe(t.source)}_{make_safe(names[t.full_name])}" for t in tables},
        {full: stem for full, (_, stem) in memory.names.items()},
    )
    return [NamedTable(t, names[t.full_name], stems[t.full_name]) for t in tables]


def _schema(table: Table, folder: Folder) -> str:
    """Returns the schema's name, or a reference to the dbt variable that has this value."""
    if table.schema != folder.raw_schema or not is_plain(table.schema):
        return rendering.as_text(table.schema)
    return f"{{{{ var('strandline__raw_schema', '{table.schema}') }}}}"


def _is_declared_here(
    one: NamedTable, folder: Folder, memory: Manifest, notes: list[tuple[str, str]]
) -> bool:
    """Returns whether codegen should declare a table. True if no other file declares it."""
    table = one.table
    path = folder.elsewhere.tables.get((table.source, one.dbt_name))
    if path is None:
        return True
    if table.full_name not in memory.names:
        notes.append((table.full_name, f"already declared in {path}, so not declared again"))
    return False


def _kinds(
    one: NamedTable,
    declared: Container[tuple[str, str]],
    folder: Folder,
    memory: Manifest,
    history: Sequence[str],
    notes: list[tuple[str, str]],
) -> list[str]:
    table, elsewhere = one.table, folder.elsewhere
    if not table.key:
        text = "no primary key, so no deduped_latest model; if the table has a key, set it in "
        notes.append((table.full_name, f"{text}table_options.{table.spec_name}.primary_key"))
        return []
    kinds = []
    for kind in _KINDS:
        path = elsewhere.models.get(one.model(kind))
        if kind == LATEST and path is None:
            path = elsewhere.snapshots.get((table.source, one.dbt_name))
        was_generated = f"{one.model(kind)}.sql" in memory.models
        is_wanted = kind == LATEST or match_patterns(table, history)
        is_declared = (table.source, one.dbt_name) in declared
        if was_generated or (is_wanted and is_declared and path is None):
            kinds.append(kind)
        elif is_wanted:
            why = f"{path} already builds it" if path else f"{SOURCES} does not declare it"
            notes.append((table.full_name, f"{why}: no {kind} model"))
    return kinds


def _models(
    named: Sequence[NamedTable],
    declared: Container[tuple[str, str]],
    folder: Folder,
    memory: Manifest,
    history: Sequence[str],
    notes: list[tuple[str, str]],
) -> tuple[dict[tuple[NamedTable, str], File], dict[str, str]]:
    files: dict[tuple[NamedTable, str], File] = {}
    hashes = dict(memory.models)
    for one in named:
        for kind in _kinds(one, declared, folder, memory, history, notes):
            name, text = f"{one.model(kind)}.sql", rendering.sql(one, kind)
            moved = one.model(kind) in folder.elsewhere.models
            files[one, kind] = model_file(name, text, folder.read(name), memory, moved)
            hashes[name] = fingerprint(text)
    return files, hashes


def _properties(
    name: str,
    rendered: Mapping[str, Sequence[Mapping[str, Any]]],
    removed: Container[str],
    folder: Folder,
    memory: Manifest,
) -> tuple[File | None, Mapping[str, Any]]:
    """Returns a YAML file (None if it would be empty) and its data for the manifest."""
    base = memory.data.get(name, {})
    merged = {key: carry_over(base.get(key, []), new, removed) for key, new in rendered.items()}
    new = {key: listed for key, listed in merged.items() if listed}
    before = folder.read(name)
    if before is None and not new:
        return None, base
    file = properties_file(name, base, new, before, folder.relative_path(name), _SPACED[name])
    return file, new if file.merged else base


def _list_stale_tables(
    declared: Container[tuple[str, str]],
    named: Sequence[NamedTable],
    memory: Manifest,
    complete: Container[str],
) -> list[tuple[str, str]]:
    current = {one.table.full_name for one in named}
    text = "no longer a table of the spec; its entries and models stay: delete them by hand"
    return [
        (full, text)
        for full, (name, _) in sorted(memory.names.items())
        for source in [full.partition(".")[0]]
        if full not in current and source in complete and (source, name) in declared
    ]

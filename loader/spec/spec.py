"""The spec (``loader.yml``), which contains sources and destinations in CloudQuery's format."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from loader.errors import SpecError, did_you_mean, one_error
from loader.names import in_the_lake
from loader.spec.document import Document, read_documents
from loader.spec.expansion import Expansion, Plugin, list_names
from loader.spec.plugins import (
    SCHEME,
    STATE_PATHS,
    DestinationSpec,
    LakeDestination,
    LakeOptions,
    PluggedDestination,
    SourceSpec,
    StateDestination,
    state_backends,
)
from loader.spec.redaction import Redactor, is_secret_key, url_secrets
from loader.spec.validation import validation_errors

_KINDS = ("source", "destination")
_INIT = "Run `loader init` to write a starter project"

P = TypeVar("P", SourceSpec, DestinationSpec)


class Spec(BaseModel):
    """A spec file.

    Attributes:
        sources, destinations: the documents, ordered as in the file.
        folder: the absolute path of the file's folder. Relative paths are resolved against it.
        file: the absolute path of the file; None if the spec was built in code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    sources: tuple[SourceSpec, ...]
    destinations: tuple[DestinationSpec, ...]
    folder: Path
    redactor: Redactor
    file: Path | None = None

    def same_as(self, other: Spec) -> bool:
        """Returns whether two specs are equal, except for their redactors."""
        return self.model_dump(exclude={"redactor"}) == other.model_dump(exclude={"redactor"})

    def source(self, name: str) -> SourceSpec:
        """Returns the source with the given name. Raises SpecError if there is none."""
        return _index_by_name(self.sources, name, "source")

    def destination(self, name: str) -> DestinationSpec:
        """Returns the destination with the given name. Raises SpecError if there is none."""
        return _index_by_name(self.destinations, name, "destination")

    def may_contain(self, table: str) -> bool:
        """Returns whether the spec's names and wildcards match a raw table, which need not exist.

        Args:
            table: the table as `source.table`; case-insensitive.
        """
        source, _, name = table.lower().partition(".")

        def matches(patterns: Iterable[str]) -> bool:
            return any(fnmatchcase(name, in_the_lake(each).lower()) for each in patterns)

        return any(
            matches(each.tables) and not matches(each.skip_tables)
            for each in self.sources
            if each.name.lower() == source
        )

    def schema_of(self, source: SourceSpec) -> str:
        """Returns the namespace of a source's raw tables."""
        return source.schema_ or self.destination(source.destinations[0]).lake.schema_

    def state_schema_of(self, source: SourceSpec) -> str | None:
        """Returns the namespace of a source's cursors, or None if they are not in a lake."""
        store = self.destination(source.state_destination)
        if source.local_state is not None or not isinstance(store, LakeDestination):
            return None
        is_explicit = source.backend_options.connection is not None
        return store.lake.schema_ if is_explicit else self.schema_of(source)


def _index_by_name(plugins: Iterable[P], name: str, kind: str) -> P:
    by_name = {plugin.name: plugin for plugin in plugins}
    if name not in by_name:
        raise SpecError(
            f"there is no {kind} {name!r}",
            remedy=suggest_name(name, by_name),
        )
    return by_name[name]


def load_spec(
    path: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    needs_source: bool = True,
) -> Spec:
    """Reads and validates a spec file.

    Args:
        env: the variables for ``${VAR}``. The default is the process's environment.
        needs_source: whether a file without a source is an error.

    Raises:
        SpecError: if the file cannot be read, is not valid YAML, or has mistakes. The error lists
            the document and key of each mistake, and contains no secrets.
    """
    path = Path(path)
    try:
        documents = read_documents(_text(path), str(path))
        if not documents:
            raise SpecError(
                "the spec is empty",
                where=str(path),
                remedy="Delete it, and run `loader init` to write a starter project",
            )
        file = Path(os.path.abspath(path))
        env = os.environ if env is None else env
        spec = _load(documents, path, file.parent, env, needs_source)
        return spec.model_copy(update={"file": file})
    except RecursionError:  # aliases can nest deeper than the text of the file
        raise SpecError(
            "nested too deeply to be read", where=str(path), remedy="Nest it less deeply"
        ) from None


def build_spec(
    documents: Iterable[Mapping[str, Any]],
    folder: str | os.PathLike[str] = ".",
    env: Mapping[str, str] | None = None,
) -> Spec:
    """Validates a spec that is built in code.

    Args:
        documents: mappings with `kind` and `spec`. ``${VAR}`` and ``@@plugins`` are expanded as in
            a file.
        folder: the folder of the dbt project. Relative paths are resolved against it.
        env: the variables for ``${VAR}``. The default is the process's environment.

    Raises:
        SpecError: if a value has no equivalent in YAML, or if the spec has mistakes.
    """
    path = Path("build_spec")
    try:
        plain = json.loads(json.dumps(list(documents), default=_to_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"the documents cannot be read: {error}",
            where=str(path),
            remedy="Pass a list of mappings with strings, numbers, booleans, lists and mappings",
        ) from None
    numbered = [Document(number, value) for number, value in enumerate(plain, 1)]
    env = os.environ if env is None else env
    return _load(numbered, path, Path(os.path.abspath(folder)), env, True)


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike | dt.date):
        return str(value)
    raise TypeError(f"a value has the type {type(value).__name__}")


def _load(
    documents: Sequence[Document],
    path: Path,
    folder: Path,
    env: Mapping[str, str],
    needs_source: bool,
) -> Spec:
    redactor = Redactor()
    expansion = Expansion(env, folder, redactor)

    def expand_name(document: Document) -> Any:
        # A name may contain variables. Errors for invalid variables are reported below.
        return Expansion(expansion.env, folder, Redactor()).expand(_name(document), "")

    expansion.plugins = {
        name: Plugin(_where(path, document), document.value["kind"], document.value["spec"])
        # Destinations come last, so a name that a source and a destination share refers to the
        # destination.
        for kind in _KINDS
        for document in documents
        if _kind(document) == kind and isinstance(name := expand_name(document), str)
    }
    expanded = [
        Document(each.number, expansion.expand(each.value, _where(path, each)))
        for each in documents
    ]
    if expansion.errors:
        raise one_error(expansion.errors, str(path))
    for document in expanded:
        redactor.add(*_list_secrets(document.value))
        redactor.keep_readable(*list_names(document.value))
    return _validate(expanded, path, folder, redactor, needs_source)


def _validate(
    documents: Iterable[Document],
    path: Path,
    folder: Path,
    redactor: Redactor,
    needs_source: bool,
) -> Spec:
    errors: list[SpecError] = []
    plugins: list[SourceSpec | DestinationSpec] = []
    for document in documents:
        where = _where(path, document)
        document_errors = _outer_errors(document, where)
        if document_errors:
            errors += document_errors
            continue
        spec = document.value["spec"]
        result = validation_errors(_model(document), spec, f"{where}, spec", redactor)
        if isinstance(result, list):
            errors += result
        else:
            result._where, result._redactor = f"{where}, spec", redactor
            plugins.append(result)
    sources = [plugin for plugin in plugins if isinstance(plugin, SourceSpec)]
    destinations = [plugin for plugin in plugins if isinstance(plugin, DestinationSpec)]
    errors += [
        *check_unique_names(sources),
        *check_unique_names(destinations),
        *check_former_names(sources),
    ]
    # These lists lack documents with errors, so references are checked only if there are no errors.
    if not errors and (sources or needs_source):
        errors = check_references(sources, destinations, str(path))
    if errors:
        raise one_error(errors, str(path))
    return Spec(
        sources=tuple(sources), destinations=tuple(destinations), folder=folder, redactor=redactor
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise SpecError("there is no such spec file", where=str(path), remedy=_INIT) from None
    except IsADirectoryError:
        raise SpecError(
            "this is a folder, not a spec file",
            where=str(path),
            remedy=f"Pass the file, for example {path / 'loader.yml'}",
        ) from None
    except UnicodeDecodeError:
        raise SpecError(
            "not UTF-8 text", where=str(path), remedy="Save the file as UTF-8"
        ) from None
    except OSError as error:
        raise SpecError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="Make the file readable"
        ) from None


def _kind(document: Document) -> Any:
    value = document.value
    is_valid = isinstance(value, dict) and isinstance(value.get("spec"), dict)
    return value.get("kind") if is_valid else None


def _name(document: Document) -> Any:
    value = document.value
    spec = value.get("spec") if isinstance(value, dict) else None
    return spec.get("name") if isinstance(spec, dict) else None


def _where(path: Path, document: Document) -> str:
    kind, name = _kind(document), _name(document)
    is_named = isinstance(kind, str) and isinstance(name, str | int)
    return f"{path}, document {document.number}" + (f" ({kind} {name})" if is_named else "")


def _model(document: Document) -> type[SourceSpec] | type[DestinationSpec]:
    if document.value["kind"] == "source":
        return SourceSpec
    path = document.value["spec"].get("path")
    if path == "spark":
        return LakeDestination
    if path in STATE_PATHS:
        return StateDestination
    return PluggedDestination if path in state_backends() else DestinationSpec


def _outer_errors(document: Document, where: str) -> list[SpecError]:
    value = document.value
    if not isinstance(value, dict):
        return [
            SpecError(
                "a document must have the keys `kind` and `spec`",
                where=where,
                remedy="Begin it with `kind: source` or `kind: destination`",
            )
        ]
    errors = [
        SpecError(
            "unknown key",
            where=f"{where}, {key}",
            remedy=did_you_mean(str(key), ("kind", "spec")) or "Valid keys: kind, spec",
        )
        for key in value
        if key not in ("kind", "spec")
    ]
    kind, spec = value.get("kind"), value.get("spec")
    if kind is None:
        remedy = "Add `kind: source` or `kind: destination`"
        errors.append(SpecError("this key is missing", where=f"{where}, kind", remedy=remedy))
    elif kind not in _KINDS:
        near = did_you_mean(str(kind), _KINDS)
        remedy = near or "Use `source` or `destination`"
        errors.append(SpecError(f"unknown kind {kind!r}", where=f"{where}, kind", remedy=remedy))
    if not isinstance(spec, dict):
        what = "this key is missing" if spec is None else "must be a mapping"
        remedy = "Add `spec:` with `name:` and `path:` indented below it"
        errors.append(SpecError(what, where=f"{where}, spec", remedy=remedy))
    return errors


def _list_secrets(value: Any, is_secret: bool = False) -> Iterator[str]:
    """Yields the secrets in a document: the values of secret keys, and the passwords in URLs."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _list_secrets(item, is_secret or is_secret_key(key))
    elif isinstance(value, list):
        for item in value:
            yield from _list_secrets(item, is_secret)
    elif isinstance(value, str) and not is_secret:
        yield from url_secrets(value)
    elif is_secret and value is not None and str(value).lower() not in ("true", "false", "null"):
        yield str(value)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Returns the remedy for an unknown name: a similar name, or all names."""
    known = list(known)
    return did_you_mean(name, known) or f"Existing names: {', '.join(known) or 'none'}"


def check_unique_names(plugins: Iterable[SourceSpec | DestinationSpec]) -> list[SpecError]:
    """Returns an error for each document that has the same name as an earlier one."""
    seen: dict[str, str] = {}
    errors = []
    for plugin in plugins:
        if plugin.name in seen:
            errors.append(
                SpecError(
                    f"the name {plugin.name!r} is already used by {seen[plugin.name]}",
                    where=f"{plugin.where}.name",
                    remedy="Rename one of them",
                )
            )
        seen.setdefault(plugin.name, plugin.where.removesuffix(", spec").partition(", ")[2])
    return errors


def check_former_names(sources: Iterable[SourceSpec]) -> list[SpecError]:
    """Returns an error for each former name that is the current name of a source."""
    sources = list(sources)
    names = {source.name for source in sources}
    return [
        SpecError(
            f"{former!r} is the name of a source in this file, so it cannot be a former name",
            where=f"{source.where}.formerly[{i}]",
            remedy="Remove it here, or remove that source",
        )
        for source in sources
        for i, former in enumerate(source.formerly)
        if former in names
    ]


def check_references(
    sources: Iterable[SourceSpec], destinations: Iterable[DestinationSpec], path: str
) -> list[SpecError]:
    """Returns errors for references to destinations that do not exist or cannot store tables."""
    by_name = {destination.name: destination for destination in destinations}
    sources = list(sources)
    errors = []
    if not sources:
        remedy = "Add a document with `kind: source`"
        errors.append(SpecError("there is no source", where=path, remedy=remedy))
    for source in sources:
        for i, name in enumerate(source.destinations):
            where = f"{source.where}.destinations[{i}]"
            if name not in by_name:
                remedy = f"{suggest_name(name, by_name)}; or add a document of kind destination"
                what = f"there is no destination {name!r}"
                errors.append(SpecError(what, where=where, remedy=remedy))
            elif not isinstance(by_name[name].spec, LakeOptions):
                what = f"{name} ({by_name[name].path}) can store only state, not tables"
                remedy = "Use a destination with `path: spark`; use this one in backend_options"
                errors.append(SpecError(what, where=where, remedy=remedy))
        connection = source.backend_options.connection
        if connection is not None and (
            not connection.startswith(SCHEME) or connection.removeprefix(SCHEME) not in by_name
        ):
            errors.append(
                SpecError(
                    "this is not the connection of a destination in this file",
                    where=f"{source.where}.backend_options.connection",
                    remedy='Write "@@plugins.<name of a destination>.connection"',
                )
            )
    return errors

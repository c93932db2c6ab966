"""Checks references between a spec's documents: names, former names, destinations."""

from __future__ import annotations

from collections.abc import Iterable

from loader.error_report import did_you_mean
from loader.errors import SpecError
from loader.spec.plugins import SCHEME, DestinationSpec, LakeOptions, SourceSpec


def instead(name: str, known: Iterable[str]) -> str:
    """Returns the remedy for an unknown name: a similar one, or all that there are."""
    known = list(known)
    return did_you_mean(name, known) or f"There are: {', '.join(known) or 'none'}"


def same_names(plugins: Iterable[SourceSpec | DestinationSpec]) -> list[SpecError]:
    """Returns an error for each name that is already taken."""
    seen: dict[str, str] = {}
    errors = []
    for plugin in plugins:
        if plugin.name in seen:
            errors.append(
                SpecError(
                    f"the name {plugin.name!r} is taken by {seen[plugin.name]}",
                    where=f"{plugin.where}.name",
                    remedy="Give one of them another name",
                )
            )
        seen.setdefault(plugin.name, plugin.where.removesuffix(", spec").partition(", ")[2])
    return errors


def former_names(sources: Iterable[SourceSpec]) -> list[SpecError]:
    """Returns an error for each former name that a source of the file still has."""
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


def dangling(
    sources: Iterable[SourceSpec], destinations: Iterable[DestinationSpec], path: str
) -> list[SpecError]:
    """Returns errors for references to destinations that do not exist or cannot hold the data."""
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
                remedy = f"{instead(name, by_name)}; or add a document of kind destination"
                what = f"there is no destination {name!r}"
                errors.append(SpecError(what, where=where, remedy=remedy))
            elif not isinstance(by_name[name].spec, LakeOptions):
                what = f"{name} ({by_name[name].path}) holds state only, no tables"
                remedy = "Name a destination with `path: spark`; refer to this in backend_options"
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

"""Finds and imports the classes that installed packages provide in entry-point groups."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from loader.errors import SpecError
from loader.spec.redaction import redact_foreign

Plugin = TypeVar("Plugin")


def list_plugins(group: str) -> dict[str, EntryPoint]:
    """Returns the entry points of a group by name.

    Raises:
        SpecError: two packages provide the same name. Which one is imported would depend on the
            order of the installed packages, and it may receive passwords.
    """
    plugins: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = plugins.setdefault(entry.name, entry)
        if (name_package(other), other.value) != (name_package(entry), entry.value):
            raise SpecError(
                f"two installed packages provide {entry.name!r}: {name_package(other)} and "
                f"{name_package(entry)}",
                where=f"entry points {group}",
                remedy="Uninstall one of them",
            )
    return plugins


def load_plugin(entry: EntryPoint, base: type[Plugin], where: str) -> type[Plugin]:
    """Imports the class of an entry point.

    Raises:
        SpecError: it cannot be imported, or is not a subclass of `base`.
    """
    remedy = f"Install {name_package(entry)} again, in a version for this loader, or uninstall it"
    try:
        loaded: Any = entry.load()
    except Exception as error:
        reason = redact_foreign(f"{type(error).__name__}: {error}")
        raise SpecError(
            f"the plug-in {entry.value} cannot be loaded: {reason}", where=where, remedy=remedy
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise SpecError(
            f"the plug-in {entry.value} is not a {base.__name__}", where=where, remedy=remedy
        )
    return loaded


def name_package(entry: EntryPoint) -> str:
    """Returns the name of the package that provides an entry point."""
    return entry.dist.name if entry.dist is not None else "the package that provides it"

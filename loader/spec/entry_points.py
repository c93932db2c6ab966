"""Finds and imports the classes that installed packages provide as entry points."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from loader.errors import SpecError
from loader.spec.redaction import redact_foreign

Plugin = TypeVar("Plugin")


def list_plugins(group: str) -> dict[str, EntryPoint]:
    """Returns the entry points of a group, keyed by name.

    Raises:
        SpecError: if two packages provide the same name. Otherwise the order of installation would
            decide which package receives passwords.
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
    """Imports the class that an entry point refers to.

    Raises:
        SpecError: if the class cannot be imported, is not a subclass of `base`, or lacks a member
            of `base`.
    """
    try:
        loaded: Any = entry.load()
    except Exception as error:
        raise explain_failure(entry, error, where) from error
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise _refuse(entry, f"is not a {base.__name__}", where)
    absent = [name for name in inspect.get_annotations(base) if not hasattr(loaded, name)]
    absent += sorted(getattr(loaded, "__abstractmethods__", ()))
    if absent:
        raise _refuse(entry, f"has no {', '.join(absent)}", where)
    return loaded


def explain_failure(entry: EntryPoint, error: Exception, where: str) -> SpecError:
    """Returns the error for a plug-in that raised an exception, without secrets."""
    reason = redact_foreign(f"{type(error).__name__}: {error}")
    return _refuse(entry, f"cannot be loaded: {reason}", where)


def _refuse(entry: EntryPoint, reason: str, where: str) -> SpecError:
    return SpecError(
        f"the plug-in {entry.value} {reason}",
        where=where,
        remedy=f"Reinstall {name_package(entry)} in a version that works with this loader, or "
        "uninstall it",
    )


def name_package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "the package that provides it"

"""Reads the catalogs of programs, whose streams may deviate from the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from loader.errors import TableError


def read_streams(
    catalog: Any, stream: TypeAdapter[Any], program: str, remedy: str, where: str
) -> list[Mapping[str, Any]]:
    """Returns the streams of a catalog as the program wrote them.

    Args:
        stream: describes a stream.
        program: the program that wrote the catalog, for messages.

    Raises:
        TableError: if a part of the catalog is of another kind.
    """
    streams = catalog.get("streams") if isinstance(catalog, dict) else None
    problem = None if isinstance(streams, list) else "it has no list of streams"
    for number, each in enumerate([] if problem else streams or [], 1):
        try:
            stream.validate_python(each)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            problem = ", ".join(filter(None, (f"stream {number}", place))) + f": {wrong['msg']}"
            break
    if problem is not None:
        raise TableError(
            f"the {program}'s catalog cannot be read: {problem}", where=where, remedy=remedy
        )
    return list(streams or [])

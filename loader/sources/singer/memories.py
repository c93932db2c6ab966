"""The state that a tap gets back: one for all streams, as it sent it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from loader.sources.programs.memory import Memory, oldest_shared


def given_back(
    memories: Mapping[Hashable, Memory | None], warn: Callable[[str], None]
) -> Any | None:
    """Returns what goes into the tap's state file; None if there is nothing to go on from.

    Taps keep a stream's bookmark under its name, so a stream can begin anew alone.

    Args:
        memories: by stream; None for one that begins anew.
        warn: gets a warning if a stream cannot begin anew alone.
    """
    known = oldest_shared([memory for memory in memories.values() if memory is not None])
    if known is None:
        return None
    value = known.value
    marks = value.get("bookmarks") if isinstance(value, dict) else None
    for name, memory in memories.items():
        if memory is not None:
            continue
        if isinstance(marks, dict):
            marks.pop(name, None)
        else:
            warn(
                f"{name} begins anew, but the tap has one state for all streams: it may leave out "
                "records of it. Read everything again: --full-refresh"
            )
    return value

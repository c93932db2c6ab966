"""The state that a tap gets back: one for all streams, as it sent it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from loader.sources.programs.connector_state import ConnectorState, find_oldest_shared, lacking

_KNOWN = {"bookmarks", "currently_syncing"}


def build_state_input(
    memories: Mapping[Hashable, ConnectorState | None],
    aliases: Mapping[str, str],
    warn: Callable[[str], None],
) -> Any | None:
    """Returns the tap's state file; None if there is no state to resume from.

    Most taps keep a stream's bookmark under its id, so a stream can begin from scratch alone. If
    this one does not, all do: with a state that covers it, the stream would miss records.

    Args:
        memories: by stream; None for one that begins from scratch.
        aliases: the streams of the catalog, by the tap's possible names for them.
        warn: gets a warning if a stream cannot begin from scratch alone.
    """
    known = find_oldest_shared([memory for memory in memories.values() if memory is not None])
    if known is None:
        return None
    anew = lacking(memories, known)
    if not anew:
        return known.value
    value = _without(known.value, anew, aliases)
    if value is None:
        names = ", ".join(sorted(map(str, anew)))
        warn(
            f"{names} starts over, and the tap has one state for all streams: everything is read "
            "again, and what has no primary key is appended again"
        )
    return value


def _without(value: Any, anew: set[Hashable], aliases: Mapping[str, str]) -> Any | None:
    """Returns a state without some streams' bookmarks; None if it is not clear which they are."""
    marks = value.get("bookmarks") if isinstance(value, dict) else None
    if (
        not isinstance(marks, dict)
        or not value.keys() <= _KNOWN
        or not marks.keys() <= aliases.keys()
    ):
        return None
    kept = {name: mark for name, mark in marks.items() if aliases[name] not in anew}
    return {"bookmarks": kept}  # a tap may leave out all streams before `currently_syncing`

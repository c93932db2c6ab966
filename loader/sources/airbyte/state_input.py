"""The states that a connector gets back, as it sent them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from loader.sources.airbyte.catalog import by_name, key_of, meant
from loader.sources.programs.connector_state import ConnectorState, find_oldest_shared, lacking


def build_state_input(
    memories: Mapping[Hashable, ConnectorState | None],
    streams: Collection[Hashable],
    warn: Callable[[str], None],
) -> Any | None:
    """Returns the connector's state file; None if there is no state to resume from.

    If a stream begins from scratch, and a state of all streams cannot be divided, all do: with a
    state that covers it, the stream would miss records.

    Args:
        memories: by stream; None for one that begins from scratch.
        streams: all that the catalog has.
        warn: gets a warning if a stream cannot begin from scratch alone.
    """
    known = [memory for memory in memories.values() if memory is not None]
    shared = find_oldest_shared(known)
    if shared is None:
        parts = [{"type": "STREAM", "stream": memory.value} for memory in known]
        return parts or None
    anew = lacking(memories, shared)
    value = _without(shared, anew, streams) if anew else shared.value
    if value is None:
        names = ", ".join(sorted(key[1] if isinstance(key, tuple) else str(key) for key in anew))
        warn(
            f"{names} starts over, and the connector has one state for all streams: everything is "
            "read again, and what has no primary key is appended again"
        )
    elif shared.kind == "GLOBAL":
        return [{"type": "GLOBAL", "global": value}]
    return value


def _without(
    shared: ConnectorState, anew: set[Hashable], streams: Collection[Hashable]
) -> Any | None:
    """Returns a state without some streams; None if it is not clear what is theirs."""
    value = shared.value
    if not isinstance(value, dict) or shared.protocol == "cloudquery":
        return None
    if shared.kind == "GLOBAL":
        parts = value.get("stream_states")
        if not isinstance(parts, list) or not parts:
            return None
        kept = []
        known, beginning = by_name(streams), by_name(anew)
        for part in parts:
            key = key_of(part.get("stream_descriptor") or {})
            of = meant(key, {}, known)
            if of is None and key[1] in beginning:
                return None
            if (of or key) not in anew:
                kept.append(part)
        return {**value, "stream_states": kept}
    names = {key[1] for key in streams if isinstance(key, tuple)}
    if not value.keys() <= names:
        return None
    without = {key[1] for key in anew if isinstance(key, tuple)}
    return {name: part for name, part in value.items() if name not in without}

"""The states that a connector gets back, as it sent them."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from loader.sources.airbyte.catalog import key_of
from loader.sources.programs.memory import Memory, oldest_shared


def given_back(
    memories: Mapping[Hashable, Memory | None], warn: Callable[[str], None]
) -> Any | None:
    """Returns what goes into the connector's state file; None if there is nothing to go on from.

    Args:
        memories: by stream; None for one that begins anew.
        warn: gets a warning if a stream cannot begin anew alone.
    """
    known = [memory for memory in memories.values() if memory is not None]
    shared = oldest_shared(known)
    if shared is None:
        streams = [{"type": "STREAM", "stream": memory.value} for memory in known]
        return streams or None
    anew = {key for key, memory in memories.items() if memory is None}
    if shared.kind == "GLOBAL":
        return [{"type": "GLOBAL", "global": _without(shared.value, anew)}]
    value = shared.value
    for key in anew:
        name = key[1] if isinstance(key, tuple) else key
        if isinstance(value, dict) and name in value:
            value = {other: part for other, part in value.items() if other != name}
        elif value:
            warn(
                f"{name} begins anew, but the connector has one state for all streams: it may "
                "leave out records of it. Read everything again: --full-refresh"
            )
    return value


def _without(value: Any, anew: set[Hashable]) -> Any:
    """Returns a global state without the streams that begin anew."""
    if not isinstance(value, dict) or not anew:
        return value
    kept = [
        part
        for part in value.get("stream_states") or []
        if key_of(part.get("stream_descriptor") or {}) not in anew
    ]
    return json.loads(json.dumps({**value, "stream_states": kept}))

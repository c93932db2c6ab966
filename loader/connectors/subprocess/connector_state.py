"""Stores the states of a program, opaque, in the marks of its tables.

A state of one stream is kept with its table. A state of all streams is kept with each table whose
records it covers; the tables may be at different ones, as each is committed by itself. The next run
passes the oldest to the program, so that no table misses records; repeated ones are recognised. A
run that begins behind another table's state sends newer states that cover less than that one, until
it has ended well: before that, none of them is stored.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.connectors.subprocess.json_values import decode
from loader.errors import StateError

_LARGE = 4096  # characters: a mark is kept in the metadata of every commit


@dataclass(frozen=True)
class ConnectorState:
    """A state as a program sent it.

    Attributes:
        protocol: `airbyte`, `singer`.
        kind: the protocol's own word for what the state covers.
        shared: whether it covers all streams.
        number: grows with every state of a source, over all runs, also those from the beginning.
        text: the state, JSON.
    """

    protocol: str
    kind: str
    shared: bool
    number: int
    text: str

    @property
    def value(self) -> Any:
        """The state."""
        return decode(self.text)

    def to_mark(self, after: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Returns it as the mark of a table.

        Args:
            after: the mark before; it stays if the state is the same, so that nothing is stored.
        """
        mark: dict[str, Any] = {
            "protocol": self.protocol,
            "kind": self.kind,
            "shared": self.shared,
            "number": self.number,
        }
        if len(self.text) <= _LARGE:
            mark["state"] = self.text
        else:
            mark["packed"] = base64.b64encode(zlib.compress(self.text.encode(), 6)).decode()
        same = after is not None and {**after, "number": 0} == {**mark, "number": 0}
        return after if after is not None and same else mark

    @classmethod
    def from_mark(
        cls, mark: Mapping[str, Any] | None, protocol: str, where: str
    ) -> ConnectorState | None:
        """Reads a table's mark; None if there is none.

        Raises:
            StateError: if it is not one of this protocol.
        """
        if mark is None:
            return None
        try:
            if mark["protocol"] != protocol:
                raise ValueError(f"it is of path: {mark['protocol']}")
            text = mark.get("state")
            if text is None:
                text = zlib.decompress(base64.b64decode(mark["packed"])).decode()
            json.loads(text)
            return cls(protocol, mark["kind"], bool(mark["shared"]), int(mark["number"]), text)
        except (KeyError, ValueError, TypeError, RecursionError, zlib.error) as problem:
            raise StateError(
                f"the connector's stored state cannot be given back: {problem}",
                where=where,
                remedy="Read everything again: `loader run --full-refresh`",
            ) from None


def find_oldest_shared(memories: Sequence[ConnectorState]) -> ConnectorState | None:
    """Returns the oldest state that covers all streams; None if there is none."""
    shared = [memory for memory in memories if memory.shared]
    return min(shared, key=lambda memory: memory.number, default=None)


def find_streams_behind(
    memories: Mapping[Hashable, ConnectorState | None], shared: ConnectorState
) -> set[Hashable]:
    """Returns the streams that a state of all streams covers further than their tables got.

    They have no state, or an older one of their own, as the connector had a state for each stream.
    """
    return {
        key
        for key, memory in memories.items()
        if memory is None or (not memory.shared and memory.number < shared.number)
    }


def can_repeat_records(
    memory: ConnectorState | None, memories: Sequence[ConnectorState | None]
) -> bool:
    """Returns whether a table gets records again that it has, as others of the run are behind.

    Args:
        memory: the table's.
        memories: of the run's tables; None for one that begins from scratch.
    """
    if memory is None:
        return False
    shared = find_oldest_shared([one for one in memories if one is not None])
    return shared is not None and memory.number > shared.number and memory.text != shared.text


def can_store_in_pieces(
    memories: Sequence[ConnectorState | None], others: Sequence[ConnectorState]
) -> bool:
    """Returns whether states of all streams may be stored before the program has ended well.

    Only if all tables begin at the newest of them: otherwise a newer state covers less than an
    older one, and :func:`find_oldest_shared` would return a state beyond a table's records.

    Args:
        memories: of the run's tables; None for one that begins from scratch.
        others: of the source's other tables.
    """
    if any(memory.shared for memory in others):
        return False
    shared = [memory for memory in memories if memory is not None and memory.shared]
    newest = max(shared, key=lambda memory: memory.number, default=None)
    return newest is None or all(m is not None and m.text == newest.text for m in memories)

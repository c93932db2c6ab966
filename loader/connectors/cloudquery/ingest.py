"""Ingests CloudQuery syncs: CloudQuery's command line writes to the bridge, the loader appends.

The bridge spools a sync's rows to a folder (:mod:`loader.connectors.cloudquery.bridge`). Once the
sync's stream ends, its tables are appended by the same protocol as all others. Only then is the
sync acknowledged, and the state that its source has written takes effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loader.connectors.cloudquery.bridge_server import BridgeServer
from loader.connectors.subprocess.message_reader import UNASKED
from loader.sync.ingest import Ingest, PushedTable, list_reserved

_CATALOG = "catalog.json"
_MESSAGES = "messages.jsonl"
_DROPPED = (
    "a sync broke off, or began before `loader serve` did, and a plugin's state that may cover its "
    "rows was dropped: the next sync of that source goes on from an older state"
)
_ENDED = (
    "a sync ended before its turn, so none of its rows were appended: its next run brings them "
    "again"
)


class CloudQueryIngest:
    """A destination that CloudQuery syncs to.

    Args:
        bridge: the bridge, listening already.
        ingest: the lake that its syncs are appended to.
    """

    def __init__(self, bridge: BridgeServer, ingest: Ingest) -> None:
        self.bridge = bridge
        self.ingest = ingest

    def run(self) -> None:
        """Appends incoming syncs until the bridge ends.

        Raises:
            TableError: if the bridge or Spark's Java process has ended by itself: every further
                sync would fail.
        """
        ingest, watch = self.ingest, self.ingest.watch
        ingest.prepare()
        self.bridge.answer({"states": ingest.read_states()})
        for message in self.bridge.messages():
            if "state" in message:
                ingest.store_states(message["state"], message["rows"])
            elif "dropped" in message:
                watch.warn(message["dropped"], _DROPPED)
            elif "ended" in message:
                watch.warn("a sync", message["ended"])
            elif "session" in message:
                error = self._append_session(message)
                self.bridge.answer({"session": message["session"], "error": error})
                if ingest.java_error is not None and not watch.stopped.is_set():
                    raise ingest.java_error
            elif "settled" in message:  # all the state that came with it is stored
                self.bridge.answer(message)

    def _append_session(self, session: Mapping[str, Any]) -> str | None:
        """Appends a session's tables; returns why that failed, None if it did not."""
        folder = Path(session["folder"])
        messages = folder / _MESSAGES
        if not session["rows"] and not session["stale"]:
            return None  # it has brought no rows, and deletes none
        if not messages.exists():  # while another sync was appended
            self.ingest.watch.warn(session["source"] or "cloudquery", _ENDED)
            return _ENDED
        try:
            streams = json.loads((folder / _CATALOG).read_text("utf-8"))["streams"]
            names = [stream["name"] for stream in streams]
            # Deletions do not name their source.
            named = session["source"] or self.ingest.find_owner(names) or "cloudquery"
            return self.ingest.append(
                re.sub(r"[^A-Za-z0-9_-]", "_", named),
                "airbyte",
                {
                    "command": ["/bin/sh", "-c", 'cat "$0"', str(messages)],
                    "catalog": str(folder / _CATALOG),
                    "table_options": {s["name"]: _options(s, session["stale"]) for s in streams},
                },
                [_pushed_table(stream, session["stale"]) for stream in streams],
                messages.exists,  # without them, the sync that brought them has ended
                expected=UNASKED,  # every attempt replays all tables' rows
            )
        except Exception as error:
            return self.ingest.explain(error)
        finally:
            messages.unlink(missing_ok=True)


def _pushed_table(stream: Mapping[str, Any], stale: Sequence[str]) -> PushedTable:
    """Returns a table of a sync; with `write_mode: append`, CloudQuery leaves keys out."""
    key = tuple(name for [name] in stream["source_defined_primary_key"])
    return PushedTable(stream["name"], key, stream["name"] in stale)


def _options(stream: Mapping[str, Any], stale: Sequence[str]) -> dict[str, Any]:
    """Returns the options of a table that a sync writes.

    Where the sync deletes what is stale, its rows are all there are: a new generation.
    """
    keyless = not stream["source_defined_primary_key"]
    return {
        "skip_columns": list_reserved(stream["json_schema"]["properties"]),
        "sync_mode": "full_refresh" if stream["name"] in stale else "incremental",
        "redelivered_rows": "append" if keyless else "drop",
    }

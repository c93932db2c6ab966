"""Appends to the lake the rows that `cloudquery sync` sends, and stores the plugins' states.

The bridge spools the rows of a sync to a folder (:mod:`loader.connectors.cloudquery.bridge`). When
the sync's stream ends, the loader appends the rows in the same way as those of its own sources.
Only then does the bridge acknowledge the sync and apply the plugin's state.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loader.connectors.cloudquery.bridge_server import BridgeServer
from loader.connectors.subprocess.message_reader import UNREQUESTED
from loader.sync.ingest import Ingest, PushedTable, list_reserved

_CATALOG = "catalog.json"
_MESSAGES = "messages.jsonl"
_DROPPED_COLUMNS_REMEDY = (
    "a sync was interrupted, or started before `loader serve`, and a plugin's state that may cover "
    "its rows was dropped: the next sync of that source resumes from an older state"
)
_INTERRUPTED_SYNC = (
    "a sync was aborted before its rows could be appended: its next run resends them"
)


class CloudQueryIngest:
    """Appends the syncs that a bridge receives. The bridge must already be listening."""

    def __init__(self, bridge: BridgeServer, ingest: Ingest) -> None:
        self.bridge = bridge
        self.ingest = ingest

    def run(self) -> None:
        """Appends incoming syncs until the bridge exits.

        Raises:
            TableError: if the bridge or Spark's Java process exits unexpectedly.
        """
        ingest, watch = self.ingest, self.ingest.watch
        ingest.prepare()
        self.bridge.answer({"states": ingest.read_states()})
        for message in self.bridge.messages():
            if "state" in message:
                ingest.store_states(message["state"], message["rows"])
            elif "dropped" in message:
                watch.warn(message["dropped"], _DROPPED_COLUMNS_REMEDY)
            elif "ended" in message:
                watch.warn("a sync", message["ended"])
            elif "session" in message:
                error = self._append_session(message)
                self.bridge.answer({"session": message["session"], "error": error})
                if ingest.java_error is not None and not watch.stopped.is_set():
                    raise ingest.java_error
            elif "settled" in message:  # the loader has stored the session's state
                self.bridge.answer(message)

    def _append_session(self, session: Mapping[str, Any]) -> str | None:
        """Appends the tables of a session. Returns an error message; None means success."""
        folder = Path(session["folder"])
        messages = folder / _MESSAGES
        if not session["rows"] and not session["stale"]:
            return None
        if not messages.exists():  # the sync ended while another sync was appended
            self.ingest.watch.warn(session["source"] or "cloudquery", _INTERRUPTED_SYNC)
            return _INTERRUPTED_SYNC
        try:
            streams = json.loads((folder / _CATALOG).read_text("utf-8"))["streams"]
            names = [stream["name"] for stream in streams]
            # Deletions do not contain the name of their source.
            source = session["source"] or self.ingest.find_owner(names) or "cloudquery"
            return self.ingest.append(
                _name_source(source),
                "airbyte",
                {
                    "command": ["/bin/sh", "-c", 'cat "$0"', str(messages)],
                    "catalog": str(folder / _CATALOG),
                    "table_options": {
                        s["name"]: _build_options(s, session["stale"]) for s in streams
                    },
                },
                [_build_pushed_table(stream, session["stale"]) for stream in streams],
                messages.exists,  # the bridge deletes the file if the sync ends
                expected=UNREQUESTED,  # a retry of one table rereads all tables' rows
            )
        except Exception as error:
            return self.ingest.explain(error)
        finally:
            messages.unlink(missing_ok=True)


def _name_source(name: str) -> str:
    """Replaces invalid characters in a name. If there are any, appends a hash of the original name.

    Without the hash, `aws.prod` and `aws_prod` would become the same source.
    """
    valid = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return valid if valid == name else f"{valid}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _build_pushed_table(stream: Mapping[str, Any], stale: Sequence[str]) -> PushedTable:
    """Describes a table in a sync. With `write_mode: append`, the table has no key."""
    key = tuple(name for [name] in stream["source_defined_primary_key"])
    return PushedTable(stream["name"], key, stream["name"] in stale)


def _build_options(stream: Mapping[str, Any], stale: Sequence[str]) -> dict[str, Any]:
    """Returns the options of a table in a sync.

    If the sync deletes stale rows, it sends all rows of the table, like a full refresh.
    """
    keyless = not stream["source_defined_primary_key"]
    reserved = list_reserved(stream["json_schema"]["properties"])
    return {
        "columns": {"exclude": reserved} if reserved else None,
        "sync_mode": "full_refresh" if stream["name"] in stale else "incremental",
        "redelivered_rows": "append" if keyless else "drop",
    }

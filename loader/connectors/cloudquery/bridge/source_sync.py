"""Sends the loader the records, deletions and states that a CloudQuery source plugin returns."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from cloudquery.plugin_v3 import plugin_pb2

from .arrow_input import MalformedError, read_record, read_table_name
from .records import ANCESTORS, build_deletion, convert_records, list_dependents
from .state_backend import StateBackend, serve_states


def send_message(kind: str, body: Mapping[str, Any], name: str = "") -> None:
    sys.stdout.write(json.dumps({"type": kind, name or kind.lower(): body}) + "\n")


def report_failure(text: str, table: str | None = None) -> None:
    """Reports that a table failed or, if no table is given, that the whole sync failed."""
    error: dict[str, Any] = {"message": text}
    if table:
        error["stream_descriptor"] = {"name": table}
    send_message("TRACE", {"type": "ERROR", "emitted_at": time.time() * 1000, "error": error})


def report_status(table: str, status: str) -> None:
    reported = {"stream_descriptor": {"name": table}, "status": status}
    send_message("TRACE", {"type": "STREAM_STATUS", "emitted_at": 0, "stream_status": reported})


def sync_tables(
    stub: Any, config: Mapping[str, Any], catalog: Mapping[str, Any], known: Any
) -> int:
    """Sends the tables' records, and then the state. Returns the exit code."""
    wanted = {each["stream"]["name"]: each["sync_mode"] for each in catalog["streams"]}
    states = StateBackend(known)
    server, address = serve_states(states)
    backend = plugin_pb2.Sync.BackendOptions(table_name=states.name, connection=address)
    incremental = "incremental" in wanted.values()
    request = plugin_pb2.Sync.Request(
        tables=list(wanted),
        skip_tables=[],
        skip_dependent_tables=bool(config.get("skip_dependent_tables")),
        deterministic_cq_id=bool(config.get("deterministic_cq_id", True)),
        backend=backend if incremental else None,
        withErrorMessages=True,
        supports_checkpoints=incremental,
    )
    errors: dict[str, str] = {}
    try:
        for response in stub.Sync(request):
            kind = response.WhichOneof("message")
            if kind == "insert":
                try:
                    batch = read_record(response.insert.record)
                    name = read_table_name(batch.schema)
                    for record in convert_records(batch):
                        send_message("RECORD", {"stream": name, "data": record, "emitted_at": 0})
                except MalformedError as error:
                    errors.setdefault(error.table, str(error))
            elif kind == "checkpoint":
                covered = states.apply_checkpoint(read_record(response.checkpoint.record))
                if not errors:
                    send_message("STATE", {"type": "LEGACY", "data": covered})
            elif kind == "delete_record":
                send_message("DELETE", build_deletion(response.delete_record))
                for name in list_dependents(response.delete_record):
                    warning = f"rows of {name} that depend on deleted rows are not deleted"
                    send_message("LOG", {"level": "WARN", "message": warning})
            elif kind == "error":
                errors.setdefault(response.error.table_name, response.error.error)
    finally:
        server.stop(None)
    for table, text in errors.items():
        report_failure(text, table)
    if errors:
        # The plugin may have advanced the state of a failed table, so no state is sent.
        for table in list_complete(catalog, set(errors)):
            report_status(table, "COMPLETE")
        report_failure("tables of the plugin have failed, so its state is not stored")
        return 1
    if incremental:
        send_message("STATE", {"type": "LEGACY", "data": states.value()})
    for table in wanted:
        report_status(table, "COMPLETE")
    return 0


def list_complete(catalog: Mapping[str, Any], failed: set[str]) -> list[str]:
    """Returns the tables that were read completely even though others failed."""
    if not failed or "" in failed:  # an empty name means that the sync itself failed
        return []
    return [
        each["stream"]["name"]
        for each in catalog["streams"]
        if each["sync_mode"] != "incremental"
        and not failed & {each["stream"]["name"], *each["stream"].get(ANCESTORS, ())}
    ]

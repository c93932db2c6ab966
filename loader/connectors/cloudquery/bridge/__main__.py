"""Answers `check`, `discover` and `read` as an Airbyte connector would, by asking a plugin.

`serve` is the other way round: a destination that plugins are synced to.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from cloudquery.plugin_v3 import plugin_pb2

from .arrow_input import MalformedError, OverBudgetError, read_record, read_schema, table_name
from .listener import serve
from .plugin import PluginError, open_plugin
from .records import ANCESTORS, deletion, dependents, records, streams
from .state_backend import States, serve_states


def say(kind: str, body: Mapping[str, Any], name: str = "") -> None:
    """Sends a message to the loader."""
    sys.stdout.write(json.dumps({"type": kind, name or kind.lower(): body}) + "\n")


def report_failure(text: str, table: str | None = None) -> None:
    """Reports that a table, or the sync, has failed."""
    error: dict[str, Any] = {"message": text}
    if table:
        error["stream_descriptor"] = {"name": table}
    say("TRACE", {"type": "ERROR", "emitted_at": time.time() * 1000, "error": error})


def status(table: str, what: str) -> None:
    """Reports a table's progress."""
    reported = {"stream_descriptor": {"name": table}, "status": what}
    say("TRACE", {"type": "STREAM_STATUS", "emitted_at": 0, "stream_status": reported})


def tables(stub: Any, names: Sequence[str]) -> list[Any]:
    """Returns the schemas of the plugin's tables."""
    answer = stub.GetTables(plugin_pb2.GetTables.Request(tables=names, skip_tables=[]))
    return [read_schema(each) for each in answer.tables]


def read(stub: Any, config: Mapping[str, Any], catalog: Mapping[str, Any], known: Any) -> int:
    """Syncs; sends the records, and the state once all of them are sent."""
    wanted = {each["stream"]["name"]: each["sync_mode"] for each in catalog["streams"]}
    states = States(known)
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
    wrong: dict[str, str] = {}
    try:
        for response in stub.Sync(request):
            kind = response.WhichOneof("message")
            if kind == "insert":
                try:
                    batch = read_record(response.insert.record)
                    name = table_name(batch.schema)
                    for record in records(batch):
                        say("RECORD", {"stream": name, "data": record, "emitted_at": 0})
                except MalformedError as error:
                    wrong.setdefault(error.table, str(error))
            elif kind == "checkpoint":
                covered = states.checkpoint(read_record(response.checkpoint.record))
                if not wrong:
                    say("STATE", {"type": "LEGACY", "data": covered})
            elif kind == "delete_record":
                say("DELETE", deletion(response.delete_record))
                for name in dependents(response.delete_record):
                    warning = f"rows of {name} that belong to deleted rows are not deleted"
                    say("LOG", {"level": "WARN", "message": warning})
            elif kind == "error":
                wrong.setdefault(response.error.table_name, response.error.error)
    finally:
        server.stop(None)
    for table, text in wrong.items():
        report_failure(text, table)
    if wrong:
        # The plugin may have moved the state of a table that failed, so none of it is trusted.
        for table in complete(catalog, set(wrong)):
            status(table, "COMPLETE")
        report_failure("tables of the plugin failed, so its state is not kept")
        return 1
    if incremental:
        say("STATE", {"type": "LEGACY", "data": states.value()})
    for table in wanted:
        status(table, "COMPLETE")
    return 0


def complete(catalog: Mapping[str, Any], wrong: set[str]) -> list[str]:
    """Returns the tables that are read whole, and came whole although others failed."""
    if not wrong or "" in wrong:  # the sync itself
        return []
    return [
        each["stream"]["name"]
        for each in catalog["streams"]
        if each["sync_mode"] != "incremental"
        and not wrong & {each["stream"]["name"], *each["stream"].get(ANCESTORS, ())}
    ]


def answer(verb: str, given: Mapping[str, str]) -> int:
    """Answers one verb; returns the exit code."""
    config, catalog, known = (
        json.loads(Path(given[name]).read_text()) if name in given else {}
        for name in ("--config", "--catalog", "--state")
    )
    if verb == "serve":
        return serve(config)
    with open_plugin(config) as stub:
        spec = json.dumps(config["spec"]).encode()
        stub.Init(plugin_pb2.Init.Request(spec=spec, no_connection=False))
        if verb == "discover":
            say("CATALOG", {"streams": streams(tables(stub, config["tables"]))})
        elif verb == "check":
            say("CONNECTION_STATUS", {"status": "SUCCEEDED"}, "connectionStatus")
        else:
            return read(stub, config, catalog, known)
    return 0


def main(verb: str, *options: str) -> int:
    """Runs one command, and reports an error in one message."""
    try:
        return answer(verb, dict(zip(options[::2], options[1::2], strict=True)))
    except (PluginError, MalformedError, OverBudgetError) as error:
        report_failure(str(error))
    except grpc.RpcError as error:
        report_failure(f"{error.details()} ({error.code().name})")
    return 1


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)

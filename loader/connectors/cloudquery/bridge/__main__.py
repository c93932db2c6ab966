"""Implements `check`, `discover` and `read` of the Airbyte protocol for a CloudQuery source plugin.

The `serve` command runs a destination for plugins instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from cloudquery.plugin_v3 import plugin_pb2

from .arrow_input import MalformedError, OverBudgetError, read_schema
from .listener import serve
from .plugin import PluginError, open_plugin
from .records import build_streams
from .source_sync import report_failure, send_message, sync_tables


def read_tables(stub: Any, names: Sequence[str]) -> list[Any]:
    answer = stub.GetTables(plugin_pb2.GetTables.Request(tables=names, skip_tables=[]))
    return [read_schema(each) for each in answer.tables]


def run_verb(verb: str, options: Mapping[str, str]) -> int:
    config, catalog, known = (
        json.loads(Path(options[name]).read_text()) if name in options else {}
        for name in ("--config", "--catalog", "--state")
    )
    if verb == "serve":
        return serve(config)
    with open_plugin(config) as stub:
        spec = json.dumps(config["spec"]).encode()
        stub.Init(plugin_pb2.Init.Request(spec=spec, no_connection=False))
        if verb == "discover":
            send_message("CATALOG", {"streams": build_streams(read_tables(stub, config["tables"]))})
        elif verb == "check":
            send_message("CONNECTION_STATUS", {"status": "SUCCEEDED"}, "connectionStatus")
        else:
            return sync_tables(stub, config, catalog, known)
    return 0


def main(verb: str, *options: str) -> int:
    """Runs one command, and reports any error as a message. Returns the exit code."""
    try:
        return run_verb(verb, dict(zip(options[::2], options[1::2], strict=True)))
    except (PluginError, MalformedError, OverBudgetError) as error:
        report_failure(str(error))
    except grpc.RpcError as error:
        report_failure(f"{error.details()} ({error.code().name})")
    return 1


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)

"""A small Singer tap that behaves as real ones have been observed to behave.

It sends a state of all streams after every few records, the first one before any schema. Run as
a program:

    python tap.py --config … --discover
    python tap.py --config … --catalog … [--state …]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from connector import misbehave


def say(kind: str, **body: Any) -> None:
    """Sends a message."""
    print(json.dumps({"type": kind, **body}), flush=True)


def method(stream: dict[str, Any]) -> str | None:
    """Returns how a stream is to be read; None if it is not selected."""
    about = next(p["metadata"] for p in stream["metadata"] if not p["breadcrumb"])
    return about["replication-method"] if about["selected"] else None


def read(config: dict[str, Any], catalog: dict[str, Any], state: dict[str, Any]) -> None:
    """Sends the records of the selected streams."""
    data = json.loads(Path(config["data"]).read_text())
    marks = {**state.get("bookmarks", {})}
    every, acts = config.get("every", 3), config.get("acts", {})
    if state:
        say("STATE", value=state)
    for stream in catalog["streams"]:
        how, name = method(stream), stream["stream"]
        if how is None:
            continue
        key, at = stream["key_properties"], stream.get("replication_key")
        schema = {**stream["schema"], **config.get("schemas", {}).get(name, {})}
        say("SCHEMA", stream=name, schema=schema, key_properties=key)
        rows = data[name]
        if how == "INCREMENTAL":
            low = marks.get(name, {}).get("replication_key_value", "")
            rows = sorted((r for r in rows if (r.get(at) or "") >= low), key=lambda r: r[at])
        else:
            say("ACTIVATE_VERSION", stream=name, version=1)
        for number, row in enumerate(rows):
            for step in acts.get(f"{name}.{number}", []):
                misbehave(step)
            say("RECORD", stream=name, record=row, time_extracted="2025-01-01T00:00:00Z")
            if how == "INCREMENTAL":
                marks[name] = {"replication_key": at, "replication_key_value": row[at]}
            if (number + 1) % every == 0:
                say("STATE", value={"bookmarks": marks})
        if how != "INCREMENTAL":
            say("ACTIVATE_VERSION", stream=name, version=1)
    say("STATE", value={"bookmarks": marks})


def main(*options: str) -> None:
    """Answers one call."""
    given = dict(zip(options[::2], options[1::2], strict=False))
    config = json.loads(Path(given["--config"]).read_text())
    if "--discover" in options:
        print(Path(config["catalog"]).read_text())
        return
    catalog = json.loads(Path(given["--catalog"]).read_text())
    state = json.loads(Path(given["--state"]).read_text()) if "--state" in given else {}
    call = {
        "verb": "read",
        "catalog": catalog,
        "state": state,
        "environment": dict(os.environ),
        "pid": os.getpid(),
    }
    with Path(config["data"]).with_suffix(".calls").open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    read(config, catalog, state)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A small Airbyte connector that behaves as real ones have been observed to behave.

It reads records from a file, starting at an inclusive cursor, and sends a state after every few of
them. Its configuration can make it misbehave. Run as a program:

    python connector.py spec | check | discover | read --config … [--catalog …] [--state …]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def say(kind: str, body: dict[str, Any]) -> None:
    """Sends a message."""
    print(json.dumps({"type": kind, kind.lower(): body}), flush=True)


def trace(kind: str, body: dict[str, Any]) -> None:
    """Sends a trace."""
    say("TRACE", {"type": kind, "emitted_at": time.time() * 1000, kind.lower(): body})


def state_of(form: str, states: dict[str, Any], name: str, count: int) -> dict[str, Any]:
    """Returns a state message's body."""
    stats = {"sourceStats": {"recordCount": float(count)}}
    if form == "STREAM":
        stream = {"stream_descriptor": {"name": name}, "stream_state": states[name]}
        return {"type": form, "stream": stream, **stats}
    if form == "GLOBAL":
        parts = [{"stream_descriptor": {"name": n}, "stream_state": s} for n, s in states.items()]
        return {"type": form, "global": {"shared_state": {"lsn": 7}, "stream_states": parts}}
    return {"data": states}


def known(path: str | None) -> dict[str, Any]:
    """Returns the states of the streams that the loader has passed in."""
    given = json.loads(Path(path).read_text()) if path else []
    if isinstance(given, dict):
        return given
    found = {}
    for each in given:
        parts = [each["stream"]] if each["type"] == "STREAM" else each["global"]["stream_states"]
        found.update({p["stream_descriptor"]["name"]: p["stream_state"] for p in parts})
    return found


def misbehave(step: dict[str, Any]) -> None:
    """Misbehaves in one of the ways in which a connector may fail."""
    for name in step.get("deaf", ()):
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    if "raw" in step:
        print(step["raw"], flush=True)
    if "raw_file" in step:
        print(Path(step["raw_file"]).read_text(), flush=True)
    if "say" in step:
        print(json.dumps(step["say"]), flush=True)
    if "giant" in step:
        print("x" * step["giant"], flush=True)
    if "stderr" in step:
        print(step["stderr"], file=sys.stderr, flush=True)
    if "sleep" in step:
        time.sleep(step["sleep"])
    if "signal" in step:
        os.kill(os.getpid(), signal.Signals[step["signal"]])
    if "exit" in step:
        sys.exit(step["exit"])


def read(config: dict[str, Any], catalog: dict[str, Any], state: str | None) -> None:
    """Sends the records of the configured streams."""
    data = json.loads(Path(config["data"]).read_text())
    states, form, every = known(state), config.get("state", "STREAM"), config.get("every", 3)
    acts = config.get("acts", {})
    for configured in catalog["streams"]:
        stream = configured["stream"]
        name, at = stream["name"], stream.get("default_cursor_field", [None])[0]
        trace("STREAM_STATUS", {"stream_descriptor": {"name": name}, "status": "STARTED"})
        rows = data[name]
        incremental = configured["sync_mode"] == "incremental"
        if incremental:
            low = states.get(name, {}).get("cursor", "")
            rows = [r for r in rows if r.get(at) is None or r[at] >= low]
            rows = sorted(rows, key=lambda r: r.get(at) or "")
        sent = 0
        for number, row in enumerate(rows):
            for step in acts.get(f"{name}.{number}", []):
                misbehave(step)
            body = {"stream": name, "data": row, "emitted_at": int(time.time() * 1000)}
            if stream.get("namespace"):
                body["namespace"] = stream["namespace"]
            say("RECORD", body)
            sent += 1
            if incremental and sent == every:
                states[name] = {"cursor": row.get(at) or states.get(name, {}).get("cursor", "")}
                states[name] |= {field: row[field] for field in config.get("state_fields", ())}
                say("STATE", state_of(form, states, name, sent))
                sent = 0
        for step in acts.get(f"{name}.end", []):
            misbehave(step)
        if incremental:
            last = max((r[at] for r in rows if r.get(at)), default=None)
            if last:
                states[name] = {"cursor": last}
                states[name] |= {field: rows[-1][field] for field in config.get("state_fields", ())}
            states.setdefault(name, {"cursor": ""})
            say("STATE", state_of(form, states, name, sent))
        else:
            sentinel = {"__ab_no_cursor_state_message": True}
            say("STATE", state_of("STREAM", {name: sentinel}, name, sent))
        trace("STREAM_STATUS", {"stream_descriptor": {"name": name}, "status": "COMPLETE"})


def main(verb: str, *options: str) -> None:
    """Answers one verb of the protocol."""
    if verb == "spec":
        about = {"properties": {"auth": {"properties": {"pat": {"airbyte_secret": True}}}}}
        print(json.dumps({"type": "SPEC", "spec": {"connectionSpecification": about}}), flush=True)
        return
    given = dict(zip(options[::2], options[1::2], strict=True))
    config = json.loads(Path(given["--config"]).read_text())
    call: dict[str, Any] = {"verb": verb, "environment": dict(os.environ), "pid": os.getpid()}
    call["token"] = config.get("token")
    for name in ("catalog", "state"):
        path = given.get(f"--{name}")
        call[name] = json.loads(Path(path).read_text()) if path else None
    with Path(config["data"]).with_suffix(".calls").open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    for step in config.get("acts", {}).get(verb, []):
        misbehave(step)
    if verb == "check":
        status = {"type": "CONNECTION_STATUS", "connectionStatus": {"status": "SUCCEEDED"}}
        print(json.dumps(status), flush=True)
    elif verb == "discover":
        say("CATALOG", json.loads(Path(config["catalog"]).read_text()))
    elif verb == "read":
        read(config, call["catalog"], given.get("--state"))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Measures connectors in rows per second, alone and with `loader run`.

    make connectors
    python benchmarks/connectors.py --rows 100000

`airbyte-source-faker`, `tap-jsonl` and a plugin built with CloudQuery's SDK each read one table.
Whole processes are timed. For the loader, the time in which Spark compares and appends the records
is also measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from loader.connectors.cloudquery.source import build_bridge_command

ROOT = Path(__file__).resolve().parents[1]
FOLDER = os.environ.get("CONNECTORS", str(ROOT / ".venv-connectors"))
PLUGIN = str(ROOT / "tests" / "services" / "cq_plugin.py")


def _timed(command: list[str], folder: Path) -> tuple[float, str]:
    began = time.monotonic()
    ended = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "STRANDLINE_WAREHOUSE": str(folder / "warehouse")},
        check=False,
    )
    text = ended.stdout.decode("utf-8", "replace")
    if ended.returncode:
        raise click.ClickException(text[-2000:])
    return time.monotonic() - began, text


def _faker(folder: Path, rows: int) -> tuple[dict[str, Any], list[str]]:
    program = f"{FOLDER}/bin/source-faker"
    config = {"count": rows, "seed": 1, "parallelism": 1, "records_per_slice": 1000}
    (folder / "config.json").write_text(json.dumps(config))
    _, reported = _timed([program, "discover", "--config", "config.json"], folder)
    [catalog] = [
        json.loads(line)["catalog"] for line in reported.splitlines() if '"CATALOG"' in line
    ]
    [stream] = [one for one in catalog["streams"] if one["name"] == "users"]
    asked = {"stream": stream, "sync_mode": "incremental", "destination_sync_mode": "append"}
    (folder / "catalog.json").write_text(json.dumps({"streams": [asked]}))
    read = [program, "read", "--config", "config.json", "--catalog", "catalog.json"]
    spec = {"command": program, "config": config}
    return {"path": "airbyte", "tables": ["users"], "spec": spec}, read


def _jsonl(folder: Path, rows: int) -> tuple[dict[str, Any], list[str]]:
    program, file = f"{FOLDER}/bin/tap-jsonl", folder / "rows.jsonl"
    with file.open("w") as lines:
        for n in range(rows):
            row = {"id": n, "note": f"note {n}", "amount": n / 7, "at": "2025-01-01T00:00:00Z"}
            lines.write(json.dumps(row) + "\n")
    config = {"path": str(file), "stream_name": "rows", "primary_keys": ["id"]}
    (folder / "config.json").write_text(json.dumps(config))
    read = [program, "--config", "config.json"]
    spec = {"command": program, "config": config}
    return {"path": "singer", "tables": ["rows"], "spec": spec}, read


def _plugin(folder: Path, rows: int) -> tuple[dict[str, Any], list[str]]:
    python, data = f"{FOLDER}-cloudquery/bin/python", folder / "data.json"
    data.write_text(json.dumps({"orders": [{"id": n, "note": f"n{n}"} for n in range(rows)]}))
    config = {"command": [python, PLUGIN, str(data)], "spec": {}, "tables": ["*"]}
    (folder / "config.json").write_text(json.dumps(config))
    stream = {"name": "orders", "source_defined_cursor": True}
    asked = {"stream": stream, "sync_mode": "incremental"}
    (folder / "catalog.json").write_text(json.dumps({"streams": [asked]}))
    files = {name: Path(f"{name}.json") for name in ("config", "catalog")}
    spec = {"command": config["command"], "python": python}
    source = {"path": "cloudquery", "tables": ["orders"], "spec": spec}
    return source, build_bridge_command(python, "the benchmark", "read", files)


@click.command()
@click.option("--rows", default=50_000, show_default=True)
def main(rows: int) -> None:
    """Measures each connector with its output discarded, and with the loader."""
    drawn = Table("connector", "to nothing, s", "rows/s", "loader run, s", "appending, s", "rows/s")
    for make in (_faker, _jsonl, _plugin):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            source, read = make(folder, rows)
            alone, _ = _timed(read, folder)
            lake = {"schema": "raw", "profiles_dir": str(ROOT / "profiles")}
            documents = [
                {"kind": "source", "spec": {"name": "api", "destinations": ["lake"], **source}},
                {"kind": "destination", "spec": {"name": "lake", "path": "spark", "spec": lake}},
            ]
            (folder / "loader.yml").write_text(yaml.safe_dump_all(documents))
            words = [sys.executable, "-m", "loader", "--log-format", "json", "run"]
            whole, reported = _timed(words, folder)
            events = [json.loads(line) for line in reported.splitlines() if line.startswith("{")]
            [table] = [event for event in events if event["event"] == "table"]
            assert table["appended"] == rows, table
            own = float(table["seconds"])
            drawn.add_row(
                str(source["path"]),
                f"{alone:.1f}",
                f"{rows / alone:,.0f}",
                f"{whole:.1f}",
                f"{own:.1f}",
                f"{rows / own:,.0f}",
            )
    Console().print(drawn)


if __name__ == "__main__":
    main()

"""Describes the machine and the versions that a measurement ran on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from loader import __version__
from loader.spark.java import choose_java
from loader.spark.spark_version import find_spark

ROOT = Path(__file__).resolve().parents[1]


def today() -> str:
    """Returns the date in words."""
    return f"{date.today():%-d %B %Y}"


def machine() -> str:
    """Describes the cores, memory, processor and system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    reported = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", reported.read_text()) if reported.exists() else None
    processor = model.group(1).strip() if model else platform.machine()
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return f"{os.cpu_count()} cores ({processor}), {memory:.0f} GB, {system}"


def versions(server: str, peers: Path | None) -> str:
    """Returns the versions of the loader, of what it runs on, and of the peers."""
    line = find_spark().line
    found = [
        f"Strandline {_revision()}",
        server,
        f"Python {platform.python_version()}",
        f"Java {_java()}",
        *(f"{name} {version(name.lower())}" for name in ("PySpark", "dbt-core", "dbt-spark")),
        f"Iceberg {line.iceberg.version}",
        *_of_peers(peers),
    ]
    return ", ".join(found)


def _of_peers(python: Path | None) -> Iterable[str]:
    if python is None:
        return []
    names = ("dlt", "connectorx", "pyarrow")
    asked = "; ".join(f"print({name!r}, version({name!r}))" for name in names)
    return _said(str(python), "-c", f"from importlib.metadata import version; {asked}").split("\n")


def _java() -> str:
    program = choose_java(find_spark().line).program
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([\d.]+)', said.stderr)
    return found.group(1) if found else "?"


def _revision() -> str:
    """Returns the loader's version and commit, with a mark if the checkout has changed since."""
    git = ("git", "-C", str(ROOT))
    commit = _said(*git, "rev-parse", "--short=8", "HEAD") or "no commit"
    changed = _said(*git, "status", "--porcelain", "--", ":!benchmarks/RESULTS.md")
    return f"{__version__} ({commit}{', changed since' if changed else ''})"


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""

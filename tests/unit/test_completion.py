"""Shell completion offers commands, sources and tables, using only the text of loader.yml."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SPEC = """
kind: source
spec:
  name: shop
  path: jdbc
  tables: [orders, sales.returns, "audit_*", "${TABLE}"]
  destinations: [lake]
  spec:
    url: "jdbc:postgresql://unreachable.invalid/shop"
    table_options:
      "*": {cursor_field: updated_at}
      customers: {cursor_field: updated_at}
---
kind: source
spec: {name: files, path: file, tables: ["*"], destinations: [lake], spec: {path: x, format: csv}}
---
kind: destination
spec: {name: lake, path: spark}
"""


def _complete(folder: Path, words: str) -> list[str]:
    """Returns the completions that bash offers for the last word."""
    last = words.split(" ")[-1]
    count = len(words.split(" ")) - 1
    done = subprocess.run(
        [sys.executable, "-m", "loader"],
        cwd=folder,
        env={
            **os.environ,
            "_LOADER_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    offered = [line.partition(",")[2] for line in done.stdout.splitlines() if line]
    assert all(name.startswith(last) for name in offered), offered
    return offered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loader.yml").write_text(SPEC)
    return tmp_path


TABLES = ["shop.orders", "shop.sales.returns", "shop.customers"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("loader pre", ["preview"]),
        ("loader preview ", TABLES),
        ("loader preview shop.o", ["shop.orders"]),
        ("loader state reset shop.c", ["shop.customers"]),
        ("loader run --select ", [*TABLES, "shop.*", "files.*"]),
        ("loader run -s shop.orders -s f", ["files.*"]),
        ("loader compact --select shop.sa", ["shop.sales.returns"]),
        ("loader reconcile -s shop.o", ["shop.orders"]),
        ("loader -c other.yml run -s ", ["other.prices", "other.*"]),
        ("loader -c absent.yml run -s ", []),
        ("loader discover ", ["shop", "files"]),
    ],
)
def test_names_in_the_spec_are_offered(folder: Path, words: str, offered: list[str]) -> None:
    (folder / "other.yml").write_text("kind: source\nspec: {name: other, tables: [prices]}")
    assert _complete(folder, words) == offered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kind: [",
        "kind: source",
        "kind: source\nspec: {name: [a], tables: {b: 1}}",
        "kind: source\nspec: {name: a, tables: [[1]], spec: {table_options: [x]}}",
        "- 1",
        "\x00",
    ],
)
def test_a_broken_spec_is_no_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "loader.yml").write_text(text)
    assert [n for n in _complete(tmp_path, "loader preview ") if n != "a.x"] == []


def test_completion_imports_neither_spark_nor_pydantic(folder: Path) -> None:
    script = (
        "import sys, atexit; atexit.register(lambda: print(*sorted({'pyspark', 'pydantic', 'dbt'}"
        " & sys.modules.keys()), file=sys.stderr)); from loader.cli import main; main()"
    )
    environment = {
        **os.environ,
        "_LOADER_COMPLETE": "bash_complete",
        "COMP_WORDS": "loader run -s shop.o",
        "COMP_CWORD": "3",
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script.replace("main()", "main(prog_name='loader')")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plain,shop.orders\n"
    assert done.stderr.strip() == "", f"imported in {time.monotonic() - began:.1f} s"

"""The notebook prints its stored outputs, and a script that uses the API passes mypy --strict."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import loader.api
from tests.setup.notebook import outputs

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "examples" / "python-api.ipynb"

SCRIPT = """
import logging

from pyspark.sql import DataFrame

from loader.api import Event, Loader, LoaderError, RunResult, Spec, build_spec, load_spec


def notify(event: Event) -> None:
    logging.info("%s", event["event"])


def sync(path: str) -> RunResult:
    spec: Spec = load_spec(path) if path else build_spec([{"kind": "source", "spec": {}}])
    with Loader(spec) as loader:
        frame: DataFrame = loader.preview("shop.orders")
        frame.show()
        notes: list[str] = [note for table in loader.check().tables for note in table.notes]
        result = loader.run("shop.orders", dbt_build=True, on_event=notify)
        rows: int = sum(table.rows_appended or 0 for table in result.tables)
        missed = [table.missed_deletes for table in loader.reconcile(["*"]).tables]
        logging.info("%s", (notes, rows, missed, loader.status()[0].synced_at))
        failures: dict[str, str] = dict(result.build.failures) if result.build else {}
        error: LoaderError | None = result.table("shop.orders").error
        logging.info("%s", (failures, error.remedy if error else ""))
        return result
"""


def test_the_notebook_prints_its_outputs(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE_")
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.setup.notebook", str(NOTEBOOK)],
        cwd=ROOT,
        env={**environment, "TMPDIR": str(tmp_path), "HOME": os.environ["HOME"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    # A log handler from dbt's packages prints the error of the failed table.
    assert [
        line for line in ran.stderr.splitlines() if "ERROR:loader:shop.orders" not in line
    ] == []
    assert json.loads(ran.stdout) == outputs(json.loads(NOTEBOOK.read_text(encoding="utf-8")))


def test_a_script_passes_mypy_strict(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\n\nwrong: int = sync('loader.yml').success.strip()\n")
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent"),
            *(
                "--cache-dir",
                str(ROOT / ".mypy_cache" / "script"),
                "--config-file",
                "",
                str(script),
            ),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    # mypy sees the package's types: the only error is the intended one in the last line.
    assert re.findall(r"error: .*", checked.stdout) == [
        'error: "bool" has no attribute "strip"  [attr-defined]'
    ], checked.stdout


def test_the_wheel_has_the_marker_and_the_page_names_every_call(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"loader/py.typed", "loader/api.py"} <= set(names)
    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    calls = [name for name in vars(loader.api.Loader) if not name.startswith("_")]
    assert [name for name in calls if not re.search(rf"\| `{name}[(`]", page)] == []

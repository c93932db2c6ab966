"""Runs a notebook's cells in this process, without Jupyter.

``python -m tests.setup.notebook NOTEBOOK`` prints the outputs of the cells as JSON; ``--write``
stores them in the notebook.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def run_cells(notebook: dict[str, Any]) -> list[str]:
    """Runs the code cells in one namespace, and returns what each prints."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, source in enumerate(code_cells(notebook)):
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(source, f"cell {number}", "exec"), namespace)
        printed.append(output.getvalue())
    return printed


def code_cells(notebook: dict[str, Any]) -> list[str]:
    """Returns the text of each code cell."""
    return ["".join(cell["source"]) for cell in _code(notebook)]


def outputs(notebook: dict[str, Any]) -> list[str]:
    """Returns the stored output of each code cell."""
    return [
        "".join(line for output in cell["outputs"] for line in output["text"])
        for cell in _code(notebook)
    ]


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def main(path: Path, *options: str) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    printed = run_cells(notebook)
    if "--write" not in options:
        print(json.dumps(printed))
        return
    for cell, text in zip(_code(notebook), printed, strict=True):
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}
        cell["outputs"] = [stream] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

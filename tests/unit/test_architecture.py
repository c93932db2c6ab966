"""docs/architecture.md: the diagram shows the enforced layers, the table lists every module."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "loader"
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE})


def _packages(line: str) -> list[str]:
    return re.split(r" *[|│] *", re.split(r" {2,}", line.strip())[0])


def test_the_diagram_shows_the_layers_that_the_linter_checks() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [layers] = [
        contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["loader"]
    ]
    section = PAGE.split("## Packages")[1]
    picture = section.split("```")[1].strip().splitlines()
    assert [_packages(line) for line in picture] == [_packages(layer) for layer in layers]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_the_table_names_every_module(folder: Path) -> None:
    name = folder.relative_to(ROOT).as_posix()
    [row] = re.findall(rf"^\| `{name}/` \| (.*) \|$", PAGE, flags=re.MULTILINE)
    reported = set(re.findall(r"`(\w+\.py)`", row))
    present = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert reported <= present, "the table names modules that are not there"
    if name not in (
        "loader/codegen",
        "loader/cli",
    ):  # large packages: the table names only the important modules
        assert present <= reported, "the table lacks modules"

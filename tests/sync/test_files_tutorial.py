"""Executes docs/files-tutorial.md: after each step, the latest table equals the page's table."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from tests.dbt.dbtproject import DbtProject
from tests.sync.project import ROOT, Project

PAGE = (ROOT / "docs" / "files-tutorial.md").read_text("utf-8")


def test_the_tutorial_about_files(project: Project) -> None:
    mart = f"mart_{project.schema.removeprefix('raw_')}"
    dbt = DbtProject(project.spark, project.folder, schema=mart, raw_schema=project.schema)
    compared = 0
    _, _, steps = PAGE.partition("Replace the first document")  # the part after the installation
    parts = r"```(\w+)\n(.*?)```|^((?:\|[^\n]*\n)+)"
    for kind, text, table in re.findall(parts, steps, flags=re.DOTALL | re.MULTILINE):
        if table:
            assert _read(project, mart, table) == _parse_rows(table)
            compared += 1
        elif kind == "yaml":
            lake = f"profiles_dir: {ROOT / 'profiles'}, schema: {project.schema}"
            (project.folder / "loader.yml").write_text(text.replace("schema: raw", lake))
        elif text.startswith("loader"):
            for line in text.splitlines():
                _run(project, dbt, line)
        else:
            subprocess.run(["bash", "-euc", text], cwd=project.folder, check=True)
    assert compared == 3


def _run(project: Project, dbt: DbtProject, line: str) -> None:
    program, command = line.split()
    if program == "loader":
        ran = project.loader(command)
        assert ran.code == 0, ran.text
    else:
        results = dbt.run(command).values()
        assert {result.status for result in results} <= {"success", "pass"}, results


def _parse_rows(table: str) -> list[tuple[Any, ...]]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return [(int(key), *(cell or None for cell in rest)) for key, *rest in lines[2:]]


def _read(project: Project, mart: str, table: str) -> list[tuple[Any, ...]]:
    columns = ", ".join(cell.strip() for cell in table.splitlines()[0].split("|")[1:-1])
    return project.rows(f"select {columns} from {mart}.exports_orders_latest order by order_id")

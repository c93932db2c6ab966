"""Executes docs/incremental.md and compares each table that the page shows with the real one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "incremental.md").read_text("utf-8")
FOUND = {
    "Raw": "select {} from raw.kings order by _cq_batch, _cq_seq",
    "Latest": "select {} from mart.kings_latest order by name",
    "History": "select {} from mart.kings_history order by name, valid_from, _cq_batch",
}


class Page:
    """Follows the page: runs its commands and compares its tables, in order."""

    def __init__(self, project: Project, database: Database, folder: Path) -> None:
        self.project, self.database = project, database
        self.mart = f"mart_{project.schema.removeprefix('raw_')}"
        self.dbt = DbtProject(
            project.spark, folder, schema=self.mart, raw_schema=project.schema, name="kings"
        )
        self.dbt.write(
            "models/sources.yml",
            {
                "sources": [
                    {"name": "shop", "schema": project.schema, "tables": [{"name": "kings"}]}
                ]
            },
        )
        self.ran: list[dict[str, Any]] = []

    def follow(self) -> int:
        """Follows the page from top to bottom; returns the number of compared tables."""
        compared = 0
        blocks = r"```(\w+)\n(.*?)```|^(Raw|Latest|History):\n\n((?:\|[^\n]*\n)+)"
        for kind, text, name, table in re.findall(blocks, PAGE, flags=re.DOTALL | re.MULTILINE):
            if name:
                self.compare(name, table)
                compared += 1
            elif kind == "bash":
                self.commands(text)
            elif "{{" in text:
                self.models(text)
            else:
                self.database.execute(*(one for one in text.split(";") if one.strip()))
        return compared

    def models(self, text: str) -> None:
        """Writes the models and also the spec, because the source's table exists by now."""
        for path, body in re.findall(
            r"-- (models/\w+\.sql)\n(.*?)(?=\n-- models|\Z)", text, re.DOTALL
        ):
            self.dbt.write(path, body)
        options = {"kings": {"cursor_field": "updated_at"}}
        self.project.jdbc(self.database, ["kings"], table_options=options)

    def commands(self, text: str) -> None:
        """Runs the commands as a user would."""
        for line in text.strip().splitlines():
            program, *arguments = line.split()
            if program == "loader":
                ran = self.project.loader(*arguments)
                assert ran.code == 0, ran.text
                if arguments == ["run"]:
                    self.ran.append(ran.table("shop.kings"))
            else:
                reported = self.dbt.run(*arguments, "--select", "package:kings")
                assert {one.status for one in reported.values()} == {"success"}, reported

    def compare(self, name: str, table: str) -> None:
        """Compares a table on the page with the real table's same columns."""
        head, _, *lines = (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in table.strip().splitlines()
        )
        texts = ", ".join(f"cast({column} as string)" for column in head)
        sql = FOUND[name].format(texts).replace("mart.", f"{self.mart}.")
        rows = [[_format_value(text) for text in row] for row in self.project.rows(sql)]
        for reported, found in zip(lines, rows, strict=False):
            for i, cell in enumerate(reported):
                if cell.startswith("time of") and found[i]:
                    reported[i] = found[i]
        assert rows == lines, f"{name} after {len(self.ran)} syncs"


def _format_value(text: str | None) -> str:
    """Returns a value as the page shows it: midnight without the time."""
    return (text or "").removesuffix(" 00:00:00")


def test_the_tables_on_the_page_are_true(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    page = Page(project, postgres_database, tmp_path / "kings")
    assert page.follow() == 9
    counted = [(one["read"], one["appended"], one["redelivered"]) for one in page.ran]
    assert counted == [(2, 2, 0), (2, 1, 1), (3, 2, 1), (2, 1, 1)]

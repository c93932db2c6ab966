"""A lake that the commands of docs/cluster.md have filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tests.crash import shop
from tests.services import Database
from tests.sync.project import Project, Ran

ORDERS, PURCHASES = "orders", "purchases"


@dataclass(frozen=True)
class FilledLake:
    """Raw tables, latest tables, and a history of the purchases.

    Attributes:
        ran: the result of each command.
        sums: the expected row count and sums of two columns, for each table of purchases.
    """

    SCHEMA: ClassVar = "raw_filled"

    project: Project
    ran: Mapping[str, Ran]
    sums: Mapping[str, list[str]]

    @property
    def tables(self) -> list[str]:
        """The full names of all tables."""
        return [f"{self.SCHEMA}.{ORDERS}", f"analytics.shop_{ORDERS}_latest", *self.sums]


def fill(project: Project, database: Database, run: Callable[..., Ran]) -> FilledLake:
    """Checks, loads and builds two tables, changes their rows, and loads and builds again."""
    shop.create(database, [ORDERS])
    database.execute(
        f"create table {PURCHASES} (id int primary key, total numeric(12, 2), at timestamptz)",
        f"insert into {PURCHASES} select n, n * 1.5, timestamptz '2025-01-01Z' + n * interval "
        "'1 s' from generate_series(1, 300) n",
    )
    shop.configure(project, database, [ORDERS, PURCHASES])
    asked = f"select count(*), sum(id), sum(total) from {PURCHASES}"
    [first] = database.query(asked)
    dbt_project = project.folder / "dbt_project.yml"
    # Otherwise a small table is rebuilt, and no position deletes are written.
    dbt_project.write_text(f"{dbt_project.read_text()}  strandline__rebuild_up_to_rows: 0\n")
    ran = {}

    def succeed(*command: str) -> None:
        done = ran[command[0]] = run(*command)
        assert done.code == 0, done.text

    succeed("check")
    succeed("run")
    succeed("codegen", "--history", f"shop.{PURCHASES}")
    # An order is updated without a new cursor, so the generated no_cursor_ties test fails.
    build = ("run", "--build", "--", "--exclude", "test_name:no_cursor_ties")
    succeed(*build)
    shop.change(database, [ORDERS])
    database.execute(
        f"update {PURCHASES} set total = -total, at = '2025-02-01Z' where id <= 40",
        f"insert into {PURCHASES} select n, n, '2025-02-01Z' from generate_series(301, 320) n",
    )
    succeed(*build)
    succeed("status")
    [latest], [second] = (
        database.query(asked),
        database.query(f"{asked} where id <= 40 or id > 300"),
    )
    versions = [str(a + b) for a, b in zip(first, second, strict=True)]
    model = f"analytics.shop_{PURCHASES}"
    sums = {
        f"{project.schema}.{PURCHASES}": versions,
        f"{model}_latest": [str(value) for value in latest],
        f"{model}_history": versions,
    }
    shop.assert_whole(project, database, [ORDERS], [shop.FIRST, shop.ADDED + shop.UPDATED])
    return FilledLake(project, ran, sums)

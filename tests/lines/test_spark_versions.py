"""Two versions of Spark, each in its own environment, write one lake in turn.

`make test-matrix` names the other environment's Python in OTHER_PYTHON.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.table import StaticTable

from tests.services import Database
from tests.sync.test_types import CREATED, POSTGRESQL, define

HERE, THERE = sys.executable, os.environ["OTHER_PYTHON"]


@dataclass(frozen=True)
class Lakehouse:
    """A project's folder, in which commands run."""

    folder: Path

    def loader(self, python: str, *arguments: str) -> list[dict[str, Any]]:
        """Runs a command, which must succeed; returns its events."""
        ended = subprocess.run(
            [python, "-m", "loader", "--log-format", "json", *arguments],
            cwd=self.folder,
            env={**os.environ, "STRANDLINE_WAREHOUSE": str(self.folder / "warehouse")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{arguments}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
        # dbt's own lines have another format
        lines = ended.stdout.splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"event"')]

    def run(self, python: str, *arguments: str) -> dict[str, int]:
        """Runs `loader run`; returns how many rows of each table were appended."""
        events = self.loader(python, "run", *arguments)
        return {e["table"]: e["appended"] for e in events if e["event"] == "table"}

    def reconcile(self, python: str) -> dict[str, tuple[int, int]]:
        """Repairs; returns the missed updates and the deleted rows of each table."""
        events = self.loader(python, "reconcile", "--repair")
        found = [event for event in events if event["event"] == "reconciled"]
        return {e["table"]: (e["missed_updates"], e["missed_deletes"]) for e in found}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Reads a table without Spark."""
        place = self.folder / "warehouse" / table
        version = (place / "metadata" / "version-hint.text").read_text()
        read = StaticTable.from_metadata(str(place / "metadata" / f"v{version}.metadata.json"))
        found: list[dict[str, Any]] = read.scan().to_arrow().to_pylist()
        return found


@pytest.fixture
def lakehouse(tmp_path: Path, postgres_database: Database) -> Lakehouse:
    """A project with two tables: one with a column of every type, and one that changes."""
    postgres_database.execute(
        *CREATED,
        define(POSTGRESQL),
        f"insert into t values (1, 1, {', '.join(value for _, value, *_ in POSTGRESQL)})",
        "create table orders (id int primary key, note text, opens time, at timestamptz, n int)",
        "insert into orders select i, 'first', '24:00', "
        "timestamptz '2025-01-01 12:00Z' - make_interval(days => i), i "
        "from generate_series(1, 50) i",
    )
    found = Lakehouse(tmp_path)
    found.loader(sys.executable, "init")
    options = {"t": {"cursor_field": "c"}, "orders": {"cursor_field": "at", "sweep": "never"}}
    own = {"url": postgres_database.url, "user": postgres_database.user}
    own |= {"password": postgres_database.password, "table_options": options}
    source = {"name": "shop", "path": "jdbc", "tables": list(options), "destinations": ["lake"]}
    lake = {"name": "lake", "path": "spark", "spec": {"schema": "raw"}}
    documents = [
        {"kind": "source", "spec": {**source, "spec": own}},
        {"kind": "destination", "spec": lake},
    ]
    (tmp_path / "loader.yml").write_text(yaml.safe_dump_all(documents))
    return found


def test_each_version_continues_where_the_other_ended(
    lakehouse: Lakehouse, postgres_database: Database
) -> None:
    """The other version loads first; this one, the other and again this one continue."""
    assert lakehouse.run(THERE) == {"shop.t": 1, "shop.orders": 50}
    lakehouse.loader(THERE, "codegen", "--history", "shop.orders")
    lakehouse.run(THERE, "--build")
    for number, python in enumerate((HERE, THERE), 2):
        day = dt.date(2025, 1, number).isoformat()
        postgres_database.execute(
            f"update t set c = {number}",
            f"update orders set note = 'line {number}', at = '{day} 12:00Z' where id <= 10",
            f"insert into orders values ({100 + number}, 'new', null, '{day} 12:00Z', 0)",
            f"update orders set n = -n where id = {20 + number}",  # without a new cursor
            f"delete from orders where id = {30 + number}",
        )
        # Only these rows are new, not those at the cursor or those that the other version repaired;
        # and all dbt tests pass.
        assert lakehouse.run(python, "--build") == {"shop.t": 1, "shop.orders": 11}
        assert lakehouse.reconcile(python) == {"shop.t": (0, 0), "shop.orders": (1, 1)}
        lakehouse.loader(python, "compact", "--keep-versions", "1")
    assert set(lakehouse.run(HERE, "--build").values()) == {0}

    versions = lakehouse.rows("raw/t")
    assert sorted(row["c"] for row in versions) == [2, 3]  # one by each Spark version
    names = [f"v{number}" for number in range(len(POSTGRESQL))]
    assert len({str([row[name] for name in names]) for row in versions}) == 1
    columns = ("id", "note", "opens", "at", "n")
    found = [
        tuple(row[c] for c in columns) for row in lakehouse.rows("analytics/shop_orders_latest")
    ]
    assert sorted(found) == postgres_database.query(
        "select id, note, to_char(opens, 'HH24:MI:SS.US'), at, n from orders order by id"
    )
    history = lakehouse.rows("analytics/shop_orders_history")
    assert {row["note"] for row in history if row["id"] == 1} == {"first", "line 2", "line 3"}

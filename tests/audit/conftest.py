"""Provides a PostgreSQL table of orders, and writes copies of it as other tools write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from loader.cli import main
from tests.services import Database
from tests.services.server import PASSWORD, USER

Row = dict[str, Any]

COLUMNS = "id bigint, note string, amount decimal(10, 2), paid boolean, updated_at timestamp"


class Shop:
    """A table of orders whose rows a test copies.

    Attributes:
        url: the URL that `loader audit` takes.
    """

    def __init__(self, database: Database, spark: SparkSession, folder: Path) -> None:
        self.database = database
        self.spark = spark
        self.folder = folder
        self.url = (
            f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{database.server.port}/{database.name}"
        )
        database.execute(
            "create table orders (id bigint primary key, note text, amount numeric(10, 2), "
            "paid boolean, updated_at timestamptz)",
            "insert into orders select i, 'note ' || i, i * 1.01, i % 3 = 0, "
            "timestamptz '2025-03-01 00:00+00' + i * interval '1 hour' "
            "from generate_series(1, 1000) i",
        )

    def rows(self) -> list[Row]:
        """Reads the source as a loader would."""
        found = self.database.query(
            "select id, note, amount, paid, updated_at from orders order by id"
        )
        return [
            dict(zip(("id", "note", "amount", "paid", "updated_at"), row, strict=True))
            for row in found
        ]

    def write(
        self,
        rows: Sequence[Row],
        added: str = "",
        name: str = "copy",
        columns: str = COLUMNS,
        mode: str = "append",
    ) -> str:
        """Writes rows to a Parquet folder, and returns its path.

        Args:
            added: the columns that the tool adds to those of the source.
        """
        schema = f"{columns}, {added}" if added else columns
        path = str(self.folder / name)
        names = [part.split()[0] for part in schema.replace("(10, 2)", "").split(", ")]
        values = [tuple(row.get(name) for name in names) for row in rows]
        self.spark.createDataFrame(values, schema).write.mode(mode).parquet(path)
        return path

    def audit(self, copy: str, *options: str, table: str = "orders") -> dict[str, Any]:
        """Runs `loader audit` without a pause, and returns the JSON line with its result."""
        result = CliRunner().invoke(
            main,
            ["--log-format", "json", "audit", self.url, table, copy, "--pause", "0", *options],
            catch_exceptions=False,
        )
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        [found] = [line for line in lines if line["event"] == "audit"] or [None]
        assert found is not None, result.output
        assert result.exit_code == (0 if found["equal"] else 1)
        return found


@pytest.fixture
def shop(postgres_database: Database, spark: SparkSession, tmp_path: Path) -> Shop:
    """The shop with 1,000 orders."""
    return Shop(postgres_database, spark, tmp_path)


Change = Callable[[list[Row]], list[Row]]

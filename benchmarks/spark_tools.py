"""Tools that use Spark: the loader, and scripts such as people write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from benchmarks.tools import ROOT, Tool, serve
from loader.spark.profile import load_profile
from loader.spark.session import session
from tests.sync.project import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = "orders"


class Strandline:
    """The loader, through its command line in this process.

    Args:
        options: the table's options; by default, only a cursor field.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        schema: str,
        url: str,
        user: str,
        password: str,
        options: Mapping[str, str] = {"cursor_field": "updated_at"},
    ) -> None:
        self.project = Project(folder, spark, schema)
        self.project.add(
            "shop",
            "jdbc",
            [_TABLE],
            {
                "url": url,
                "user": user,
                "password": password,
                "table_options": {_TABLE: dict(options)},
            },
        )

    def sync(self) -> int:
        """Runs `loader run` once. Returns the number of rows read."""
        rows: int = self.project.run().table(f"shop.{_TABLE}")["read"] or 0
        return rows

    def versions(self) -> list[list[Any]]:
        """Returns all rows in the raw table, in the version order of macros and loader."""
        rows = self.project.rows(
            f"""
            select
                id,
                amount,
                note,
                unix_micros(updated_at),
                _cq_generation,
                _cq_batch,
                _cq_seq
            from raw.{_TABLE}
            """
        )
        return [
            [key, [amount, note], cursor, [generation, cursor, batch, seq]]
            for key, amount, note, cursor, generation, batch, seq in rows
        ]


class PlainCursor:
    """`where cursor > last` (or `>=`) on Spark's JDBC reader, appended to Parquet files.

    The newest version is the one with the highest cursor and, among these, from the last sync, as
    with the `row_number()` that people usually add.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, comparison: str, options: Mapping[str, str]
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.comparison = comparison
        self.options = options
        self.last: int | None = None
        self.syncs = 0

    def sync(self) -> int:
        """Reads the rows above the last cursor. Returns their number."""
        where = ""
        if self.last is not None:
            last = f"timestamptz 'epoch' + {self.last} * interval '1 microsecond'"
            if self.options["url"].startswith("jdbc:mysql:"):
                last = f"from_unixtime({self.last // 1_000_000}.{self.last % 1_000_000:06})"
            where = f" where updated_at {self.comparison} {last}"
        query = f"select id, amount, note, updated_at from {_TABLE}{where}"
        reader = self.spark.read.format("jdbc").options(**self.options)
        self.syncs += 1
        batch = str(self.folder / f"sync={self.syncs}")
        self.add_columns(reader.option("query", query).load()).write.parquet(batch)
        top = f.max(f.unix_micros("updated_at"))
        row = self.spark.read.parquet(batch).agg(f.count("*"), top).first()
        assert row is not None
        self.last = row[1] if row[1] is not None else self.last
        return int(row[0])

    def add_columns(self, rows: DataFrame) -> DataFrame:
        """Adds the tool's own columns."""
        return rows

    def versions(self) -> list[list[Any]]:
        """Returns all appended rows."""
        rows = self.spark.read.parquet(str(self.folder)).select(
            "id", "amount", "note", f.unix_micros("updated_at"), "sync"
        )
        return [
            [key, [amount, note], cursor, [cursor, sync]]
            for key, amount, note, cursor, sync in rows.collect()
        ]


class AirbyteShaped(PlainCursor):
    """A plain cursor that adds the columns of Airbyte's destinations."""

    def add_columns(self, rows: DataFrame) -> DataFrame:
        return rows.select(
            f.expr("uuid()").alias("_airbyte_raw_id"),
            f.current_timestamp().alias("_airbyte_extracted_at"),
            f.lit('{"sync_id": 1, "changes": []}').alias("_airbyte_meta"),
            f.lit(0).cast("bigint").alias("_airbyte_generation_id"),
            "*",
        )


def open_tools(request: Mapping[str, Any]) -> Mapping[str, Tool]:
    """Returns the tools that a request names, with Spark from the embedded profile."""
    folder = Path(request["folder"])
    profile = load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    spark = session(profile)
    tools: dict[str, Tool] = {}
    for name, port in request["ports"].items():
        place_of_data = f"//127.0.0.1:{port}/{request['database']}"
        user, password = request["user"], request["password"]
        on_mariadb = name.startswith("mariadb")
        if "strandline" in name:
            url = f"jdbc:{'mariadb' if on_mariadb else 'postgresql'}:{place_of_data}"
            options = {"sync_mode": "cdc"} if "cdc" in name else {"cursor_field": "updated_at"}
            if name.endswith("always"):
                options["sweep"] = "always"
            place = folder / name.replace(" ", "_")
            place.mkdir()
            tools[name] = Strandline(spark, place, place.name, url, user, password, options)
        else:
            options = {
                "url": f"jdbc:postgresql:{place_of_data}",
                "user": user,
                "password": password,
                "driver": "org.postgresql.Driver",
            }
            if on_mariadb:
                options |= {
                    "url": f"jdbc:mysql:{place_of_data}?permitMysqlScheme=true",
                    "driver": "org.mariadb.jdbc.Driver",
                    "sessionInitStatement": "set time_zone = '+00:00'",
                }
            comparison = name.split()[-1]
            place = folder / ("above" if comparison == ">" else "from")
            tools[name] = PlainCursor(spark, place, comparison, options)
    return tools


if __name__ == "__main__":
    serve(open_tools)

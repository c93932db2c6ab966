"""The peers: dlt, in its own Python environment, and scripts for plain Spark."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dropped_files import DroppedFiles
from benchmarks.shop import Shop, Sums, sums_of_files
from benchmarks.stopwatch import ran
from loader.spark.class_path import list_own_jars
from loader.spark.spark_version import find_spark

_HERE = Path(__file__).resolve().parent
CONNECTORX, PYARROW, BARE = "dlt (connectorx)", "dlt (pyarrow)", "bare `spark.read.jdbc`"
BARE_FILES = "bare `spark.read.load`"
_BARE = (sys.executable, str(_HERE / "bare_spark.py"))


@dataclass(frozen=True)
class Dlt:
    """dlt, loading the tables of a shop into Parquet files.

    Args:
        python: the Python of the environment that has dlt.
        label: the backend that reads, CONNECTORX or PYARROW.
    """

    folder: Path
    shop: Shop
    python: Path
    label: str = CONNECTORX

    def load(self) -> int:
        """Runs the pipeline once. Returns the number of loaded rows."""
        self.folder.mkdir(parents=True, exist_ok=True)
        database = self.shop.database
        at = f"{database.user}:{database.password}@127.0.0.1:{database.server.port}"
        url = f"postgresql+psycopg2://{at}/{database.name}"
        script = str(_HERE / "dlt_load.py")
        environment = {"HOME": str(self.folder), "RUNTIME__DLTHUB_TELEMETRY": "false"}
        backend = {CONNECTORX: "connectorx", PYARROW: "pyarrow"}[self.label]
        command = (str(self.python), script, str(self.folder), url, backend, *self.shop.names)
        return int(ran(command, self.folder, environment))

    def sums(self) -> Sums:
        """Returns the sums over all appended rows."""
        lake = self.folder / "lake" / "raw"
        return sums_of_files(lake / name for name in self.shop.names)


@dataclass(frozen=True)
class Bare:
    """A script that reads the shop's only table into an Iceberg table, in the same Spark."""

    folder: Path
    shop: Shop
    label: str = BARE

    def load(self) -> int:
        """Runs the script once. Returns the number of rows in the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        database, [table] = self.shop.database, self.shop.names
        given = (database.url, database.user, table, "order_id")
        command = (*_BARE, "jdbc", str(self.folder / "warehouse"), *given)
        given_by = {"BENCH_PASSWORD": database.password, "BENCH_JARS": _jars()}
        return int(ran(command, self.folder, given_by))

    def sums(self) -> Sums:
        """Returns the sums over all written rows."""
        raw = self.folder / "warehouse" / "raw"
        return sums_of_files(raw / name / "data" for name in self.shop.names)


@dataclass(frozen=True)
class BareFiles:
    """A script that reads a folder's only table into an Iceberg table, in the same Spark."""

    folder: Path
    shop: DroppedFiles
    label: str = BARE_FILES

    def load(self) -> int:
        """Runs the script once. Returns the number of rows in the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        [table] = self.shop.names
        given = (self.shop.form, str(self.shop.folder / table), table)
        command = (*_BARE, "files", str(self.folder / "warehouse"), *given)
        return int(ran(command, self.folder, {"BENCH_JARS": _jars()}))

    def sums(self) -> Sums:
        """Returns the sums over all written rows."""
        raw = self.folder / "warehouse" / "raw"
        return sums_of_files(raw / name / "data" for name in self.shop.names)


def _jars() -> str:
    return ",".join(map(str, list_own_jars(find_spark(), {})))

"""Quarantines a damaged table of the loader's own, so that it can be rebuilt; never a raw table.

Nothing is deleted. In a Hadoop catalog a table is its folder: the folder moves, as SQL cannot drop
a table that it cannot read. In other catalogs the table is unregistered, and its files stay.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loader.errors import DamagedError, TableError
from loader.lake.lake import Lake
from loader.lake.ledger import now
from loader.lake.locks import lock_table
from loader.lake.system_tables import PREFIX
from loader.spark.error_translation import clear

FOLDER = "_cq_damaged"
"""Quarantined tables are in this folder of the schema's."""


def set_aside(lake: Lake, table: str) -> str | None:
    """Puts a table aside if any of its rows cannot be read; returns what was done, else None.

    Raises:
        TableError: it is damaged and cannot be put aside, or it cannot be read for other reasons.
    """
    if not table.startswith(PREFIX):
        return None
    with lock_table(lake, table):
        try:
            if lake.exists(table):
                lake.fresh(table)  # of a warehouse that was moved, nothing is damaged
                lake.frame(table).write.format("noop").mode("overwrite").save()
            return None
        except (Py4JError, PySparkException) as problem:
            found = clear(problem, f"table {lake.schema}.{table}")
            if not isinstance(found, DamagedError):
                raise found from problem
        where = _move_folder(lake, table) if _in_folders(lake) else _unregister(lake, table)
        return f"{found.what}. It starts over, empty; what was left of it {where}"


def _in_folders(lake: Lake) -> bool:
    kind = lake.spark.conf.get(f"spark.sql.catalog.{lake.catalog}.type", None)
    return (kind or "").lower() == "hadoop"


def _move_folder(lake: Lake, table: str) -> str:
    """Moves the table's folder; its metadata gets another name, as the catalog goes by that."""
    jvm: Any = lake.spark._jvm
    path = jvm.org.apache.hadoop.fs.Path
    warehouse = lake.spark.conf.get(f"spark.sql.catalog.{lake.catalog}.warehouse", None) or ""
    home = path(f"{warehouse.rstrip('/')}/{lake.schema}")
    files = home.getFileSystem(lake.spark._jsparkSession.sessionState().newHadoopConf())
    own = path(home, table)
    aside = path(path(home, FOLDER), f"{table}_{now():%Y%m%dT%H%M%S%f}")
    files.mkdirs(aside.getParent())
    moves = [(path(own, "metadata"), path(own, "metadata_damaged")), (own, aside)]
    for before, after in moves:
        if not files.rename(before, after):
            raise TableError(
                f"it is damaged, and {before} could not be moved to {after}",
                where=f"table {lake.schema}.{table}",
                remedy="Move it by hand while no loader runs, and run again",
            )
    return f"is in {aside.toUri().getPath()}"


def _unregister(lake: Lake, table: str) -> str:
    """Drops the table from its catalog without reading it, which `drop table` would do."""
    jvm: Any = lake.spark._jvm
    context: Any = lake.spark.sparkContext
    names = context._gateway.new_array(jvm.java.lang.String, 2)
    names[0], names[1] = lake.schema, table
    manager = lake.spark._jsparkSession.sessionState().catalogManager()
    catalog = manager.catalog(lake.catalog).icebergCatalog()
    catalog.dropTable(jvm.org.apache.iceberg.catalog.TableIdentifier.of(names), False)
    return "stays where it was: the catalog no longer lists it"

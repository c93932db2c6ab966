"""Reads system tables in a local folder with pyiceberg, so that Spark need not be started.

Only intact tables of a Hadoop catalog can be read in this way. For all other tables,
:class:`SparkNeededError` is raised. Spark then reads the table or reports the damage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from loader.errors import TableError
from loader.lake.location_check import refuse_moved
from loader.spark.safe_files import read_regular

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

MOST_ROWS = 2_000_000
"""The maximum number of rows in a table. Spark reads larger tables faster and in less memory."""

_LONGEST_HINT = 20  # the maximum number of digits in a version
_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_KNOWN = re.compile(r"type|warehouse|cache-enabled|cache\..*")
"""Matches catalog settings that do not affect how a table's files are read."""


class SparkNeededError(Exception):
    """Raised for a table that only Spark can read."""


def find_warehouse(conf: Mapping[str, str]) -> Path | None:
    """Returns the folder of a profile's default catalog, or None if it is not in a local folder."""
    prefix = f"spark.sql.catalog.{conf.get('spark.sql.defaultCatalog')}"
    settings = {
        key[len(prefix) + 1 :]: v for key, v in conf.items() if key.startswith(f"{prefix}.")
    }
    warehouse = settings.get("warehouse", "")
    local = re.fullmatch(r"(?:file:(?://)?)?(/.*)", warehouse)
    if (
        conf.get(prefix) != _CATALOG
        or settings.get("type", "").lower() != "hadoop"
        or not all(map(_KNOWN.fullmatch, settings))
        or local is None
        or any(key.startswith("spark.hadoop.fs.default") for key in conf)
    ):
        return None
    return Path(local[1])


def list_properties(warehouse: Path | None) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the name (`schema.table`) and the properties of each table in a catalog's folder.

    Tables that only Spark can read are left out.
    """
    for folder in sorted(warehouse.glob("*/*/metadata")) if warehouse is not None else ():
        schema, table = folder.parts[-3:-1]
        with suppress(SparkNeededError, OSError, ValueError):
            newest = FolderTables(warehouse, schema).find_metadata(table)
            if newest is not None:
                metadata = json.loads(newest.read_text(encoding="utf-8"))
                yield f"{schema}.{table}", metadata.get("properties") or {}


class FolderTables:
    """Reads one namespace of a Hadoop catalog in a local folder.

    >>> FolderTables(Path("/srv/lake/warehouse"), "raw").read("_cq_state", {"key": "string"})

    If `warehouse` is None, all tables need Spark.
    """

    def __init__(self, warehouse: Path | None, schema: str) -> None:
        self.warehouse = warehouse
        self.schema = schema

    def exists(self, table: str) -> bool:
        """Returns whether a table has metadata.

        Raises a SparkNeededError if the catalog is not a local folder.
        """
        return (self._folder(table) / "metadata").is_dir()

    def read(self, table: str, columns: Mapping[str, str]) -> pa.Table | None:
        """Returns the rows of a table's newest snapshot, or None if there is no table.

        Args:
            columns: the type of each column (`boolean`, `long`, `string` or `timestamptz`), keyed
                by lower-case name. Columns that the table lacks are null.

        Raises:
            SparkNeededError: if pyiceberg is missing or cannot read the table.
            TableError: if the warehouse was copied or moved.
        """
        if not self.exists(table):
            return None
        try:
            return self._read(table, columns)
        except (SparkNeededError, TableError):
            raise
        except ImportError:
            raise SparkNeededError("pyiceberg is not installed") from None
        except Exception as problem:  # damaged files may cause any exception in pyiceberg
            raise SparkNeededError(str(problem)) from problem

    def _read(self, table: str, columns: Mapping[str, str]) -> pa.Table | None:
        import pyarrow as pa
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import StaticTable

        newest = self.find_metadata(table)
        if newest is None:
            return None
        # `from_metadata` is unsafe, because a table property could make pyiceberg import any Python
        # class.
        files = PyArrowFileIO({})
        local = files.fs_by_scheme("file", None)

        def open_files(scheme: str, _: str | None) -> FileSystem:
            if scheme != "file":  # the metadata contains the full URL of each file
                raise SparkNeededError("its files are not in a local folder")
            return local

        files.fs_by_scheme = open_files
        metadata = FromInputFile.table_metadata(files.new_input(str(newest)))
        name = f"{self.schema}.{table}"
        refuse_moved(str(self._folder(table)), metadata.location.rstrip("/"), name)
        static = StaticTable((name,), metadata, str(newest), files, NoopCatalog("folder"))
        snapshot = metadata.current_snapshot()
        summary = snapshot.summary if snapshot is not None else None
        if summary is not None and int(summary.get("total-records") or 0) > MOST_ROWS:
            raise SparkNeededError("it has many rows")
        actual = {field.name.lower(): field for field in metadata.schema().fields}
        for name, kind in columns.items():
            if name in actual and str(actual[name].field_type) != kind:
                raise SparkNeededError(f"its column {name} does not have the type {kind}")
        existing = {name: actual[name].name for name in columns if name in actual}
        rows = static.scan(selected_fields=tuple(existing.values())).to_arrow()
        types = {
            "boolean": pa.bool_(),
            "long": pa.int64(),
            "string": pa.string(),
            "timestamptz": pa.timestamp("us", "UTC"),
        }
        # The cast is necessary because older versions of pyiceberg read strings as `large_string`.
        arrays = [
            rows[existing[name]].cast(types[kind])
            if name in existing
            else pa.nulls(rows.num_rows, types[kind])
            for name, kind in columns.items()
        ]
        return pa.table(arrays, names=list(columns))

    def find_metadata(self, table: str) -> Path | None:
        """Finds a table's newest metadata file in the same way as Iceberg's HadoopTableOperations.

        The version hint may be outdated, because it is written only after the commit.
        """
        folder = self._folder(table) / "metadata"
        try:
            version = int(read_regular(folder / "version-hint.text", _LONGEST_HINT))
        except (OSError, ValueError):
            names = (re.match(r"v(\d+)\.", path.name) for path in folder.iterdir())
            version = max((int(name[1]) for name in names if name), default=0)
            if not version:
                return None
        newest = folder / f"v{version}.metadata.json"
        # Searches the folder again after each version, because another process may be committing.
        while later := list(folder.glob(f"v{version + 1}.*")):
            version += 1
            newest = folder / f"v{version}.metadata.json"
            if newest not in later:
                raise SparkNeededError(f"{newest} is compressed")
        if not newest.exists():
            raise SparkNeededError(f"{newest} is missing")
        return newest

    def _folder(self, table: str) -> Path:
        if self.warehouse is None:
            raise SparkNeededError("its catalog is not a local folder")
        return self.warehouse / self.schema / table

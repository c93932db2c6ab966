"""Measures the size of a table's current snapshot and of all its stored files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from loader.lake.lake import Lake

_TOTALS = ("total-records", "total-data-files", "total-delete-files", "total-files-size")


@dataclass(frozen=True)
class TableStats:
    """The size of a table.

    Attributes:
        rows: the number of visible rows.
        files: the number of data and delete files in the current snapshot.
        bytes: the size of these files, which is the size of a full scan.
        stored: the size of all files in the table's data folder. If the folder cannot be listed,
            the size of all files in all snapshots.
        orphans: the number of files in the data folder that no snapshot refers to. A killed run
            left them, or a run is still writing them.
    """

    rows: int = 0
    files: int = 0
    bytes: int = 0
    stored: int = 0
    snapshots: int = 0
    orphans: int = 0


def measure_table(lake: Lake, table: str) -> TableStats:
    """Measures a table, from its metadata alone where possible."""
    handle = lake.handle(table)
    rows, files, size = _measure_current(lake, table, handle)
    snapshots = len(handle.snapshots())
    referenced, stored = files, size
    if snapshots > 1 or (snapshots and not files):
        [row] = lake.spark.sql(
            "select count(*) as files, coalesce(sum(file_size_in_bytes), 0) as bytes from "
            f"(select distinct file_path, file_size_in_bytes from {lake.name(table)}.all_files)"
        ).collect()
        referenced, stored = int(row["files"]), int(row["bytes"])
    orphans = 0
    folder = _measure_folder(lake, table)
    if folder is not None:
        stored, orphans = folder[0], max(folder[1] - referenced, 0)
    return TableStats(rows, files, size, stored, snapshots, orphans)


def _measure_current(lake: Lake, table: str, handle: Any) -> tuple[int, int, int]:
    """Returns the rows, files and bytes of a table's current snapshot.

    Reads the totals from the snapshot's summary if it contains them: some engines write none.
    Counts the rows if there are delete files.
    """
    current = handle.currentSnapshot()
    if current is None:
        return 0, 0, 0
    name = lake.name(table)
    summary = current.summary()
    totals = [summary.get(total) for total in _TOTALS]
    if None not in totals:
        rows, data, deletes, size = map(int, totals)
        if deletes:
            [row] = lake.spark.sql(f"select count(*) as rows from {name}").collect()
            rows = int(row["rows"])
        return rows, data + deletes, size
    [row] = lake.spark.sql(
        f"""
        select
            (select count(*) from {name}) as rows,
            count(*) as files,
            coalesce(sum(file_size_in_bytes), 0) as bytes
        from {name}.files
        """
    ).collect()
    return int(row["rows"]), int(row["files"]), int(row["bytes"])


def _measure_folder(lake: Lake, table: str) -> tuple[int, int] | None:
    """Returns the number of bytes and of files in a table's data folder, if known."""
    handle = lake.handle(table)
    if {"write.data.path", "write.object-storage.enabled"} & set(lake.properties(table)):
        return None  # the files are in another folder or share a folder with other tables
    folder = lake.jvm.org.apache.hadoop.fs.Path(f"{handle.location()}/data")
    try:
        files = folder.getFileSystem(lake.spark._jsparkSession.sessionState().newHadoopConf())
        if not files.exists(folder):
            return 0, 0
        summary = files.getContentSummary(folder)
        return int(summary.getLength()), int(summary.getFileCount())
    except Py4JJavaError:
        return None

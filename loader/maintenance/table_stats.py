"""A table's size: rows and files of its current snapshot, and everything else that is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from loader.lake.lake import Lake

_TOTALS = ("total-records", "total-data-files", "total-delete-files", "total-files-size")


@dataclass(frozen=True)
class TableStats:
    """A table's size.

    Attributes:
        rows: rows that it shows.
        files: files of its current snapshot, data and deletes.
        bytes: their size: what a scan reads.
        stored: the size of all data files in its folder: what the disk holds, except metadata. If
            the folder cannot be listed, the size of all files that any snapshot refers to.
        snapshots: how many Iceberg snapshots there are.
        strays: files in its folder that no snapshot refers to: a run was writing them when it was
            killed, or is writing them now.
    """

    rows: int = 0
    files: int = 0
    bytes: int = 0
    stored: int = 0
    snapshots: int = 0
    strays: int = 0


def footprint(lake: Lake, table: str) -> TableStats:
    """Measures a table, from its metadata if possible."""
    handle = lake.handle(table)
    rows, files, size = _current(lake, table, handle)
    snapshots = len(handle.snapshots())
    referred, stored = files, size
    if snapshots > 1 or (snapshots and not files):
        [row] = lake.spark.sql(
            "select count(*) as files, coalesce(sum(file_size_in_bytes), 0) as bytes from "
            f"(select distinct file_path, file_size_in_bytes from {lake.name(table)}.all_files)"
        ).collect()
        referred, stored = int(row["files"]), int(row["bytes"])
    strays = 0
    there = _measure_folder(lake, table)
    if there is not None:
        stored, strays = there[0], max(there[1] - referred, 0)
    return TableStats(rows, files, size, stored, snapshots, strays)


def _current(lake: Lake, table: str, handle: Any) -> tuple[int, int, int]:
    """Returns rows, files and bytes of a table's current snapshot.

    The commit's summary has them, except the rows if there are delete files. Some engines write
    no totals at all.
    """
    current = handle.currentSnapshot()
    if current is None:
        return 0, 0, 0
    name = lake.name(table)
    summary = current.summary()
    said = [summary.get(total) for total in _TOTALS]
    if None not in said:
        rows, data, deletes, size = map(int, said)
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
    """Returns size and number of files in a table's data folder; None if Spark cannot list it."""
    handle = lake.handle(table)
    if {"write.data.path", "write.object-storage.enabled"} & set(lake.properties(table)):
        return None  # the files are elsewhere, or mixed with other tables'
    jvm: Any = lake.spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(f"{handle.location()}/data")
    try:
        files = folder.getFileSystem(lake.spark._jsparkSession.sessionState().newHadoopConf())
        if not files.exists(folder):
            return 0, 0
        summary = files.getContentSummary(folder)
        return int(summary.getLength()), int(summary.getFileCount())
    except Py4JJavaError:
        return None

"""What a table takes: rows and files, of what it says now and of all that is kept of it."""

from __future__ import annotations

from dataclasses import dataclass

from loader.lake import Lake


@dataclass(frozen=True)
class Footprint:
    """A table's size.

    Attributes:
        rows: rows that it shows.
        files: files of its current snapshot, data and deletes.
        bytes: their size: what a scan reads.
        stored: the size of all files that any of its snapshots refers to: what the disk holds,
            but for metadata.
        snapshots: how many snapshots there are.
    """

    rows: int = 0
    files: int = 0
    bytes: int = 0
    stored: int = 0
    snapshots: int = 0


def footprint(lake: Lake, table: str) -> Footprint:
    """Measures a table, by its metadata where Iceberg can."""
    name = lake.name(table)
    [row] = lake.spark.sql(
        f"""
        select
            (select count(*) from {name}) as rows,
            (select count(*) from {name}.files) as files,
            (select coalesce(sum(file_size_in_bytes), 0) from {name}.files) as bytes,
            (
                select coalesce(sum(file_size_in_bytes), 0)
                from (select distinct file_path, file_size_in_bytes from {name}.all_files)
            ) as stored,
            (select count(*) from {name}.snapshots) as snapshots
        """
    ).collect()
    return Footprint(row["rows"], row["files"], row["bytes"], row["stored"], row["snapshots"])

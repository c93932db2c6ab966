"""One incremental load by dlt: ``python dlt_load.py FOLDER URL BACKEND TABLE...``.

All of each table at first, then by its cursor, into Parquet files, which is the nearest to what the
loader does. Of its backends for databases, connectorx is the fastest and pyarrow the usual one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import dlt
from dlt.sources.sql_database import sql_database

CHUNK = 500_000
"""Rows that the backend pyarrow reads at once; by default 50,000, which was not faster."""


def main(folder: Path, url: str, backend: str, tables: Sequence[str]) -> None:
    """Loads what is new; prints how many rows that was, of all tables."""
    pipeline = dlt.pipeline(
        pipeline_name="shop",
        pipelines_dir=str(folder / "pipelines"),
        destination=dlt.destinations.filesystem(str(folder / "lake")),
        dataset_name="raw",
    )
    source = sql_database(
        credentials=url,
        table_names=list(tables),
        backend=backend,
        chunk_size=CHUNK,
    )
    for resource in source.resources.values():
        resource.apply_hints(
            incremental=dlt.sources.incremental("updated_at"), write_disposition="append"
        )
    if len(tables) > 1:
        source.parallelize()
    pipeline.run(source, loader_file_format="parquet")
    normalized = pipeline.last_trace.last_normalize_info
    counts = normalized.row_counts if normalized else {}
    print(sum(counts.get(table, 0) for table in tables))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])

"""One incremental load by dlt, as a whole process: ``python dlt_load.py FOLDER URL``.

Its fastest backend, connectorx, into Parquet files, which is the nearest to what the loader does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dlt
from dlt.sources.sql_database import sql_table

TABLE = "orders"


def main(folder: Path, url: str) -> None:
    """Loads what is new; prints how many rows that was."""
    pipeline = dlt.pipeline(
        pipeline_name="orders",
        pipelines_dir=str(folder / "pipelines"),
        destination=dlt.destinations.filesystem(str(folder / "lake")),
        dataset_name="raw",
    )
    table = sql_table(
        credentials=url,
        table=TABLE,
        backend="connectorx",
        incremental=dlt.sources.incremental("updated_at"),
        write_disposition="append",
    )
    pipeline.run(table, loader_file_format="parquet")
    normalized = pipeline.last_trace.last_normalize_info
    print(normalized.row_counts.get(TABLE, 0) if normalized else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

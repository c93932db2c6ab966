"""dlt with its own `sql_database` source, set up as its documentation describes.

Run with the Python in the peers' virtual environment (`peers.txt`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dlt
from dlt.sources.sql_database import sql_table

from benchmarks.tools import Tool, serve

_TABLE = "orders"
_LAG = 900.0
"""In seconds; longer than the writers' clock difference plus their longest transaction."""
_KINDS = {
    "dlt append": ("append", None, "duckdb"),
    "dlt merge": ("merge", None, "duckdb"),
    "dlt merge lag": ("merge", _LAG, "duckdb"),
    "dlt append to Parquet": ("append", None, "parquet"),
    "dlt merge to PostgreSQL": ("merge", None, "postgres"),
}


class Dlt:
    """A pipeline. dlt reads the key from the database.

    Args:
        disposition: `append` keeps all versions; the newest one has the highest cursor or, if
            several have it, comes from the last load. `merge` keeps one version.
        lag: how many seconds below the last cursor each run starts; None if it starts at the
            cursor.
        destination: "duckdb" and "parquet" write to the folder.
        target: the URL of the database that "postgres" writes to.
    """

    def __init__(
        self,
        folder: Path,
        disposition: str,
        lag: float | None,
        destination: str,
        url: str,
        target: str,
    ) -> None:
        self.url = url
        self.disposition = disposition
        self.lag = lag
        self.format: Any = "parquet" if destination == "parquet" else None
        name = disposition if lag is None else f"{disposition}_lag"
        destinations = {
            "duckdb": lambda: dlt.destinations.duckdb(str(folder / f"{name}.duckdb")),
            "parquet": lambda: dlt.destinations.filesystem(str(folder / "lake")),
            "postgres": lambda: dlt.destinations.postgres(target),
        }
        self.pipeline = dlt.pipeline(
            pipeline_name=f"orders_{name}",
            pipelines_dir=str(folder / "pipelines"),
            destination=destinations[destination](),
            dataset_name="raw",
        )

    def sync(self) -> int:
        """Runs the pipeline once. Returns the number of loaded rows."""
        table = sql_table(
            credentials=self.url,
            table=_TABLE,
            incremental=dlt.sources.incremental("updated_at", lag=self.lag),
            write_disposition=self.disposition,
        )
        self.pipeline.run(table, loader_file_format=self.format)
        normalized = self.pipeline.last_trace.last_normalize_info
        return int(normalized.row_counts.get(_TABLE, 0)) if normalized else 0

    def versions(self) -> list[list[Any]]:
        """Returns all rows in the destination."""
        with self.pipeline.sql_client() as client:
            rows = client.execute_sql(
                f"select id, amount, note, epoch_us(updated_at), _dlt_load_id from {_TABLE}"
            )
        return [
            [key, [amount, note], cursor, [cursor, float(load)]]
            for key, amount, note, cursor, load in rows or []
        ]


def open_tools(request: Mapping[str, Any]) -> Mapping[str, Tool]:
    """Returns the tools that a request names."""
    account = f"{request['user']}:{request['password']}"
    return {
        name: Dlt(
            Path(request["folder"]),
            *_KINDS[name],
            f"postgresql+psycopg2://{account}@127.0.0.1:{port}/{request['database']}",
            f"postgresql://{account}@127.0.0.1:{port}/{request.get('target')}",
        )
        for name, port in request["ports"].items()
    }


if __name__ == "__main__":
    serve(open_tools)

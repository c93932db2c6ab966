"""Runs the code blocks of docs/readers.md in a separate process; not a test.

Reads a JSON list of code blocks, each of which assigns its result to `rows`. Prints the number of
rows and the sums of two columns of each result.
"""

import json
import sys
from typing import Any


def _install_extensions() -> None:
    """Installs DuckDB's extensions from packages, so that `install` downloads nothing."""
    try:
        from duckdb_extensions import import_extension
    except ImportError:
        return
    for name in ("avro", "httpfs", "iceberg", "postgres"):
        import_extension(name)


def _sums(rows: Any) -> list[str]:
    if hasattr(rows, "selectExpr"):  # Spark
        found = tuple(rows.selectExpr("count(*)", "sum(id)", "sum(total)").first())
    elif hasattr(rows, "fetchone"):  # DuckDB
        found = rows.aggregate("count(*), sum(id), sum(total)").fetchone()
    else:
        import pyarrow.compute as pc

        found = (rows.num_rows, *(pc.sum(rows[name]).as_py() for name in ("id", "total")))
    return [str(value) for value in found]


if __name__ == "__main__":
    _install_extensions()
    results = []
    for block in json.load(sys.stdin):
        if "duckdb" in sys.modules:  # each block attaches its database under the same name
            sys.modules["duckdb"].set_default_connection(sys.modules["duckdb"].connect())
        names: dict[str, Any] = {}
        exec(block, names)
        results.append(_sums(names["rows"]))
    print(json.dumps(results))

"""Files that other systems write to a folder: one table, in one format."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from benchmarks.shop import NOTHING, Sums

FILES = 4
FORMATS = {"parquet": "Parquet", "csv": "CSV", "json": "JSON lines"}
_FIRST = 1_735_689_600  # 2025-01-01, in seconds


@dataclass
class DroppedFiles:
    """Four files with six columns, whose times are an hour apart.

    Args:
        rows: the total number of rows in all files.
    """

    folder: Path
    form: str
    rows: int

    def __post_init__(self) -> None:
        self.names = ["orders"]

    def create(self) -> DroppedFiles:
        """Writes the files."""
        place = self.folder / self.names[0]
        place.mkdir(parents=True)
        for number in range(FILES):
            file = place / f"{number}.{self.form}"
            _write(self._rows(number), file)
            os.utime(file, (_FIRST + 3600 * number,) * 2)
        return self

    def _rows(self, number: int) -> pa.Table:
        keys = range(number, self.rows, FILES)
        return pa.table(
            {
                "order_id": pa.array(keys, pa.int64()),
                "customer_id": pa.array([key % 1000 for key in keys], pa.int64()),
                "status": [f"status {key % 5}" for key in keys],
                "amount": pa.array([key % 10_000 / 100 for key in keys]),
                "note": [hashlib.md5(str(key).encode()).hexdigest() for key in keys],
                "placed": [f"2025-01-01T00:{key // 60 % 60:02}:{key % 60:02}Z" for key in keys],
            }
        )

    def source(self) -> Mapping[str, Any]:
        """Returns the connector and its options, as in a spec."""
        options = {name: {"primary_key": "order_id"} for name in self.names}
        own = {"path": str(self.folder), "format": self.form, "table_options": options}
        return {"path": "file", "spec": own}

    def secrets(self) -> Mapping[str, str]:
        """Returns the variables that the spec names."""
        return {}

    def sums(self) -> Sums:
        """Returns the sums over all rows."""
        keys = range(self.rows)
        found = Sums(
            self.rows, sum(keys), sum(k % 1000 for k in keys), sum(k % 10_000 for k in keys)
        )
        return NOTHING + found


def _write(rows: pa.Table, file: Path) -> None:
    if file.suffix == ".parquet":
        pq.write_table(rows, file)
    elif file.suffix == ".csv":
        pc.write_csv(rows, file, pc.WriteOptions(quoting_style="needed"))
    else:
        with file.open("w") as lines:
            lines.writelines(f"{json.dumps(row)}\n" for row in rows.to_pylist())

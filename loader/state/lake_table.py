"""State in the destination itself: an append-only Iceberg table, CloudQuery's columns first."""

from __future__ import annotations

import datetime as dt

from loader.lake import Lake
from loader.state import StateBackend, StateRow

SCHEMA = "key string, value string, version bigint, updated_at timestamp"


class LakeState(StateBackend):
    """Rows of ``<schema>._cq_state``.

    Args:
        lake: the destination.
        table: the table's name, ``backend_options.table_name``.
    """

    def __init__(self, lake: Lake, table: str) -> None:
        self.lake = lake
        self.table = table

    def rows(self, key: str | None = None) -> list[StateRow]:
        if not self.lake.exists(self.table):
            return []
        where = " where key = :key" if key is not None else ""
        found = self.lake.spark.sql(
            f"""
            select key, value, coalesce(version, 0) as version, cast(updated_at as string) as at
            from {self.lake.name(self.table)}{where}
            order by key, version desc
            """,
            args={"key": key} if key is not None else None,
        ).collect()
        return [StateRow(row["key"], row["value"], row["version"], row["at"]) for row in found]

    def newest(self, key: str) -> StateRow | None:
        if not self.lake.exists(self.table):
            return None
        [row] = self.lake.spark.sql(
            f"""
            select max_by(struct(value, coalesce(version, 0) as version), coalesce(version, 0)) as r
            from {self.lake.name(self.table)}
            where key = :key
            """,
            args={"key": key},
        ).collect()
        return StateRow(key, row["r"]["value"], row["r"]["version"]) if row["r"] else None

    def append(self, row: StateRow) -> None:
        now = dt.datetime.now(dt.timezone.utc)
        frame = self.lake.spark.sql(
            """
            select :key as key, :value as value, cast(:version as bigint) as version,
                cast(:at as timestamp) as updated_at
            """,
            args={
                "key": row.key,
                "value": row.value,
                "version": row.version,
                "at": now.isoformat(),
            },
        )
        self.lake.append(self.table, frame)

    def prepare(self) -> None:
        """Makes the table, where it is not there yet."""
        if not self.lake.exists(self.table):
            self.lake.create(self.table, SCHEMA)

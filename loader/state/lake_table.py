"""State in the destination itself: an append-only Iceberg table, CloudQuery's columns first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from filelock import Timeout
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from loader.errors import StateError
from loader.failures import clear
from loader.lake import Lake
from loader.state import StateBackend, StateRow, taken
from loader.state.value import moment

SCHEMA = "key string, value string, version bigint, updated_at timestamp"


class LakeState(StateBackend):
    """Rows of ``<schema>._cq_state``.

    Two writers of one version are kept apart by a file lock where they share a folder. Iceberg
    itself takes both: then the safe one counts, see :func:`loader.state.value.settled`.

    Args:
        lake: the destination.
        table: the table's name, ``backend_options.table_name``.
    """

    def __init__(self, lake: Lake, table: str) -> None:
        self.lake = lake
        self.table = table
        self.where = f"state table {lake.schema}.{table}"

    def prepare(self) -> None:
        with self._told():
            self.lake.prepare()
            if not self.lake.exists(self.table):
                self.lake.create(self.table, SCHEMA)

    def rows(self, key: str | None = None) -> list[StateRow]:
        where = " where key = :key" if key is not None else ""
        return self._query(
            f"""
            select key, value, coalesce(version, 0) as version, cast(updated_at as string) as at
            from {self.lake.name(self.table)}{where}
            order by key, coalesce(version, 0) desc, updated_at desc
            """,
            {"key": key} if key is not None else {},
        )

    def latest(self, key: str) -> list[StateRow]:
        top = self._query(
            f"""
            select key, value, coalesce(version, 0) as version, cast(updated_at as string) as at
            from {self.lake.name(self.table)}
            where key = :key
            order by coalesce(version, 0) desc
            limit 2
            """,
            {"key": key},
        )
        alone = len(top) < 2 or top[0].version > top[1].version
        return top[:1] if alone else super().latest(key)

    def append(self, rows: Sequence[StateRow]) -> None:
        if not rows:
            return
        with self._told(), self.lake.lock(self.table):
            for row in rows:
                if self._there(row):
                    raise taken(row, self.where)
            self._values(rows).writeTo(self.lake.name(self.table)).append()

    def prune(self, floors: Mapping[str, int]) -> None:
        if not floors:
            return
        below, given = [], dict[str, Any]()
        for i, (key, floor) in enumerate(floors.items()):
            below.append(f"(key = :key{i} and coalesce(version, 0) < :floor{i})")
            given |= {f"key{i}": key, f"floor{i}": floor}
        with self._told(), self.lake.lock(self.table):
            self.lake.spark.sql(
                f"delete from {self.lake.name(self.table)} where {' or '.join(below)}", args=given
            )

    def _values(self, rows: Sequence[StateRow]) -> DataFrame:
        listed, given = [], dict[str, Any]()
        for i, row in enumerate(rows):
            listed.append(f"(:k{i}, :v{i}, cast(:n{i} as bigint), cast(:t{i} as timestamp))")
            at = moment(row.updated_at).isoformat()
            given |= {f"k{i}": row.key, f"v{i}": row.value, f"n{i}": row.version, f"t{i}": at}
        values = f"values {', '.join(listed)} as t (key, value, version, updated_at)"
        return self.lake.spark.sql(f"select * from {values}", args=given).coalesce(1)

    def _there(self, row: StateRow) -> bool:
        same = "key = :key and coalesce(version, 0) = :version"
        sql = f"select 1 from {self.lake.name(self.table)} where {same} limit 1"
        given = {"key": row.key, "version": row.version}
        return bool(self.lake.spark.sql(sql, args=given).collect())

    def _query(self, sql: str, given: dict[str, Any]) -> list[StateRow]:
        with self._told():
            if not self.lake.exists(self.table):
                return []
            found = self.lake.spark.sql(sql, args=given).collect()
            return [StateRow(row["key"], row["value"], row["version"], row["at"]) for row in found]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Timeout:
            raise StateError(
                "another process has been writing it for a minute",
                where=self.where,
                remedy="Run again: what this run published is recorded by the next",
            ) from None
        except (Py4JError, PySparkException, OSError) as problem:
            found = clear(problem, self.where)
            raise StateError(
                found.what,
                where=self.where,
                remedy=found.remedy or "`loader state rebuild` makes it anew where it is damaged",
            ) from problem

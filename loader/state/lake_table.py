"""A state backend that stores its rows in an append-only Iceberg table of the destination."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from filelock import Timeout
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loader.errors import DamagedError, JavaEndedError, StateError
from loader.lake.iceberg_rows import Records
from loader.lake.lake import Lake
from loader.lake.locks import lock_table
from loader.lake.system_tables import append_and_note, describe_remedy, get_cache
from loader.rows.literal import text_literal
from loader.spark.error_translation import translate_error
from loader.state import StateBackend, StateRow, build_second_writer_error
from loader.state.value import format_time, parse_time

SCHEMA = "key string, value string, version bigint, updated_at timestamp"
_COLUMNS = ("key", "value", "version", "updated_at")
# Each sync adds a file until the table is compacted. If there are more files than this, Spark reads
# the table, because it reads files in parallel.
_FEW = 500
# If there are at least this many keys, the table is read once instead of once per key.
_MANY = 4


class LakeState(StateBackend):
    """A state backend that stores its rows in the table ``<schema>._cq_state``.

    If two writers share a lock folder, a file lock prevents them from writing the same version.
    Otherwise Iceberg accepts both rows, and the safer value is used
    (:func:`loader.state.value.choose_effective_row`).

    Args:
        table: the table's name (``backend_options.table_name``).
    """

    def __init__(self, lake: Lake, table: str) -> None:
        self.lake = lake
        self.table = table
        self.where = f"state table {lake.schema}.{table}"
        self.remedy = describe_remedy("All syncs that keep their cursors there", table)

    def prepare(self) -> None:
        with self._translate_errors():
            if self.lake.find_records(self.table) is None:
                self.lake.prepare()
                self.lake.create(self.table, SCHEMA)

    def rows(self, key: str | None = None) -> list[StateRow]:
        where = f" where key = {text_literal(key)}" if key is not None else ""
        return self._query(
            f"""
            select key, value, coalesce(version, 0) as version, cast(updated_at as string) as at
            from {self.lake.name(self.table)}{where}
            order by key, coalesce(version, 0) desc, updated_at desc
            """
        )

    def latest(self, key: str) -> list[StateRow]:
        return self._read_latest([key])[key]

    def latest_by_key(self, keys: Sequence[str]) -> dict[str, list[StateRow] | StateError]:
        return {**self._read_latest(keys)}

    def _read_latest(self, keys: Sequence[str]) -> dict[str, list[StateRow]]:
        with self._translate_errors():
            records = self.lake.find_records(self.table)
            if records is None:
                return {key: [] for key in keys}
            cache = get_cache(records.handle)
            missing = [key for key in keys if key not in cache]
            are_many = len(missing) >= _MANY
            if missing and (records.files() > _FEW or (are_many and records.rows() > _FEW)):
                cache |= self._query_latest(missing)
            elif missing:
                conditions = [{}] if are_many else [{"key": key} for key in missing]
                stored = (records.select(_COLUMNS, equal, {}) for equal in conditions)
                by_key: dict[str, list[StateRow]] = {key: [] for key in missing}
                for row in map(_parse_row, chain.from_iterable(stored)):
                    if row.key in by_key:
                        by_key[row.key].append(row)
                cache |= {key: _newest(rows) for key, rows in by_key.items()}
            return {key: list(cache[key]) for key in keys}

    def append(self, rows: Sequence[StateRow]) -> None:
        if not rows:
            return
        timed_rows = [
            replace(row, updated_at=format_time(parse_time(row.updated_at))) for row in rows
        ]
        values = [{**asdict(row), "updated_at": parse_time(row.updated_at)} for row in timed_rows]

        def update_cache(cache: dict[Any, Any]) -> None:
            for row in timed_rows:
                if row.key in cache:
                    cache[row.key] = _newest([*cache[row.key], row])

        with self._translate_errors(), lock_table(self.lake, self.table):
            records = self.lake.records(self.table)
            self._check_free(records, rows)
            append_and_note(records.handle, lambda: records.append(values), update_cache)

    def prune(self, floors: Mapping[str, int]) -> None:
        if not floors:
            return
        below = " or ".join(
            f"(key = {text_literal(key)} and coalesce(version, 0) < {floor})"
            for key, floor in floors.items()
        )
        with self._translate_errors(), lock_table(self.lake, self.table):
            self.lake.fresh(self.table)  # raises an error if the warehouse was copied
            self.lake.spark.sql(f"delete from {self.lake.name(self.table)} where {below}")

    def _check_free(self, records: Records, rows: Sequence[StateRow]) -> None:
        """Raises an error if a version already exists. A null version counts as 0."""
        cache = get_cache(records.handle)
        if all(row.key in cache and _highest_version(cache[row.key]) < row.version for row in rows):
            return
        if len(rows) < _MANY or records.rows() > _FEW:
            stored = [
                values
                for row in rows
                for version in ((row.version, None) if row.version == 0 else (row.version,))
                for values in records.select(_COLUMNS, {"key": row.key, "version": version}, {})
            ]
        else:
            stored = list(records.select(_COLUMNS, {}, {}))
        existing = {(values["key"], values["version"] or 0) for values in stored}
        for row in rows:
            if (row.key, row.version) in existing:
                raise build_second_writer_error(row, self.where)

    def _query_latest(self, keys: Sequence[str]) -> dict[str, list[StateRow]]:
        rows = self._query(
            f"""
            with ranked as (
                select
                    *,
                    rank() over (partition by key order by coalesce(version, 0) desc) as newness
                from {self.lake.name(self.table)}
                where key in ({", ".join(map(text_literal, keys))})
            )

            select key, value, coalesce(version, 0) as version, cast(updated_at as string) as at
            from ranked
            where newness = 1
            order by updated_at desc
            """
        )
        return {key: [row for row in rows if row.key == key] for key in keys}

    def _query(self, sql: str) -> list[StateRow]:
        with self._translate_errors():
            if not self.lake.exists(self.table):
                return []
            self.lake.fresh(self.table)  # raises an error if the warehouse was copied or moved
            rows = self.lake.spark.sql(sql).collect()
            return [StateRow(row["key"], row["value"], row["version"], row["at"]) for row in rows]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except Timeout:
            raise StateError(
                "another process has locked it for a minute",
                where=self.where,
                remedy="Run again: the next run records what this one published",
            ) from None
        except (Py4JError, PySparkException, OSError) as problem:
            readable = translate_error(problem, self.where)
            if isinstance(readable, JavaEndedError):
                raise readable from problem
            remedy = self.remedy if isinstance(readable, DamagedError) else readable.remedy
            raise StateError(
                readable.what,
                where=self.where,
                remedy=remedy
                or "If another program has created or changed it, use another table for the state",
            ) from problem


def _newest(rows: Iterable[StateRow]) -> list[StateRow]:
    """Returns the rows of the highest version, last written first."""
    all_rows = list(rows)
    newest = max((row.version for row in all_rows), default=0)
    highest = [row for row in all_rows if row.version == newest]
    return sorted(highest, key=lambda row: row.updated_at or "", reverse=True)


def _highest_version(newest: Sequence[StateRow]) -> int:
    return newest[0].version if newest else -1


def _parse_row(values: Mapping[str, Any]) -> StateRow:
    at = values["updated_at"]
    return StateRow(
        values["key"],
        values["value"],
        values["version"] or 0,
        format_time(at) if isinstance(at, dt.datetime) else at,
    )

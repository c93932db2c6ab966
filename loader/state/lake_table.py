"""State in the destination itself: an append-only Iceberg table, CloudQuery's columns first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from filelock import Timeout
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loader.errors import DamagedError, JavaEndedError, StateError
from loader.lake.iceberg_rows import Records
from loader.lake.lake import Lake
from loader.lake.locks import lock_table
from loader.lake.snapshot_cache import append_and_note, get_cache
from loader.lake.system_tables import describe_remedy
from loader.rows.literal import text_literal
from loader.spark.error_translation import clear
from loader.state import StateBackend, StateRow, second_writer_error
from loader.state.value import format_time, parse_time

SCHEMA = "key string, value string, version bigint, updated_at timestamp"
_COLUMNS = ("key", "value", "version", "updated_at")
# With more files, a Spark job is faster: state that is never compacted gets one file per sync.
_FEW = 500
# So many keys are read at once, with all others, rather than one by one.
_MANY = 4


class LakeState(StateBackend):
    """Rows of ``<schema>._cq_state``.

    A file lock keeps two writers of one version apart if they share a folder. Iceberg itself
    accepts both: then the safe one counts, see :func:`loader.state.value.choose_effective_row`.

    Args:
        lake: the destination.
        table: the table's name, ``backend_options.table_name``.
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
        with self._translate_errors():
            records = self.lake.find_records(self.table)
            if records is None:
                return []
            known = get_cache(records.handle)
            if key not in known:
                few = records.files() <= _FEW  # Spark reads many side by side
                found = map(_row, records.select(_COLUMNS, {"key": key}, {})) if few else None
                known[key] = _newest(found) if found is not None else super().latest(key)
            return list(known[key])

    def latest_by_key(self, keys: Sequence[str]) -> dict[str, list[StateRow] | StateError]:
        if len(keys) < _MANY:
            return super().latest_by_key(keys)
        with self._translate_errors():
            records = self.lake.find_records(self.table)
            if records is None:
                return {key: [] for key in keys}
            known = get_cache(records.handle)
            missing = [key for key in keys if key not in known]
            if missing and (records.rows() > _FEW or records.files() > _FEW):
                known |= self._top(missing)
            elif missing:
                by_key: dict[str, list[StateRow]] = {key: [] for key in missing}
                for row in map(_row, records.select(_COLUMNS, {}, {})):
                    if row.key in by_key:
                        by_key[row.key].append(row)
                known |= {key: _newest(rows) for key, rows in by_key.items()}
            return {key: list(known[key]) for key in keys}

    def append(self, rows: Sequence[StateRow]) -> None:
        if not rows:
            return
        stamped = [replace(row, updated_at=format_time(parse_time(row.updated_at))) for row in rows]
        values = [{**asdict(row), "updated_at": parse_time(row.updated_at)} for row in stamped]

        def noted(known: dict[Any, Any]) -> None:
            for row in stamped:
                if row.key in known:
                    known[row.key] = _newest([*known[row.key], row])

        with self._translate_errors(), lock_table(self.lake, self.table):
            records = self.lake.records(self.table)
            self._check_free(records, rows)
            append_and_note(records.handle, lambda: records.append(values), noted)

    def prune(self, floors: Mapping[str, int]) -> None:
        if not floors:
            return
        below = " or ".join(
            f"(key = {text_literal(key)} and coalesce(version, 0) < {floor})"
            for key, floor in floors.items()
        )
        with self._translate_errors(), lock_table(self.lake, self.table):
            self.lake.fresh(self.table)  # a copy would write into the original's folder
            self.lake.spark.sql(f"delete from {self.lake.name(self.table)} where {below}")

    def _check_free(self, records: Records, rows: Sequence[StateRow]) -> None:
        """Refuses versions that are there already; a null one counts as 0."""
        known = get_cache(records.handle)
        if all(row.key in known and _version(known[row.key]) < row.version for row in rows):
            return
        if len(rows) < _MANY or records.rows() > _FEW:
            found = [
                values
                for row in rows
                for version in ((row.version, None) if row.version == 0 else (row.version,))
                for values in records.select(_COLUMNS, {"key": row.key, "version": version}, {})
            ]
        else:
            found = list(records.select(_COLUMNS, {}, {}))
        there = {(values["key"], values["version"] or 0) for values in found}
        for row in rows:
            if (row.key, row.version) in there:
                raise second_writer_error(row, self.where)

    def _top(self, keys: Sequence[str]) -> dict[str, list[StateRow] | StateError]:
        """The rows of each key's highest version, by one query."""
        rows = self._query(
            f"""
            with ranked as (
                select
                    *,
                    rank() over (partition by key order by coalesce(version, 0) desc) as place
                from {self.lake.name(self.table)}
                where key in ({", ".join(map(text_literal, keys))})
            )

            select key, value, coalesce(version, 0) as version, cast(updated_at as string) as at
            from ranked
            where place = 1
            order by updated_at desc
            """
        )
        return {key: [row for row in rows if row.key == key] for key in keys}

    def _query(self, sql: str) -> list[StateRow]:
        with self._translate_errors():
            if not self.lake.exists(self.table):
                return []
            self.lake.fresh(self.table)  # says so if the warehouse was copied or moved
            found = self.lake.spark.sql(sql).collect()
            return [StateRow(row["key"], row["value"], row["version"], row["at"]) for row in found]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except Timeout:
            raise StateError(
                "another process has been writing to it for a minute",
                where=self.where,
                remedy="Run again: the next run records what this one published",
            ) from None
        except (Py4JError, PySparkException, OSError) as problem:
            found = clear(problem, self.where)
            if isinstance(found, JavaEndedError):
                raise found from problem
            remedy = self.remedy if isinstance(found, DamagedError) else found.remedy
            raise StateError(
                found.what,
                where=self.where,
                remedy=remedy
                or "If another program has made or changed it, name another table for the state",
            ) from problem


def _newest(rows: Iterable[StateRow]) -> list[StateRow]:
    """The rows of the highest version, youngest first."""
    known = list(rows)
    newest = max((row.version for row in known), default=0)
    top = [row for row in known if row.version == newest]
    return sorted(top, key=lambda row: row.updated_at or "", reverse=True)


def _version(newest: Sequence[StateRow]) -> int:
    return newest[0].version if newest else -1


def _row(values: Mapping[str, Any]) -> StateRow:
    at = values["updated_at"]
    return StateRow(
        values["key"],
        values["value"],
        values["version"] or 0,
        format_time(at) if isinstance(at, dt.datetime) else at,
    )

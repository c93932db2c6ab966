"""Reads, damages and compares copies that other tools load, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.verdict import Version
from benchmarks.writers import TABLE
from tests.services import Database, MariaDb

_EPOCH = dt.datetime.fromtimestamp(0, dt.timezone.utc)
Truth = dict[str, dict[int, tuple[str, ...]]]
"""The keys that differ, for each kind of difference, with the differing columns of stale rows."""


class Copy(Protocol):
    """A copy of the table, read and changed without Spark."""

    @property
    def arguments(self) -> Sequence[str]:
        """The arguments of `loader audit`."""

    @property
    def keeps_versions(self) -> bool:
        """Whether the copy contains old versions of rows."""

    def versions(self) -> list[Version]:
        """Returns all rows."""

    def damage(self, lost: set[int], changed: set[int], doubled: set[int]) -> None:
        """Deletes the rows of some keys; changes or doubles the newest version of others."""


@dataclass
class ParquetCopy:
    """Files in which a tool keeps all versions of rows.

    Attributes:
        order: the columns that order versions, before the cursor.
    """

    folder: Path
    order: tuple[str, ...]
    options: tuple[str, ...] = ()
    keeps_versions = True

    @property
    def arguments(self) -> Sequence[str]:
        return (str(self.folder), "--versions", *self.options)

    def versions(self) -> list[Version]:
        return [self._version(row, file) for file in self._files() for row in _read(file)]

    def damage(self, lost: set[int], changed: set[int], doubled: set[int]) -> None:
        newest: dict[int, Version] = {}
        for version in self.versions():
            if version.key not in newest or version.order > newest[version.key].order:
                newest[version.key] = version
        for file in self._files():
            rows = []
            for row in _read(file):
                is_newest = self._version(row, file) == newest[row["id"]]
                if row["id"] in changed and is_newest:
                    row["amount"] += 1000
                rows += [row] * (2 if row["id"] in doubled else 1) * (row["id"] not in lost)
            schema = pq.read_schema(file)
            # Spark's times have the type INT96, which pyarrow reads as nanoseconds.
            is_int96 = pa.timestamp("ns") in schema.types
            table = pa.Table.from_pylist(rows, schema)
            pq.write_table(table, file, use_deprecated_int96_timestamps=is_int96)
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.parquet"))

    def _version(self, row: Mapping[str, Any], file: Path) -> Version:
        found = {**row, "sync": int(file.parent.name.partition("=")[2] or 0)}
        cursor = read_micros(row["updated_at"])
        order = (*(found[name] for name in self.order), cursor)
        return Version(row["id"], (row["amount"], row["note"]), cursor, order)


@dataclass
class TableCopy:
    """A table with one row for each key, in another database."""

    database: Database
    schema: str
    keeps_versions = False

    @property
    def arguments(self) -> Sequence[str]:
        return (f"{self.schema}.{TABLE}", "--copy-url", build_url(self.database))

    def versions(self) -> list[Version]:
        rows = self.database.query(
            "select id, amount, note, (extract(epoch from updated_at) * 1000000)::bigint "
            f"from {self.schema}.{TABLE}"
        )
        return [Version(key, (amount, note), at, (at,)) for key, amount, note, at in rows]

    def damage(self, lost: set[int], changed: set[int], doubled: set[int]) -> None:
        table = f"{self.schema}.{TABLE}"
        self.database.execute(
            f"insert into {table} (id, amount, note, updated_at, _dlt_load_id, _dlt_id) "
            f"select id, amount, note, updated_at, _dlt_load_id, _dlt_id || 'x' from {table} "
            f"where id in {list_keys(doubled)}",
            f"update {table} set amount = amount + 1000 where id in {list_keys(changed)}",
            f"delete from {table} where id in {list_keys(lost)}",
        )


def compare(source: Sequence[Version], copy: Sequence[Version], keeps_versions: bool) -> Truth:
    """Compares all rows."""
    rows = {row.key: row for row in source}
    newest: dict[int, Version] = {}
    found: Truth = {"lost": {}, "stale": {}, "extra": {}, "doubled": {}}
    for version in copy:
        if version.key not in newest:
            newest[version.key] = version
            continue
        if not keeps_versions:
            found["doubled"][version.key] = ()
        newest[version.key] = max(version, newest[version.key], key=lambda each: each.order)
    for key, row in rows.items():
        if key not in newest:
            found["lost"][key] = ()
        elif newest[key][:3] != row[:3] and key not in found["doubled"]:
            has = newest[key]
            names = ("amount", "note", "updated_at")
            pairs = zip((*row.payload, row.cursor), (*has.payload, has.cursor), strict=True)
            differing = [n for n, (a, b) in zip(names, pairs, strict=True) if a != b]
            found["stale"][key] = tuple(differing)
    found["extra"] = dict.fromkeys(newest.keys() - rows.keys(), ())
    return found


def build_url(database: Database) -> str:
    """Returns the database's URL in the form that `loader audit` accepts."""
    kind = "mariadb" if isinstance(database.server, MariaDb) else "postgresql"
    account = f"{database.user}:{database.password}"
    return f"{kind}://{account}@127.0.0.1:{database.server.port}/{database.name}"


def list_keys(keys: set[int]) -> str:
    """Returns the keys as an SQL list."""
    return f"({', '.join(map(str, sorted(keys)))})"


def read_micros(at: dt.datetime) -> int:
    """Returns the microseconds since 1970. A time without a zone is treated as UTC."""
    since = at.replace(tzinfo=at.tzinfo or dt.timezone.utc) - _EPOCH
    return since // dt.timedelta(microseconds=1)


def _read(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
    return rows

"""Finds the tables that dbt models build from raw tables, and the batches that they have merged.

The materializations of the dbt package store these facts as JSON in the table property
``strandline.watermark``: the kind of table, the newest merged batch of each raw table, the key and
the cursor (`macros/materializations/_watermark.sql`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException

from loader.errors import TableError, sentence
from loader.lake.lake import Lake
from loader.property_codec import decode_property
from loader.rows.literal import text_literal
from loader.rows.version_order import quote_name

WATERMARK = "strandline.watermark"
HISTORY = "history"
UNION = "_cq_table"
"""The column that names a row's raw table, in models that read several raw tables."""


@dataclass(frozen=True)
class Dependent:
    """A latest table or a history that a dbt model builds.

    Attributes:
        name: ``schema.table``.
        history: whether the table shows all versions, so that a full rebuild needs them in the raw
            table.
        raw: the raw tables that the model reads, as ``schema.table`` in lower case.
        batches: maps each raw table to the newest batch that is known to be merged.
        key: the key columns of the model, without :data:`UNION`.
    """

    name: str
    history: bool
    raw: frozenset[str]
    batches: Mapping[str, int]
    key: tuple[str, ...]
    cursor: str | None

    def reads(self, raw: str) -> bool:
        return raw.lower() in self.raw

    def find_merged_batch(self, raw: str) -> int:
        """Returns the newest batch of `raw` (``schema.table``) that is known to be merged, or 0."""
        return self.batches.get(raw.lower(), 0)

    def agrees(self, key: tuple[str, ...], cursor: str | None) -> bool:
        """Returns whether the model needs only the newest versions of each `key`, by `cursor`.

        A latest table may use a subset of the key columns: the newest version of the shorter key is
        also the newest version of some full key. A history must use the same key, because
        compaction removes versions that equal the previous version of the key.
        """
        model_key, raw_key = ({name.lower() for name in names} for names in (self.key, key))
        if not model_key or (self.cursor or "").lower() != (cursor or "").lower():
            return False
        return model_key == raw_key if self.history else model_key <= raw_key


class UnreadableTableError(TableError):
    """Raised for an unreadable table, because it may be a latest table or a history."""


def find_dependents(lake: Lake, excluded: Collection[str] = ()) -> list[Dependent]:
    """Returns all latest tables and histories in the lake's catalog.

    Args:
        excluded: tables to skip, as `schema.table` in lower case.

    Raises:
        UnreadableTableError: if a table cannot be read.
    """
    dependents = []
    for namespace in _list_namespaces(lake, quote_name(lake.catalog)):
        for row in lake.spark.sql(f"show tables in {namespace}").collect():
            full_name = f"{row['namespace']}.{row['tableName']}".lower()
            if not row["isTemporary"] and full_name not in excluded:
                dependent = _read_dependent(lake, namespace, row["namespace"], row["tableName"])
                dependents += [dependent] if dependent else []
    return sorted(dependents, key=lambda each: each.name)


def _list_namespaces(lake: Lake, parent: str) -> Iterator[str]:
    for row in lake.spark.sql(f"show namespaces in {parent}").collect():
        name = f"{quote_name(lake.catalog)}.{row['namespace']}"
        yield name
        yield from _list_namespaces(lake, name)


def _read_dependent(lake: Lake, namespace: str, schema: str, table: str) -> Dependent | None:
    """Reads a table's watermark. Returns None if no model of the dbt package builds the table."""
    name, qualified = f"{schema}.{table}", f"{namespace}.{quote_name(table)}"
    try:
        listed = lake.spark.sql(f"show tblproperties {qualified}").collect()
        properties = {row["key"]: row["value"] for row in listed}
        if WATERMARK not in properties:
            return None
        watermark: Any = json.loads(decode_property(properties[WATERMARK]))
        return Dependent(
            name,
            watermark["kind"] == HISTORY,
            frozenset(str(table["name"]).lower() for table in watermark["tables"]),
            _read_merged_batches(lake, qualified, watermark),
            tuple(name for name in watermark["key"] if name.lower() != UNION),
            watermark["cursor"],
        )
    except (PySparkException, Py4JError, ValueError, LookupError, TypeError) as problem:
        if isinstance(problem, AnalysisException) and "NOT_FOUND" in str(problem):
            return None  # the table was dropped after it was listed
        raise UnreadableTableError(
            f"it cannot be read, and may be a latest table or history: {sentence(problem)}",
            where=f"table {name}",
            remedy="No row version was removed. Repair or drop it, or let this user read it",
        ) from problem


def _read_merged_batches(lake: Lake, qualified: str, watermark: dict[str, Any]) -> dict[str, int]:
    """Returns the newest merged batch of each raw table.

    Reads the table's rows if the table has changed since the watermark was written.
    """
    stored = {str(table["name"]).lower(): int(table["batch"]) for table in watermark["tables"]}
    refs = lake.spark.sql(
        f"select cast(snapshot_id as string) as id from {qualified}.refs where name = 'main'"
    ).collect()
    if refs and refs[0]["id"] == watermark["snapshot"]:
        return stored
    columns = lake.spark.table(qualified).columns
    if "_cq_batch" not in columns:
        return {}
    name = UNION if UNION in columns else text_literal(next(iter(stored)))
    rows = lake.spark.sql(
        f"select lower({name}) as name, max(_cq_batch) as batch from {qualified} group by 1"
    ).collect()
    return {row["name"]: int(row["batch"] or 0) for row in rows if row["name"] is not None}

"""Finds the tables that dbt models build from raw tables, and which versions they still need.

The materializations of the dbt package record this in table properties: ``strandline.watermark``
(JSON: the merged batch of each relation, the key, the cursor) and ``strandline.materialization``.
The JSON is hex-encoded because Spark hides values that contain `url`, `token` or other words that
may indicate a secret.
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
MATERIALIZATION = "strandline.materialization"
HISTORY = "deduped_history"
UNION = "_cq_table"
"""The column with the raw table of a row, in models that read several raw tables."""


@dataclass(frozen=True)
class Dependent:
    """A snapshot table or a history that a dbt model builds.

    Attributes:
        name: ``schema.table``.
        history: whether it shows all versions, so that a full rebuild needs all of them.
        raw: the relations that the model reads, ``schema.table`` in lower case; None if this was
            not recorded.
        batches: the newest batch that is certainly merged, by relation; by "" if the relations were
            not recorded.
        key: the key columns of the model, without :data:`UNION`.
        cursor: the cursor column of the model.
    """

    name: str
    history: bool
    raw: frozenset[str] | None
    batches: Mapping[str, int]
    key: tuple[str, ...]
    cursor: str | None

    def reads(self, raw: str) -> bool:
        """Whether the model reads, or may read, a raw table (``schema.table``)."""
        return self.raw is None or raw.lower() in self.raw

    def find_merged_batch(self, raw: str) -> int:
        """Returns the newest certainly merged batch of a raw table (``schema.table``)."""
        return self.batches.get(raw.lower(), self.batches.get("", 0))

    def agrees(self, key: tuple[str, ...], cursor: str | None) -> bool:
        """Whether the model needs only the newest versions of each `key`, ordered by `cursor`.

        A snapshot table may have a coarser key: its newest version is among the newest versions of
        a finer key. A history must have the same key: with another key, other rows are repeated.
        """
        model_key, raw_key = ({name.lower() for name in names} for names in (self.key, key))
        if not model_key or (self.cursor or "").lower() != (cursor or "").lower():
            return False
        return model_key == raw_key if self.history else model_key <= raw_key


class UnreadableTableError(TableError):
    """A table cannot be read, and may be a snapshot table or a history."""


def find_dependents(lake: Lake, excluded: Collection[str] = ()) -> list[Dependent]:
    """Returns all snapshot tables and histories in the lake's catalog.

    Args:
        excluded: tables that are certainly neither, `schema.table` in lower case.

    Raises:
        UnreadableTableError: if a table cannot be read: it may be a snapshot table or a history.
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
    """Yields all namespaces in a catalog or namespace, nested ones too."""
    for row in lake.spark.sql(f"show namespaces in {parent}").collect():
        name = f"{quote_name(lake.catalog)}.{row['namespace']}"
        yield name
        yield from _list_namespaces(lake, name)


def _read_dependent(lake: Lake, namespace: str, schema: str, table: str) -> Dependent | None:
    """Reads the properties of a table; None if no model of the dbt package builds it."""
    name, qualified = f"{schema}.{table}", f"{namespace}.{quote_name(table)}"
    try:
        listed = lake.spark.sql(f"show tblproperties {qualified}").collect()
        properties = {row["key"]: row["value"] for row in listed}
        if WATERMARK not in properties:
            return None
        watermark: Any = json.loads(decode_property(properties[WATERMARK]))
        raw = watermark.get("raw")
        return Dependent(
            name,
            properties.get(MATERIALIZATION) == HISTORY,
            frozenset(str(each).lower() for each in raw) if raw else None,
            _read_merged_batches(lake, qualified, watermark),
            tuple(name for name in watermark.get("primary_key") or () if name.lower() != UNION),
            watermark.get("cursor_field"),
        )
    except (PySparkException, Py4JError, ValueError, AttributeError) as problem:
        if isinstance(problem, AnalysisException) and "NOT_FOUND" in str(problem):
            return None  # it was dropped after it was listed
        raise UnreadableTableError(
            f"it cannot be read, and may be a snapshot of raw tables: {sentence(problem)}",
            where=f"table {name}",
            remedy="No version of a row was removed. Repair or drop it, or let this user read it",
        ) from problem


def _read_merged_batches(lake: Lake, qualified: str, watermark: dict[str, Any]) -> dict[str, int]:
    """Returns the merged batches of a watermark.

    If the table has changed since the watermark was written, reads them from the rows instead.
    """
    raw = [str(each).lower() for each in watermark.get("raw") or [""]]
    stored = watermark.get("batches") or {raw[0]: watermark.get("batch")}
    refs = lake.spark.sql(
        f"select cast(snapshot_id as string) as id from {qualified}.refs where name = 'main'"
    ).collect()
    if refs and refs[0]["id"] == watermark.get("snapshot_id"):
        return {name.lower(): int(batch or 0) for name, batch in stored.items()}
    columns = lake.spark.table(qualified).columns
    if "_cq_batch" not in columns:
        return {}
    name = UNION if UNION in columns else text_literal(raw[0])
    rows = lake.spark.sql(
        f"select lower({name}) as name, max(_cq_batch) as batch from {qualified} group by 1"
    ).collect()
    return {row["name"]: int(row["batch"] or 0) for row in rows if row["name"] is not None}

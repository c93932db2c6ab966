"""Tables that dbt models build from raw tables: which versions compaction must leave for them.

The package's materializations record it in their tables' properties: ``strandline.watermark``
(JSON: the batch of each relation that was merged, the key, the cursor) and
``strandline.materialization``. The JSON is in hexadecimal because Spark hides values that contain
`url`, `token` or other words that hint at a secret.
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
# the column by which a model that reads several raw tables distinguishes them
UNION = "_cq_table"


@dataclass(frozen=True)
class Dependent:
    """A snapshot or a history that a model builds.

    Attributes:
        name: ``schema.table``.
        history: whether it shows all versions, so that a full rebuild needs all of them.
        raw: the relations it reads, ``schema.table`` in lower case; None if it does not say.
        batches: for each of them, the newest batch that is certainly merged; under "" if it does
            not say what it reads.
        key: the key that it was built with, without the column that only tells raw tables apart.
        cursor: the cursor that it was built with.
    """

    name: str
    history: bool
    raw: frozenset[str] | None
    batches: Mapping[str, int]
    key: tuple[str, ...]
    cursor: str | None

    def reads(self, raw: str) -> bool:
        """Whether it is, or may be, built from a raw table (``schema.table``)."""
        return self.raw is None or raw.lower() in self.raw

    def find_merged_batch(self, raw: str) -> int:
        """Returns a raw table's (``schema.table``) newest batch that is certainly merged."""
        return self.batches.get(raw.lower(), self.batches.get("", 0))

    def agrees(self, key: tuple[str, ...], cursor: str | None) -> bool:
        """Whether it needs only the versions that stay of each `key`, ordered by `cursor`.

        A snapshot's key may be coarser: its newest version is among the newest of a finer key. A
        history's must be the same: with another key, other rows count as repeated.
        """
        mine, theirs = ({name.lower() for name in names} for names in (self.key, key))
        same_order = (self.cursor or "").lower() == (cursor or "").lower()
        return same_order and bool(mine) and (mine == theirs if self.history else mine <= theirs)


class Unreadable(TableError):
    """A table that cannot be read, and might be a snapshot of raw tables."""


def dependents(lake: Lake, raw: Collection[str] = ()) -> list[Dependent]:
    """Returns all snapshots and histories in the lake's catalog, built from any table.

    Args:
        raw: tables that are certainly neither, `schema.table` in lower case.

    Raises:
        Unreadable: if a table cannot be read: it might be one of them.
    """
    found = []
    for namespace in _namespaces(lake, quote_name(lake.catalog)):
        for row in lake.spark.sql(f"show tables in {namespace}").collect():
            named = f"{row['namespace']}.{row['tableName']}".lower()
            if not row["isTemporary"] and named not in raw:
                one = _dependent(lake, namespace, row["namespace"], row["tableName"])
                found += [one] if one else []
    return sorted(found, key=lambda each: each.name)


def _namespaces(lake: Lake, within: str) -> Iterator[str]:
    for row in lake.spark.sql(f"show namespaces in {within}").collect():
        name = f"{quote_name(lake.catalog)}.{row['namespace']}"
        yield name
        yield from _namespaces(lake, name)


def _dependent(lake: Lake, namespace: str, schema: str, table: str) -> Dependent | None:
    name, qualified = f"{schema}.{table}", f"{namespace}.{quote_name(table)}"
    try:
        listed = lake.spark.sql(f"show tblproperties {qualified}").collect()
        properties = {row["key"]: row["value"] for row in listed}
        if WATERMARK not in properties:
            return None
        said: Any = json.loads(decode_property(properties[WATERMARK]))
        raw = said.get("raw")
        return Dependent(
            name,
            properties.get(MATERIALIZATION) == HISTORY,
            frozenset(str(one).lower() for one in raw) if raw else None,
            _read_merged_batches(lake, qualified, said),
            tuple(name for name in said.get("primary_key") or () if name.lower() != UNION),
            said.get("cursor_field"),
        )
    except (PySparkException, Py4JError, ValueError, AttributeError) as problem:
        if isinstance(problem, AnalysisException) and "NOT_FOUND" in str(problem):
            return None  # dropped since it was listed
        raise Unreadable(
            f"it cannot be read, and might be a snapshot of raw tables: {sentence(problem)}",
            where=f"table {name}",
            remedy="No version of a row was removed. Repair or drop it, or let this user read it",
        ) from problem


def _read_merged_batches(lake: Lake, qualified: str, said: dict[str, Any]) -> dict[str, int]:
    """Returns a watermark's batches; if its table changed since, the newest among its own rows."""
    raw = [str(one).lower() for one in said.get("raw") or [""]]
    stored = said.get("batches") or {raw[0]: said.get("batch")}
    refs = lake.spark.sql(
        f"select cast(snapshot_id as string) as id from {qualified}.refs where name = 'main'"
    ).collect()
    if refs and refs[0]["id"] == said.get("snapshot_id"):
        return {name.lower(): int(batch or 0) for name, batch in stored.items()}
    columns = lake.spark.table(qualified).columns
    if "_cq_batch" not in columns:
        return {}
    name = UNION if UNION in columns else text_literal(raw[0])
    rows = lake.spark.sql(
        f"select lower({name}) as name, max(_cq_batch) as batch from {qualified} group by 1"
    ).collect()
    return {row["name"]: int(row["batch"] or 0) for row in rows if row["name"] is not None}

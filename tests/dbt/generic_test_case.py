"""A case of a generic test: raw rows, state and ledger, and the expected result of the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.dbt.rawtables import Row, sync_time

COLUMNS = "id int, part string, updated_at timestamp, amount decimal(10,2), tags map<string,int>"
KEY = {"unique_key": ["id"], "cursor_field": "updated_at"}


def version(key: int | None, day: int | None, amount: str | None = "1.00", **more: Any) -> Row:
    """Returns a row whose cursor is midnight of a day in January 2025."""
    cursor = None if day is None else sync_time(day)
    return {"id": key, "updated_at": cursor, "amount": amount, "tags": {"a": 1}, **more}


def cursor_text(day: int) -> str:
    return f"2025-01-{day + 1:02d} 00:00:00"


def state(batch: int, day: int | None) -> dict[str, Any]:
    return {
        "batch": batch,
        "cursor": None if day is None else cursor_text(day),
        "cursor_field": "updated_at",
        "cursor_type": "timestamp",
        "generation": 1,
    }


@dataclass(frozen=True)
class Case:
    """One table with one generic test.

    Args:
        test: the generic test's name; a test that covers all tables runs once for all cases.
        batches: rows per batch, from batch 1; None leaves a gap.
        status: dbt's status; for a test that covers all tables, whether its rows name this one.
        rows: all expected failing rows, column by column.
        states: state rows (version, value).
        syncs: ledger rows as keyword arguments.
        arguments: the test's arguments.
        config: the test's config.
        planted: SQL that is run on the table afterwards; `{table}` is its name.
        meta: more of the table's config.meta.strandline.
        commits: by batch, the state that its commit carries.
        source: the source in the keys of `states`; the raw rows belong to `shop`.
    """

    test: str
    batches: tuple[list[Row] | None, ...]
    status: str = "pass"
    rows: tuple[Mapping[str, Any], ...] = ()
    states: tuple[tuple[int | None, Any], ...] = ()
    syncs: tuple[Mapping[str, Any], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    planted: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    commits: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    source: str = "shop"


def window(batch: int | None, low: int | None, high: int | None, **more: Any) -> dict[str, Any]:
    """Returns a ledger row of a sync from one day's cursor to another's."""
    return {
        "batch": batch,
        "cursor_field": "updated_at",
        "cursor_type": "timestamp",
        "cursor_low": None if low is None else cursor_text(low),
        "cursor_high": None if high is None else cursor_text(high),
        **more,
    }


def whole(mode: str, low: int | None, high: int | None, **more: Any) -> dict[str, Any]:
    """Returns a ledger row of a sync that read a range of days completely and appended nothing."""
    more = {"read_from": None if low is None else cursor_text(low), **more}
    more = {"read_to": None if high is None else cursor_text(high), **more}
    return window(None, low, 9, mode=mode, **more)


def copied(batch: str, generation: str = "1") -> str:
    """Returns SQL that appends a copy of a row, in another batch."""
    return (
        "insert into {table} select id, part, updated_at, amount, tags, _cq_source_name, "
        f"_cq_sync_time, {batch}, 99, _cq_row_hash, _cq_deleted, {generation} "
        "from {table} where id = 1 and _cq_batch = 1"
    )


def later_life(batch: int) -> str:
    """Returns SQL that records the table's first batch, as after a drop and a second load."""
    return f"alter table {{table}} set tblproperties ('strandline.first-batch' = '{batch}')"


def shared_by(*sources: str) -> str:
    """Returns SQL that records the sources whose rows the table contains."""
    told = json.dumps({source: {} for source in sources}).replace("{", "{{").replace("}", "}}")
    return f"alter table {{table}} set tblproperties ('strandline.sources' = '{told}')"


ONE = [version(1, 1)]
TWO = [version(1, 1), version(2, 1)]
OTHERS = "a commit by another program"
INCIDENT = {"who": "ada", "when": "2025-03-01", "why": "erased by request"}

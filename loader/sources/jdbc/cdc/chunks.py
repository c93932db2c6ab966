"""Divides a large table's first load into pieces: ranges of its key, each a batch of its own.

If the load is broken off, the next run goes on after the last piece that is in raw, in a snapshot
of its own. So a change may have been seen by one piece's snapshot and not by another's: that is
decided by the piece that its key lies in (:mod:`loader.sources.jdbc.cdc.visibility`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loader.sources import SourceTable
from loader.sources.jdbc.cdc.columns import LoggedColumn
from loader.sources.jdbc.collation import by_bytes
from loader.sources.jdbc.connection import Connection
from loader.sources.jdbc.dialect import Dialect

Key = tuple[str, ...]
"""A key's values, as PostgreSQL writes them."""

_DATE = r"\d{4}-\d\d-\d\d"
_TIME = _DATE + r" \d\d:\d\d:\d\d(\.\d+)?"
_TEXTS = ("text", "varchar")
_ORDERED = {
    **dict.fromkeys(("int2", "int4", "int8"), r"-?\d+"),
    **dict.fromkeys(_TEXTS, r"(?s:.*)"),
    "uuid": r"[0-9a-f-]{36}",
    "date": _DATE,
    "timestamp": _TIME,
    "timestamptz": _TIME + r"\+00",
}
"""Types that PostgreSQL and Spark order alike, and the values that both read."""


@dataclass(frozen=True)
class Chunk:
    """A range of a table's key.

    Attributes:
        rows: how many rows it has; None if it is unknown.
        conditions: SQL for each reader's share of it.
        upto: its last key; None if nothing follows it.
    """

    rows: int | None
    conditions: Sequence[str]
    upto: Key | None


def divisible(
    connection: Connection, dialect: Dialect, table: SourceTable, key: Sequence[LoggedColumn]
) -> bool:
    """Returns whether a table can be loaded in pieces: Spark orders its key as the database does.

    A key that only the spec declares may not be unique, and has no index.
    """
    declared = {name.lower() for name in table.primary_key}
    if declared != {column.name.lower() for column in key}:
        return False
    native = table.ref.native
    chosen = {native.columns[index] for index in native.as_texts}
    return chosen.isdisjoint(column.name for column in key) and all(
        column.kind in _ORDERED
        and not column.array
        and (
            column.kind not in _TEXTS
            or by_bytes(connection, dialect, native.schema or "", native.table, column.name)
        )
        for column in key
    )


def piece(
    connection: Connection,
    dialect: Dialect,
    relation: str,
    key: Sequence[LoggedColumn],
    after: Key | None,
    size: int,
    readers: int,
) -> Chunk:
    """Returns the next piece.

    Args:
        relation: the quoted table.
        after: the last key of the piece before it; None for the first one.
        size: how many rows it has at most.
        readers: among how many readers it is divided.
    """
    names = ", ".join(dialect.quote(column.name) for column in key)
    texts = ", ".join(f"{dialect.quote(column.name)}::text" for column in key)

    def beyond(operator: str, values: Key) -> str:
        literals = ", ".join(
            f"{dialect.text(value)}::{column.declared}"
            for value, column in zip(values, key, strict=True)
        )
        return f"({names}) {operator} ({literals})"

    begins = "" if after is None else f"where {beyond('>', after)}"
    step = max(1, -(-size // readers))
    rows = connection.rows(
        f"""
        select _cq_n, _cq_total, {texts}
        from (
            select
                {names},
                pg_catalog.row_number() over (order by {names}) as _cq_n,
                pg_catalog.count(*) over () as _cq_total
            from (
                select {names} from {relation} {begins} order by {names} limit {size + 1}
            ) as next
        ) as numbered
        where _cq_n % {step} = 0 or _cq_n = {size} or _cq_n = _cq_total
        order by _cq_n
        """
    )
    keys = {int(n or 0): tuple(value or "" for value in values) for n, _, *values in rows}
    total = int(rows[0][1] or 0) if rows else 0
    upto = keys[size] if total > size and _plain(keys[size], key) else None
    cuts = [values for n, values in keys.items() if n < min(total, size)]
    marks = [*([after] if after is not None else []), *cuts]
    conditions = [
        *([beyond("<=", marks[0])] if after is None and marks else []),
        *(f"{beyond('>', low)} and {beyond('<=', high)}" for low, high in pairwise(marks)),
    ]
    last = [beyond(">", marks[-1])] if marks else []
    last += [beyond("<=", upto)] if upto is not None else []
    conditions.append(" and ".join(last) or "true")
    known = total <= size or upto is not None
    return Chunk(min(total, size) if known else None, conditions, upto)


def _plain(values: Key, key: Sequence[LoggedColumn]) -> bool:
    """Returns whether Spark reads a key's values as PostgreSQL means them: not infinity, not BC."""
    return all(
        re.fullmatch(_ORDERED[column.kind], value)
        for value, column in zip(values, key, strict=True)
    )

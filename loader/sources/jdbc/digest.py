"""A digest of a few rows, computed by PostgreSQL: the same rows have the same digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from loader.sources import Digest

MANY = 1000
"""Of more rows than this no digest is made: reading and comparing them costs no more."""


def digest_sql(columns: Sequence[str], rows: str) -> str:
    """Returns SQL for the number of rows and for a text that differs if the rows do.

    The text of a row tells null from an empty text, and where each column ends.

    Args:
        columns: SQL for each column, as the database has it.
        rows: what follows ``from``.
    """
    return (
        "select count(*), string_agg(hash, '' order by hash) "
        f"from (select md5(row({', '.join(columns)})::text) as hash from {rows} "
        f"limit {MANY + 1}) as few"
    )


def digest_of(rows: int, text: str | None) -> Digest | None:
    """Returns the digest of what :func:`digest_sql` found; None if there are too many rows."""
    if rows > MANY:
        return None
    return Digest(rows, hashlib.sha256((text or "").encode()).hexdigest())

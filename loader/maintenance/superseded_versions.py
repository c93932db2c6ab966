"""Selects superseded versions in a raw table, and removes them during compaction.

Compaction has a removal limit, a batch number. In the batches up to this limit, only the newest
version of each key is kept. Later batches are not changed. So the latest table can still be
computed as of the limit and as of every later batch, and a dbt model that has merged the batches up
to the limit still finds all later rows. The removal limit is

- lower than the newest batch, because state, commits and the next sync depend on the newest batch;
- at most the newest batch that every latest table and history in the catalog has merged;
- lower than the first batch within the days to keep.

Two other kinds of rows are also kept:

- rows that the next sync may reread, and rows without a cursor, because reread rows are compared
  with the raw table (:mod:`loader.rows.redelivery`);
- all rows that differ from the previous version, if a history model is built from the table. If a
  late version arrives, such a model rereads all versions of the key.

Two properties of the raw table record the removal: the limit (``strandline.compacted_to``) and the
number of removed rows (``strandline.compacted``). `as_of` rejects batches before the limit. The
``batches_complete`` test uses the properties to account for every row in the ledger (macro
`removed_rows`). Both properties are written before the rows are removed, with the number of rows to
remove as ``removing``. If a run dies before it updates the properties, the next compaction reads
the table's history to find out whether the rows were removed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loader.errors import TableError
from loader.formatting import format_count
from loader.lake.commits import COMPACTED_TO, list_ancestors, newest_commit, sharers
from loader.lake.lake import Lake
from loader.lake.ledger import REMEDY
from loader.lake.ledger import TABLE as LEDGER
from loader.lake.system_tables import report_damage
from loader.maintenance.dependents import Dependent
from loader.rows.bookkeeping import DELETED, HASH
from loader.rows.literal import text_literal
from loader.rows.version_order import BATCH, GENERATION, SEQUENCE, SOURCE_NAME, quote_name
from loader.spark.spark_version import can_rewrite_position_deletes

COMPACTED = "strandline.compacted"


@dataclass(frozen=True)
class Keep:
    """The user's rule for keeping versions of a key. The newest version is always kept.

    Attributes:
        versions: the number of newest versions to keep.
        days: the number of days for which all synced versions are also kept; None means 0.
    """

    versions: int = 1
    days: int | None = None


@dataclass(frozen=True)
class SupersededVersions:
    """The rows to remove from a raw table.

    Attributes:
        batch: the batch up to which rows may be removed; 0 if no rows can be removed.
        sql: a query for the ``_cq_batch`` and ``_cq_seq`` of these rows; None if no rows can be
            removed.
        note: the reason why nothing is removed, or what determines the limit. May be empty.
    """

    batch: int = 0
    sql: str | None = None
    note: str = ""


def find_superseded(
    lake: Lake,
    table: str,
    key: tuple[str, ...],
    cursor: str | None,
    keep: Keep,
    dependents: Sequence[Dependent],
    now: dt.datetime,
) -> SupersededVersions:
    """Finds the versions of a raw table that can be removed.

    Args:
        dependents: the latest tables and histories that are built from the raw table.
    """
    sources = tuple(sharers(lake.handle(table)))
    if key and sources and SOURCE_NAME not in key:
        key = (SOURCE_NAME, *key)
    reason = explain_refusal(key, cursor, dependents)
    if reason:
        return SupersededVersions(note=reason)
    floor = None
    if cursor is not None:
        with report_damage(lake, LEDGER, REMEDY):
            floor = _find_lowest_cursor(lake, table, cursor, sources)
        if floor is None:
            return SupersededVersions(note=f"the ledger has no sync by {cursor}: sync the table")
    batch, note = _find_removal_limit(lake, table, keep, dependents, now)
    if batch < 1:
        return SupersededVersions(note=note)
    histories = [each.name for each in dependents if each.history]
    if histories:
        note = f"only repeated rows are removed: {', '.join(histories)} shows every version"
    only_repeated = bool(histories)
    name = lake.name(table)
    newest = [newest_commit(lake, table, (source,)).batch for source in sources]
    sql = build_superseded_sql(
        name, key, cursor, batch, keep.versions, floor, only_repeated, newest
    )
    return SupersededVersions(batch, sql, note)


def explain_refusal(
    key: tuple[str, ...], cursor: str | None, dependents: Sequence[Dependent]
) -> str:
    """Returns the reason why no versions of a table can be removed, or ""."""
    if not key:
        return "it has no primary key, so its rows are not versions of each other"
    for each in dependents:
        if not each.agrees(key, cursor):
            by = f"by {each.cursor}" if each.cursor else "as they arrived"
            columns = ", ".join(each.key)
            return f"{each.name} needs other versions: its key is {columns}, ordered {by}"
    return ""


def build_superseded_sql(
    raw: str,
    key: Sequence[str],
    cursor: str | None,
    batch: int,
    versions: int,
    floor: str | None,
    only_repeated: bool,
    excluded: Sequence[int] = (),
) -> str:
    """Returns a query for the batch and sequence number of the rows to remove.

    Args:
        batch: the batch up to which rows may be removed.
        versions: the number of a key's newest versions to keep.
        floor: an SQL expression for the lowest cursor that may be redelivered.
        only_repeated: whether to remove only versions that equal the previous version.
        excluded: batches whose rows are all kept.
    """
    keys = ", ".join(quote_name(name) for name in key)
    cursors = [quote_name(cursor)] if cursor else []
    order = ", ".join([GENERATION, *cursors, BATCH, SEQUENCE])
    position = ", ".join([keys, GENERATION, *cursors])
    conditions = f"_cq_age > {versions}"
    if cursor:
        # The comparison is null if the row or the floor has no cursor. Such a row is kept.
        conditions += f"\n    and coalesce({quote_name(cursor)} < {floor}, false)"
    if only_repeated:
        conditions += "\n    and _cq_content <=> _cq_content_before"
    if excluded:
        conditions += f"\n    and {BATCH} not in ({', '.join(map(str, sorted(excluded)))})"
    return f"""\
select
    {BATCH},
    {SEQUENCE}
from (
    select
        *,
        row_number() over (
            partition by {keys}
            order by struct({order}) desc
        ) as _cq_age,
        lag(_cq_content) over (
            partition by {position}
            order by {BATCH}, {SEQUENCE}
        ) as _cq_content_before
    from (
        select
            *,
            struct({DELETED} as deleted, if({DELETED}, null, {HASH}) as row_hash) as _cq_content
        from {raw} as versions
        where {BATCH} <= {batch}
    ) as considered
) as aged
where {conditions}"""


def build_lowest_sql(texts: Sequence[str | None], data_type: str) -> str:
    """Returns an SQL expression for the lowest cursor, or for null if there are no cursors.

    Args:
        texts: the cursors. None is ignored.
    """
    casts = [f"cast({text_literal(text)} as {data_type})" for text in texts if text is not None]
    if len(casts) < 2:
        return casts[0] if casts else f"cast(null as {data_type})"
    return f"least({', '.join(casts)})"


def _find_removal_limit(
    lake: Lake, table: str, keep: Keep, dependents: Sequence[Dependent], now: dt.datetime
) -> tuple[int, str]:
    """Returns the removal limit (0 if nothing can be removed) and what determines it."""
    name = lake.name(table)
    [head] = lake.spark.sql(f"select max({BATCH}) as batch from {name}").collect()
    batch, note = (head["batch"] or 0) - 1, "the newest batch is not changed"
    if keep.days is not None:
        since = int((now - dt.timedelta(days=keep.days)).timestamp() * 1_000_000)
        [young] = lake.spark.sql(
            f"select min({BATCH}) as batch from {name} "
            f"where _cq_sync_time >= timestamp_micros({since})"
        ).collect()
        if young["batch"] is not None and young["batch"] - 1 < batch:
            days = format_count(keep.days, "day")
            batch, note = young["batch"] - 1, f"nothing is older than {days}"
    for each in dependents:
        merged = each.find_merged_batch(f"{lake.schema}.{table}")
        if merged < batch:
            batch, note = merged, f"{each.name} has merged up to batch {merged} only"
    reason = note if batch < 1 or "merged" in note else ""
    return max(batch, 0), reason


def _find_lowest_cursor(lake: Lake, table: str, cursor: str, sources: Sequence[str]) -> str | None:
    """Returns an SQL expression for the lowest cursor that the next sync may reread.

    This is the lower bound of the last sync, because the next sync does not start at a lower
    cursor. Returns None if the ledger has no sync with this cursor column.

    Args:
        sources: the sources that share the table. Each source has its own windows.
    """
    if not lake.exists(LEDGER):
        return None
    rows = lake.spark.sql(
        f"""
        select
            {"source_name" if sources else "''"} as source_name,
            max_by(cursor_low, started_at) filter (where cursor_low is not null) as low,
            max_by(cursor_high, started_at) filter (where cursor_high is not null) as high
        from {lake.name(LEDGER)}
        where table_name = {text_literal(table)}
            and status in ('synced', 'recovered', 'nothing new')
            and lower(cursor_field) = lower({text_literal(cursor)})
        group by 1
        order by 1
        """
    ).collect()
    fields = {field.name.lower(): field for field in lake.frame(table).schema.fields}
    data_type = fields[cursor.lower()].dataType.simpleString()
    floors = {
        row["source_name"]: build_lowest_sql([row["low"], row["high"]], data_type) for row in rows
    }
    if not sources:
        return floors.get("")
    cases = [f"when {text_literal(n)} then {floors[n]}" for n in sorted(sources) if n in floors]
    return f"case {SOURCE_NAME} {' '.join(cases)} end" if cases else None


@dataclass(frozen=True)
class RemovalAccount:
    """The account of removed rows, which is stored in properties of the raw table.

    Attributes:
        to: the batch up to which versions may be missing; 0 if no versions are missing.
        removing: the number of rows that a compaction is about to remove; 0 after `rows` includes
            them.
        since: the id of the table's Iceberg snapshot before these rows are removed.
        was: the previous value of `to`, which is restored if the removal fails.
    """

    to: int = 0
    rows: int = 0
    removing: int = 0
    since: str | None = None
    was: int | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> RemovalAccount:
        """Parses the properties of a raw table.

        Raises:
            ValueError, KeyError, TypeError: if the loader did not write the properties.
        """
        text = properties.get(COMPACTED)
        if not text:
            return cls(to=int(properties.get(COMPACTED_TO) or 0))
        values: Any = json.loads(text)
        removing = values.get("removing", 0)
        return cls(values["to"], values["rows"], removing, values.get("since"), values.get("was"))

    def properties(self) -> dict[str, str]:
        values: dict[str, Any] = {"rows": self.rows, "to": self.to}
        if self.removing:
            values |= {"removing": self.removing, "since": self.since, "was": self.was}
        return {COMPACTED: json.dumps(values, sort_keys=True), COMPACTED_TO: str(self.to)}


def count_rows(lake: Lake, superseded: SupersededVersions) -> int:
    if superseded.sql is None:
        return 0
    [row] = lake.spark.sql(f"select count(*) as n from ({superseded.sql}) as superseded").collect()
    return int(row["n"])


def remove_superseded(lake: Lake, table: str, superseded: SupersededVersions, rows: int) -> int:
    """Removes superseded rows in one commit. Returns the number of removed rows.

    The caller must have locked the table.

    Raises:
        TableError: if the account of earlier compactions cannot be parsed.
    """
    before = close_account(lake, table)
    if not rows:
        return 0
    to = max(before.to, superseded.batch)
    # Stored as a string, because JSON parsers may round such a long number.
    current = str(lake.handle(table).currentSnapshot().snapshotId())
    # With merge-on-read, each file is written only once, by the subsequent rewrite, which sorts the
    # rows and omits the removed rows. Copy-on-write would write the files twice.
    can_merge_on_read = can_rewrite_position_deletes(lake.frame(table).schema)
    mode = {"write.delete.mode": "merge-on-read" if can_merge_on_read else "copy-on-write"}
    planned = RemovalAccount(to, before.rows, rows, current, before.to)
    lake.set_properties(table, {**mode, **planned.properties()})
    try:
        lake.spark.sql(
            f"delete from {lake.name(table)} where {BATCH} <= {superseded.batch} "
            f"and ({BATCH}, {SEQUENCE}) in ({superseded.sql})"
        )
    except Exception:
        # Usually no rows were removed, but the commit may have succeeded without a response. If the
        # table is unreachable, the next compaction closes the account.
        with suppress(Exception):
            close_account(lake, table)
        raise
    lake.set_properties(table, RemovalAccount(to, before.rows + rows).properties())
    return rows


def close_account(lake: Lake, table: str) -> RemovalAccount:
    """Returns the account of removed rows. First completes it if a run died while removing rows."""
    handle = lake.handle(table)
    try:
        account = RemovalAccount.of(lake.properties(table))
    except (ValueError, KeyError, TypeError):
        raise TableError(
            f"its property {COMPACTED} was not written by this loader",
            where=f"table {table}",
            remedy=f"Nothing was removed. Unset the properties {COMPACTED} and {COMPACTED_TO}: "
            "then `batches_complete` shows which rows are missing",
        ) from None
    if not account.removing:
        return account
    if _has_removed_rows(handle, account):
        closed = RemovalAccount(account.to, account.rows + account.removing)
    else:  # no row was removed, so the previous removal limit is valid again
        closed = RemovalAccount(account.to if account.was is None else account.was, account.rows)
    lake.set_properties(table, closed.properties())
    return closed


def _has_removed_rows(handle: Any, account: RemovalAccount) -> bool:
    for snapshot in list_ancestors(handle, handle.currentSnapshot()):
        if str(snapshot.snapshotId()) == account.since:
            return False
        if snapshot.operation() in ("delete", "overwrite"):
            return True
    return False

"""Decides which versions of a raw table to remove: superseded ones that are no longer needed.

Compaction has a removal limit, a batch. Among the versions up to it, each key keeps its newest;
all later batches stay whole. So raw still shows, for the limit and each batch after it, exactly
what the snapshot table was, and a model that has merged up to the limit finds everything since. The
limit is

- below the newest batch, which state, commits and the next sync depend on;
- at or below what each snapshot table and history in the catalog has merged;
- before the days to keep.

Up to the limit, these rows stay too:

- rows that the next window can deliver again, and rows without a cursor: redelivered rows are
  found by comparing with them (:mod:`loader.rows.redelivery`);
- if a history model is built from the table, every row except those that only repeat the one
  before: a version that arrives late makes the model read all of its key's versions again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from loader.lake.commits import newest_commit, sharers
from loader.lake.lake import Lake
from loader.lake.ledger import REMEDY
from loader.lake.ledger import TABLE as LEDGER
from loader.lake.system_tables import name_damage
from loader.maintenance.dependents import Dependent
from loader.rows.bookkeeping import DELETED, HASH
from loader.rows.literal import text_literal
from loader.rows.version_order import BATCH, GENERATION, SEQUENCE, SOURCE_NAME, quote_name


@dataclass(frozen=True)
class Keep:
    """The user's rule for the versions of a key to keep; the newest always stays.

    Attributes:
        versions: how many of the newest.
        days: also keeps all versions from syncs of the last `days` days.
    """

    versions: int = 1
    days: int | None = None


@dataclass(frozen=True)
class SupersededVersions:
    """The rows that may go from a raw table.

    Attributes:
        batch: the removal limit; 0 if nothing may go.
        sql: a SELECT of the rows' ``_cq_batch`` and ``_cq_seq``; None if nothing may go.
        note: why nothing may go, or what set the limit; empty if there is nothing to explain.
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
    kept_from_it: Sequence[Dependent],
    now: dt.datetime,
) -> SupersededVersions:
    """Finds the versions of a raw table that may go now.

    Args:
        key: the primary key; empty if the table has none.
        cursor: the cursor column; None if the table has none.
        kept_from_it: the snapshot tables and histories that are built from it.
    """
    sources = tuple(sharers(lake.handle(table)))
    if key and sources and SOURCE_NAME not in key:
        key = (SOURCE_NAME, *key)
    refused = refusal(key, cursor, kept_from_it)
    if refused:
        return SupersededVersions(note=refused)
    floor = None
    if cursor is not None:
        with name_damage(lake, LEDGER, REMEDY):
            floor = _floor(lake, table, cursor, sources)
        if floor is None:
            return SupersededVersions(note=f"the ledger has no sync by {cursor}: sync it once more")
    batch, note = _removal_limit(lake, table, keep, kept_from_it, now)
    if batch < 1:
        return SupersededVersions(note=note)
    histories = [one.name for one in kept_from_it if one.history]
    if histories:
        note = f"only repeated rows may go: {', '.join(histories)} shows every version"
    only_repeated = bool(histories)
    name = lake.name(table)
    whole = [newest_commit(lake, table, (source,)).batch for source in sources]
    sql = build_superseded_sql(name, key, cursor, batch, keep.versions, floor, only_repeated, whole)
    return SupersededVersions(batch, sql, note)


def refusal(key: tuple[str, ...], cursor: str | None, kept_from_it: Sequence[Dependent]) -> str:
    """Returns why no version of a table may be removed; empty if some may."""
    if not key:
        return "it has no primary key: its rows are not versions of each other"
    for one in kept_from_it:
        if not one.agrees(key, cursor):
            by = f"by {one.cursor}" if one.cursor else "as they arrived"
            return f"{one.name} needs other versions: its key is {', '.join(one.key)}, ordered {by}"
    return ""


def build_superseded_sql(
    raw: str,
    key: Sequence[str],
    cursor: str | None,
    batch: int,
    versions: int,
    floor: str | None,
    only_repeated: bool,
    whole: Sequence[int] = (),
) -> str:
    """Returns a SELECT of the rows that may go, each by its batch and position in the batch.

    Args:
        raw: the raw table, quoted.
        batch: the removal limit.
        versions: how many of a key's newest versions stay.
        floor: an expression for the lowest cursor that may be delivered again.
        only_repeated: whether, of the versions beyond these, only those go that repeat the one
            before.
        whole: batches that stay whole.
    """
    keys = ", ".join(quote_name(name) for name in key)
    cursors = [quote_name(cursor)] if cursor else []
    order = ", ".join([GENERATION, *cursors, BATCH, SEQUENCE])
    place = ", ".join([keys, GENERATION, *cursors])
    conditions = f"_cq_age > {versions}"
    if cursor:
        # null if the row or the floor has no cursor: then it is not certainly below
        conditions += f"\n    and coalesce({quote_name(cursor)} < {floor}, false)"
    if only_repeated:
        conditions += "\n    and _cq_content <=> _cq_content_before"
    if whole:
        conditions += f"\n    and {BATCH} not in ({', '.join(map(str, sorted(whole)))})"
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
            partition by {place}
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


def floor_sql(texts: Sequence[str | None], kind: str) -> str:
    """Returns an expression, in the column's type, for the lowest of some cursors' texts.

    Null if there is none: then no cursor is certainly below.
    """
    known = [f"cast({text_literal(text)} as {kind})" for text in texts if text is not None]
    if len(known) < 2:
        return known[0] if known else f"cast(null as {kind})"
    return f"least({', '.join(known)})"


def _removal_limit(
    lake: Lake, table: str, keep: Keep, kept_from_it: Sequence[Dependent], now: dt.datetime
) -> tuple[int, str]:
    name = lake.name(table)
    [head] = lake.spark.sql(f"select max({BATCH}) as batch from {name}").collect()
    batch, note = (head["batch"] or 0) - 1, "the newest batch stays whole"
    if keep.days is not None:
        since = int((now - dt.timedelta(days=keep.days)).timestamp() * 1_000_000)
        [young] = lake.spark.sql(
            f"select min({BATCH}) as batch from {name} "
            f"where _cq_sync_time >= timestamp_micros({since})"
        ).collect()
        if young["batch"] is not None and young["batch"] - 1 < batch:
            days = "1 day" if keep.days == 1 else f"{keep.days} days"
            batch, note = young["batch"] - 1, f"nothing is older than {days}"
    for one in kept_from_it:
        merged = one.find_merged_batch(f"{lake.schema}.{table}")
        if merged < batch:
            batch, note = merged, f"{one.name} has merged up to batch {merged} only"
    reason = note if batch < 1 or "merged" in note else ""
    return max(batch, 0), reason


def _floor(lake: Lake, table: str, cursor: str, sources: Sequence[str]) -> str | None:
    """Returns the lowest cursor that the next sync can read again, judging by the last windows.

    The next window begins at the stored cursor, minus a lookback: not below where the last one
    began. None if no sync by this cursor is known.

    Args:
        sources: those that share the table; each has its own windows.
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
    kind = fields[cursor.lower()].dataType.simpleString()
    floors = {row["source_name"]: floor_sql([row["low"], row["high"]], kind) for row in rows}
    if not sources:
        return floors.get("")
    cases = [f"when {text_literal(n)} then {floors[n]}" for n in sorted(sources) if n in floors]
    return f"case {SOURCE_NAME} {' '.join(cases)} end" if cases else None

"""Faults to plant in the loader, to show that the nemesis finds them."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import functions as f

from tests.dbt import dbtproject


def _horizon() -> Any:
    """Does not search for rows of transactions that were open at the last sync."""
    return patch(
        "loader.sources.jdbc.postgresql.late_commits_by_xmin.PostgresLateCommits.condition",
        lambda *_: None,
    )


def _sweep() -> Any:
    """Makes a sweep record open transactions as seen."""
    from loader.sources.jdbc.postgresql.sweep import SweepRecord

    real = SweepRecord.to_mark

    def wrong(record: SweepRecord) -> dict[str, Any]:
        seen = record.transactions  # a record from an earlier mark has no xmax
        return {**real(record), "unseen": "", "xmin": str(seen.xmax or seen.xmin)}

    return patch.object(SweepRecord, "to_mark", wrong)


def _delta() -> Any:
    """Treats changed rows at the boundary as redelivered."""
    from loader.rows import redelivery
    from loader.sync import extract

    real = redelivery.flag_redelivered

    def wrong(rows: Any, raw: Any, key: Any, window: Any, *rest: Any) -> Any:
        marked = real(rows, raw, key, window, *rest)
        if window.cursor is None or window.low is None:
            return marked
        at = f.col(window.cursor.name)
        known = raw.where(at.isNotNull()).agg(f.max(at)).first()
        if known is None or known[0] is None:
            return marked
        return marked.withColumn(
            redelivery.REDELIVERED, f.col(redelivery.REDELIVERED) | (at == f.lit(known[0]))
        )

    return patch.object(extract, "flag_redelivered", wrong)


def _recovery() -> Any:
    """Makes recovery store a cursor that is higher than the commit's.

    Also drops the open transactions: on PostgreSQL, the mark alone would find every row again.
    """
    from loader.rows.cursor import Cursor
    from loader.sync import recover

    real = recover._read_committed_state

    def wrong(head: Any, plan: Any) -> Any:
        state = real(head, plan)
        if state.cursor is None or not (state.cursor.type.is_time or state.cursor.type.is_number):
            return state
        further: Any = dt.timedelta(days=1) if state.cursor.type.is_time else 5
        text = str(state.cursor.order + further)
        further_on = Cursor.parse(text, state.cursor.type)
        return replace(state, cursor=further_on, mark=None, boundary=None)

    return patch.object(recover, "_read_committed_state", wrong)


def _merge() -> Any:
    """Makes the merge of a latest table skip the first batch after its watermark."""
    file = "macros/materializations/deduped_latest.sql"
    right = 'where {{ strandline._batches(spec.tables, above="low", up_to="head") }}'
    return _package(file, right, right + " and _cq_batch <> {{ spec.tables[0].low + 1 }}")


def _compaction() -> Any:
    """Makes compaction ignore the latest tables and histories that need old versions."""
    from loader.maintenance import compaction

    real = compaction.find_superseded

    def wrong(lake: Any, table: Any, key: Any, cursor: Any, keep: Any, _: Any, now: Any) -> Any:
        return real(lake, table, key, cursor, keep, [], now)

    return patch.object(compaction, "find_superseded", wrong)


@contextmanager
def _package(file: str, right: str, wrong: str) -> Iterator[None]:
    """Changes the text of a file in the dbt package."""
    copy = Path(tempfile.mkdtemp(prefix="strandline-fault-"))
    try:
        for part in ("macros", "models"):
            shutil.copytree(dbtproject.PACKAGE / part, copy / part)
        shutil.copy(dbtproject.PACKAGE / "dbt_project.yml", copy)
        text = (copy / file).read_text()
        if text.count(right) != 1:
            raise ValueError(f"{file} has changed: plant the fault anew")
        (copy / file).write_text(text.replace(right, wrong))
        with patch.object(dbtproject, "PACKAGE", copy):
            yield
    finally:
        shutil.rmtree(copy)


FAULTS: Mapping[str, Callable[[], Any]] = {
    "horizon": _horizon,
    "sweep": _sweep,
    "delta": _delta,
    "recovery": _recovery,
    "merge": _merge,
    "compaction": _compaction,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plants a fault for the duration of the block; does nothing if no name is given."""
    if name is None:
        yield
        return
    with FAULTS[name]():
        yield

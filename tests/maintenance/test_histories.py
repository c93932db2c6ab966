"""For any history, compaction leaves snapshots, histories and redelivery checks unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.maintenance.superseded_versions import build_lowest_sql, build_superseded_sql
from loader.rows.cursor import Cursor, CursorType
from loader.rows.redelivery import OVERRULES, REDELIVERED, flag_redelivered
from loader.rows.version_order import Generations
from loader.rows.window import Bounds, CursorField, Window
from tests.dbt.rawtables import Row
from tests.frames import frame_of
from tests.maintenance import histories as h

AT = CursorField("cursor", CursorType.INTEGER)
SETTINGS = settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
generations = st.sampled_from(
    [(1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 2, 2), (1, 2, 2, 3, 3, 3), (1, 1, 1, 1, 1, 2)]
)


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    names = [column.strip().split()[0] for column in h.COLUMNS.split(",")]
    values = [tuple(row[name] for name in names) for row in rows]
    return frame_of(spark, values, h.COLUMNS)


def removed(
    spark: SparkSession, rows: list[Row], batch: int, keep: int, floor: str, repeated: bool
) -> set[tuple[int, int]]:
    frame(spark, rows).createOrReplaceTempView("versions_so_far")
    sql = build_superseded_sql("versions_so_far", h.KEY, AT.name, batch, keep, floor, repeated)
    return {(row["_cq_batch"], row["_cq_seq"]) for row in spark.sql(sql).collect()}


@SETTINGS
@given(
    drawn=h.histories,
    generation=generations,
    horizon=st.integers(1, 3),
    keep=st.sampled_from([1, 1, 2]),
    floor=st.sampled_from([None, 1, 3, 9, 9]),
    repeated=st.booleans(),
)
def test_snapshots_and_histories_are_unchanged(
    spark: SparkSession,
    drawn: Any,
    generation: tuple[int, ...],
    horizon: int,
    keep: int,
    floor: int | None,
    repeated: bool,
) -> None:
    rows = h.versions(drawn, generation)
    # the last two batches follow the compaction, and contain late versions
    seen = [row for row in rows if row["_cq_batch"] <= h.BATCHES - 2]
    lowest = build_lowest_sql([None if floor is None else str(floor)], "int")
    gone = removed(spark, seen, horizon, keep, lowest, repeated)
    assert gone == h.removable(seen, horizon, keep, floor, repeated)
    left = [row for row in rows if h.place(row) not in gone]
    for batch in range(horizon, h.BATCHES + 1):
        assert h.latest(left, batch) == h.latest(rows, batch)
    if repeated:
        for batch in range(1, h.BATCHES + 1):
            assert h.history(left, batch) == h.history(rows, batch)


@pytest.mark.parametrize("authoritative", [True, False])
@SETTINGS
@given(
    drawn=h.histories,
    generation=generations,
    base=st.integers(1, 3),
    floor=st.integers(1, 3),
    low=st.integers(0, 2),
)
def test_redelivered_rows_are_still_detected(
    spark: SparkSession,
    authoritative: bool,
    drawn: Any,
    generation: tuple[int, ...],
    base: int,
    floor: int,
    low: int,
) -> None:
    rows = h.versions(drawn, generation)
    head = h.BATCHES - 1
    held = [row for row in rows if row["_cq_batch"] <= head]
    gone = removed(spark, held, head - 1, 1, f"cast({floor} as int)", False)
    low = floor + low
    current = generation[head - 1]
    window = Window(AT, Cursor.parse(str(low), CursorType.INTEGER))
    # new rows, and again all rows of the raw table within the window
    coming = [
        {**row, "_cq_batch": head + 1, "_cq_seq": seq, "_cq_generation": current}
        for seq, row in enumerate([*held, *(r for r in rows if r["_cq_batch"] > head)])
        if row["cursor"] is None or row["cursor"] >= low
    ]
    before, after = (
        {
            (row["_cq_seq"], row[REDELIVERED], row[OVERRULES])
            for row in flag_redelivered(
                frame(spark, coming),
                frame(spark, raw),
                h.KEY,
                window,
                Bounds(None, nulls=1),
                Generations(min(base, current), current),
                authoritative,
            )
            .select("_cq_seq", f.col(REDELIVERED), f.col(OVERRULES))
            .collect()
        }
        for raw in (held, [row for row in held if h.place(row) not in gone])
    )
    assert after == before

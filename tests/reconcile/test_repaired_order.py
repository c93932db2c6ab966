"""After a repair, the keys that it did not touch are still ordered by their cursors."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from loader.rows.cursor import Cursor, CursorType
from loader.rows.redelivery import REDELIVERED, flag_redelivered
from loader.rows.version_order import Generations, assign_generation, version_order
from loader.rows.window import Bounds, CursorField, Window
from tests.frames import frame_of
from tests.reconcile.shop import missed, nothing, reconcile
from tests.sync.project import Project

KEYS = 60
STEPS = 6
COLUMNS = (
    "id int, n int, payload string, _cq_batch bigint, _cq_seq bigint, _cq_row_hash bigint, "
    "_cq_deleted boolean, _cq_generation bigint"
)


@dataclass(frozen=True)
class Row:
    """A version in the raw table."""

    id: int
    n: int | None
    payload: str
    batch: int
    seq: int
    generation: int
    deleted: bool = False

    @property
    def order(self) -> tuple[object, ...]:
        return version_order(self.generation, self.n, self.batch, self.seq)

    @property
    def says(self) -> tuple[object, ...]:
        return self.n, self.payload, self.deleted

    @property
    def columns(self) -> tuple[object, ...]:
        row_hash = hash((self.id, self.n, self.payload)) % 10**15
        place = (self.batch, self.seq, row_hash, self.deleted, self.generation)
        return (self.id, self.n, self.payload, *place)


class Raw:
    """The raw table as the loader writes it, and its newest versions by definition.

    A repair sets the newest version of a key. A later row is newer unless its cursor is lower than
    the cursor of the newest version.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.rows: list[Row] = []
        self.base = self.generation = 1
        self.wanted: dict[int, Row] = {}

    def sync(self, batch: int, rows: list[Row], floor: int | None) -> None:
        for row in rows:
            newest = self.wanted.get(row.id)
            if newest is None or row.order[1:3] >= newest.order[1:3]:
                self.wanted[row.id] = row
        frame, raw = (
            frame_of(self.spark, [row.columns for row in some], COLUMNS)
            for some in (rows, self.rows)
        )
        low = None if floor is None else Cursor.parse(str(floor), CursorType.INTEGER)
        window = Window(CursorField("n", CursorType.INTEGER), low)
        generations = Generations(self.base, self.generation)
        if self.base < self.generation:
            frame = assign_generation(frame, raw, ["id"], generations)
        judged = flag_redelivered(
            frame, raw, ["id"], window, Bounds(None), generations, is_authoritative=False
        )
        where = judged.where(f"not {REDELIVERED}").select("_cq_seq", "_cq_generation")
        kept = {row[0]: row[1] for row in where.collect()}
        self.rows += [
            Row(row.id, row.n, row.payload, batch, row.seq, kept[row.seq])
            for row in rows
            if row.seq in kept
        ]

    def repair(self, rows: list[Row]) -> None:
        self.generation += 1
        for row in rows:
            moved = Row(*list(vars(row).values())[:5], self.generation, row.deleted)
            self.rows.append(moved)
            self.wanted[row.id] = moved

    def newest(self) -> dict[int, tuple[object, ...]]:
        found: dict[int, Row] = {}
        for row in self.rows:
            if row.id not in found or row.order > found[row.id].order:
                found[row.id] = row
        return {key: row.says for key, row in found.items()}


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_the_newest_versions_after_any_sequence_of_syncs_and_repairs(
    spark: SparkSession, seed: int
) -> None:
    random, raw = Random(seed), Raw(spark)
    for batch in range(1, STEPS + 1):
        repairs = batch > 1 and random.random() < 0.4
        floor = random.choice([None, 3]) if batch > 1 else None
        rows = []
        for key in random.sample(range(KEYS), KEYS * 2 // 3):
            for _ in range(1 if repairs else random.choice([1, 1, 2])):
                deleted = repairs and random.random() < 0.3
                n = None if deleted else random.randint(floor or 0, 6)
                payload = "" if deleted else random.choice("xy")
                rows.append(Row(key, n, payload, batch, len(rows), raw.generation, deleted))
        raw.repair(rows) if repairs else raw.sync(batch, rows, floor)
        assert raw.newest() == {key: row.says for key, row in raw.wanted.items()}
    # Rows that the raw table already has are not appended again.
    before = len(raw.rows)
    alive = [row for row in raw.wanted.values() if not row.deleted]
    again = [Row(r.id, r.n, r.payload, STEPS + 1, i, 1) for i, r in enumerate(alive)]
    raw.sync(STEPS + 1, again, None)
    assert len(raw.rows) == before


def test_a_late_file_brings_an_older_version_after_a_repair(project: Project) -> None:
    folder = project.folder / "data" / "t"
    folder.mkdir(parents=True)

    def write(name: str, *rows: tuple[int, int, str]) -> None:
        lines = (json.dumps(dict(zip(("id", "n", "note"), row, strict=True))) for row in rows)
        (folder / name).write_text("\n".join(lines))
        os.utime(folder / name, (1_735_700_000, 1_735_700_000))  # the modification time is a column

    def snapshot() -> list[tuple[object, ...]]:
        return project.rows(
            "select id, max_by(note, struct(_cq_generation, n, _cq_batch, _cq_seq)) "
            "from raw.t group by id order by id"
        )

    options = {"cursor_field": "n", "primary_key": "id", "lookback": "10"}
    own = {"path": "data", "format": "json", "table_options": {"t": options}}
    project.add("drop", "file", ["t"], own)
    write("a.json", (1, 100, "n100"), (2, 50, "wrong"), (3, 100, "c"))
    project.run()
    write("a.json", (1, 100, "n100"), (2, 50, "right"), (3, 100, "c"))
    assert missed(reconcile(project, "--repair"), "drop.t") == {**nothing(), "missed_updates": 1}
    assert snapshot() == [(1, "n100"), (2, "right"), (3, "c")]

    write("b.json", (1, 95, "late"), (3, 101, "newer"))
    assert project.run().table("drop.t")["appended"] == 2
    assert snapshot() == [(1, "n100"), (2, "right"), (3, "newer")]
    # For the repaired key, later rows are compared with the repair.
    write("c.json", (2, 102, "newest"), (4, 95, "new"))
    assert project.run().table("drop.t")["appended"] == 2
    assert snapshot() == [(1, "n100"), (2, "newest"), (3, "newer"), (4, "new")]
    assert project.run().table("drop.t")["appended"] == 0
    assert missed(reconcile(project), "drop.t") == nothing()
    assert project.rows("select id, _cq_generation from raw.t where _cq_batch > 2 order by id") == [
        (1, 1),
        (2, 2),
        (3, 1),
        (4, 1),
    ]

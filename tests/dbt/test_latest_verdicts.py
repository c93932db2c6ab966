"""Checks of a latest table that read only new batches find the faults that full checks find.

Verdicts are properties of the table: a check reads the keys of batches that it has not checked yet
and, in turn, one of 30 buckets of keys.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Mapping
from typing import Any

from loader.property_codec import decode_property, encode_property
from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.rawtables import RawSchema, Row
from tests.dbt.scenarios import Command, Steps, in_step
from tests.dbt.shop import COLUMNS, gone, row

STEPS = 6
SEED = 20261124
TURNS = 30
EVERYTHING = ("--vars", "{strandline__prove_all: true}")

TOUCHED = {
    "the new version was not merged": (1, "_cq_batch = 2"),
    "a late version was merged although a newer one was there": (2, "_cq_batch = 4"),
    "a late version came back to life although a tombstone overrules it": (3, "_cq_batch = 4"),
    "a tombstone was not merged": (4, "_cq_batch = 1"),
    "a new key was not merged": (5, None),
    "the key of a late version was deleted": (6, None),
    "a row was inserted, not updated": (7, "_cq_batch > 1"),
    "a version of an overruled generation was merged": (8, "_cq_batch = 4"),
}
"""Errors that a merge may make: the key, and which of its versions the table then shows."""

UNTOUCHED = {
    "deleted": (11, None),
    "an older version": (12, "_cq_batch = 1"),
    "back to life": (13, "_cq_batch = 1"),
}
"""The same for keys that are not in the newest batch."""


class Snapshot:
    """A raw table, its latest table, and the checks of the latest table.

    Args:
        select: the model's SELECT; `{source}` is the source.
        ours: more settings under `meta.strandline`.
    """

    def __init__(
        self,
        project: DbtProject,
        raw: RawSchema,
        name: str,
        select: str = "select * from {source}",
        **ours: Any,
    ) -> None:
        self.project, self.raw, self.table = project, raw, name
        self.model = f"{name}_latest"
        self.batch = 0
        raw.create(name, COLUMNS)
        source = f"{{{{ source('shop', '{name}') }}}}"
        meta = {"strandline": {"cursor_field": "cursor", **ours}}
        project.write(
            f"models/{self.model}.sql",
            f"{{{{ config(materialized='deduped_latest', unique_key='id', meta={meta}) }}}}\n"
            f"{select.format(source=source)}",
        )
        tests = ["strandline.matches_raw", "strandline.unique_key"]
        project.write(
            f"models/{name}.yml",
            {
                "sources": [{"name": "shop", "schema": raw.schema, "tables": [{"name": name}]}],
                "models": [{"name": self.model, "data_tests": tests}],
            },
        )

    @property
    def raw_name(self) -> str:
        return f"{self.raw.schema}.{self.table}"

    @property
    def name(self) -> str:
        return f"{self.project.schema}.{self.model}"

    def append(self, *rows: Row) -> None:
        """Appends the next batch."""
        self.batch += 1
        self.raw.append(self.table, self.batch, rows)

    def plan_merge(self, *options: str) -> Command:
        """Returns a build of the table, which runs its checks; its answer is dbt's message."""

        def read(results: Mapping[str, Result]) -> str:
            assert results[self.model].status == "success", results[self.model].message
            return results[self.model].message

        return Command(("run", *options), (self.model,), read)

    def plan_tests(self, *options: str) -> Command:
        """Returns a run of the model's tests; its answer is their results by test."""

        def read(results: Mapping[str, Result]) -> dict[str, Result]:
            own = {name: one for name, one in results.items() if one.tested == self.model}
            names = ("matches_raw", "unique_key")
            return {
                short: one for short in names for name, one in own.items() if f"_{short}_" in name
            }

        return Command(("test", *options), (self.model,), read)

    def wrong(self, *options: str) -> Generator[Command, Any, set[int]]:
        """Returns the keys for which matches_raw fails; unique_key must not contradict it."""
        found = yield self.plan_tests(*options)
        self.proof = found["matches_raw"]
        assert (self.proof.status, found["unique_key"].status) in (
            ("pass", "pass"),
            ("fail", "pass"),
            ("fail", "fail"),
        ), found
        wrong = self.project.failing_rows(self.proof) if self.proof.failures else []
        return {row["id"] for row in wrong}

    def asked_above(self, batch: int) -> bool:
        """Returns whether the newest test read only the keys of later batches, or none."""
        few = (f"_cq_batch > {batch}", "the build has checked all rows")
        return any(text in self.proof.sql for text in few)

    def show(self, *faults: tuple[int, str | None]) -> None:
        """Makes the table show other versions of keys."""
        spark = self.project.spark
        for key, versions in faults:
            spark.sql(f"delete from {self.name} where id = {key}")
            if versions:
                chosen = f"select * from {self.raw_name} where id = {key} and {versions}"
                spark.sql(f"insert into {self.name} {chosen}")

    def forge(self, proved: int | None = None, turn: int | None = None) -> None:
        """Changes the table's properties as if its own build had written its current rows.

        Args:
            proved: the last batch that the checks have passed; unchanged by default.
            turn: the bucket of keys that the next build checks, even without a new batch.
        """
        properties = self.properties
        mark = json.loads(properties["strandline.watermark"])
        head = self.project.spark.sql(f"select cast(snapshot_id as string) from {self.name}.refs")
        forged = {"strandline.watermark": json.dumps({**mark, "snapshot": head.first()[0]})}
        if proved is not None:
            verdicts = json.loads(properties["strandline.proved"])
            lowered = {check: dict.fromkeys(heads, proved) for check, heads in verdicts.items()}
            forged["strandline.proved"] = json.dumps(lowered)
        if turn is not None:
            forged |= {"strandline.turn": str(turn), "strandline.day": "2000-01-01"}
        given = ", ".join(
            f"'{name}' = '{encode_property(value)}'" for name, value in forged.items()
        )
        self.project.spark.sql(f"alter table {self.name} set tblproperties ({given})")

    @property
    def properties(self) -> dict[str, str]:
        listed = self.project.spark.sql(f"show tblproperties {self.name}").collect()
        return {one[0]: decode_property(one[1]) for one in listed}

    @property
    def proved(self) -> set[int]:
        """The batches up to which the checks have passed."""
        verdicts = json.loads(self.properties["strandline.proved"])
        return {batch for heads in verdicts.values() for batch in heads.values()}

    @property
    def failed_turns(self) -> dict[str, list[int]]:
        """By check, the turns of the keys for which it found a fault."""
        found: dict[str, list[int]] = json.loads(self.properties["strandline.failed_turns"])
        return found

    def turn_of(self, key: int) -> int:
        [[turn]] = self.project.spark.sql(f"select pmod(xxhash64('{key}'), {TURNS})").collect()
        return int(turn)


@in_step
def test_a_wrong_merge_is_found_at_once(project: DbtProject, raw: RawSchema) -> Steps:
    """The test fails after further builds, with and without a new batch, until the repair."""
    shop = Snapshot(project, raw, "wrong")
    old = {key for key, _ in UNTOUCHED.values()}
    shop.append(*(row(key, 1) for key in (1, 2, 3, 4, 6, 7, 8, *old)))
    shop.append(row(1, 5), row(2, 9), gone(3, 9), row(6, 9), row(7, 5), row(8, 5, _generation=2))
    shop.append(row(11, 6), row(12, 6), gone(13, 6))
    yield shop.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.append(
        *(row(key, 10) for key in (1, 5, 7, 8)),
        *(row(key, 8) for key in (2, 3, 6)),  # late
        gone(4, 10),
    )
    assert (yield shop.plan_merge()) == "MERGE to batch 4"
    shown = {one["id"]: one["_cq_batch"] for one in project.rows("wrong_latest")}
    assert shown == {1: 4, 2: 2, 5: 4, 6: 2, 7: 4, 8: 2, 11: 3, 12: 3}
    shop.show(*TOUCHED.values(), *UNTOUCHED.values())
    shop.forge(proved=3)

    touched = {key for key, _ in TOUCHED.values()}
    assert (yield from shop.wrong()) == touched
    assert shop.asked_above(3)
    assert (yield shop.plan_merge()) == "NO NEW BATCH"
    assert (yield from shop.wrong()) - old == touched
    assert shop.asked_above(4)
    shop.append(row(20, 1))
    assert (yield shop.plan_merge()) == "MERGE to batch 5"
    assert (yield from shop.wrong()) - old == touched
    assert shop.asked_above(5)
    failed = {turn for turns in shop.failed_turns.values() for turn in turns}
    assert failed >= {shop.turn_of(key) for key in touched}
    assert (yield from shop.wrong(*EVERYTHING)) == touched | old
    yield shop.plan_merge("--full-refresh")
    assert (shop.proved, shop.failed_turns) == ({5}, {})
    assert (yield from shop.wrong(*EVERYTHING)) == set()


@in_step
def test_an_old_fault_is_found_when_its_turn_comes(project: DbtProject, raw: RawSchema) -> Steps:
    """The fault: a row that is not in the raw table, of a batch that was checked long ago."""
    shop = Snapshot(project, raw, "invented")
    for batch in (1, 2, 3):
        shop.append(row(batch, batch))
    yield shop.plan_merge()
    assert (yield from shop.wrong()) == set()
    project.spark.sql(f"update {shop.name} set _cq_seq = 99 where id = 3")
    due = shop.turn_of(3)
    shop.forge(turn=(due - 1) % TURNS)
    assert (yield from shop.wrong()) == set()
    assert shop.asked_above(3)
    yield shop.plan_merge()
    assert (yield from shop.wrong()) == set()
    # The next bucket of keys is checked in the next build that is due.
    assert shop.properties["strandline.turn"] == str(due)
    shop.forge(turn=due)
    for _ in range(2):
        yield shop.plan_merge()
        assert (yield from shop.wrong()) == {3}
        assert shop.asked_above(3)
        assert [*shop.failed_turns.values()] == [[due]]
    # repaired, as if by the model's own build
    project.spark.sql(f"update {shop.name} set _cq_seq = 0 where id = 3")
    shop.forge()
    assert (yield from shop.wrong()) == set()
    yield shop.plan_merge()
    assert shop.failed_turns == {}


@in_step
def test_a_key_of_a_widened_column_is_the_same_key(project: DbtProject, raw: RawSchema) -> Steps:
    """The bigint of the raw table and the int of the latest table have different hashes."""
    shop = Snapshot(project, raw, "grown")
    for key in (1, 2, 3):
        shop.append(row(key, 1))
    yield shop.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.append(gone(3, 5))
    yield shop.plan_merge()
    shop.show((3, "_cq_batch = 3"))
    project.spark.sql(f"alter table {shop.raw_name} alter column id type bigint")
    shop.forge(proved=3)
    assert (yield from shop.wrong()) == {3}
    assert shop.asked_above(3)
    shop.forge(proved=4, turn=shop.turn_of(3))
    assert (yield shop.plan_merge()) == "NO NEW BATCH"
    assert (yield from shop.wrong()) == {3}
    assert shop.asked_above(4)


@in_step
def test_a_widened_column_is_compared(project: DbtProject, raw: RawSchema) -> Steps:
    shop = Snapshot(project, raw, "wider")
    project.spark.sql(f"alter table {shop.raw_name} add column amount decimal(10, 2)")
    shop.append(row(1, 1), row(2, 1))
    yield shop.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.append(row(2, 5))
    yield shop.plan_merge()
    project.spark.sql(f"alter table {shop.raw_name} alter column amount type decimal(12, 2)")
    shop.forge(proved=1)
    assert (yield from shop.wrong()) == set()
    assert shop.asked_above(1)


@in_step
def test_a_duplicate_key_is_found_after_its_column_was_widened(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """Altering a table creates no Iceberg snapshot, so the newest one has the narrower type."""
    shop = Snapshot(project, raw, "doubled")
    for key in (1, 2, 3):
        shop.append(row(key, 1))
    yield shop.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.append(row(3, 5))
    yield shop.plan_merge()
    older = f"select * from {shop.raw_name} where id = 3 and _cq_batch = 3"
    project.spark.sql(f"insert into {shop.name} {older}")
    project.spark.sql(f"alter table {shop.name} alter column id type bigint")
    shop.forge(proved=3)
    found = yield shop.plan_tests()
    assert {name: one.status for name, one in found.items()} == {
        "unique_key": "fail",
        "matches_raw": "fail",
    }


SELECTS = {
    "select * from {source}": True,
    "select * from (select id, at, upper(payload) as payload, _cq_source_name, _cq_sync_time, "
    "_cq_batch, _cq_seq, _cq_row_hash, _cq_deleted, _cq_generation from {source}) as v": True,
    "with versions as (select * from {source}) select * from versions where id > 0": True,
    "with a as ( with b as (select * from {source}), c as (select id, at from b where id in (1, 2))"
    " select * from c ) select id, at from a where at > date '2025-01-01'": True,
    "select * from {source} where id in (select id from {source} where payload = 'vip')": False,
    "with v as (select * from {source}) select * from v where id in (select id from v)": False,
    "with v as (select * from {source}) select a.* from v as a, v as b where a.id = b.id": False,
    "select a.* from {source} as a left semi join {source} as b on a.id = b.id": False,
    "select *, count(*) over (partition by id) as versions from {source}": False,
    "select *, max(at) over w as newest from {source} window w as (partition by id)": False,
    "select id, max(at) as at from {source} group by id": False,
    "select distinct * from {source}": False,
    "select * from {source} where exists(select 1 from {source} as b where b.id = 7)": False,
    "select * from {source} limit 10": False,
}
"""Whether the text of a SELECT shows that each of its rows depends on one version only."""


def test_selects_by_row(project: DbtProject) -> None:
    given = [select.format(source="`raw`.`orders`") for select in SELECTS]
    project.write(
        "macros/judged.sql",
        "{% macro judged(cases) %}{% for select, by_row in cases %}"
        "{% if (strandline._reads_several_rows([select]) is none) != by_row %}"
        "{{ exceptions.raise_compiler_error(select) }}"
        "{% endif %}{% endfor %}{% endmacro %}",
    )
    assert project.operation("judged", cases=[*zip(given, SELECTS.values(), strict=True)])


@in_step
def test_a_select_that_reads_other_rows_is_rebuilt_and_fully_checked(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """A new batch may make the SELECT return older versions, which a merge would miss."""
    selects = {
        "chosen": "select * from {source} where id in "
        "(select id from {source} where status = 'vip')",
        "paired": "select a.* from {source} as a, {source} as b "
        "where a.id = b.id and b.status = 'vip'",
    }
    shops = [Snapshot(project, raw, name, sql, strict=False) for name, sql in selects.items()]
    for shop in shops:
        shop.append(row(1, 1, "vip"), row(5, 9, "vip"))
        shop.append(row(3, 1, "vip"))
        shop.append(row(4, 1, "vip"), row(2, 9))
        yield shop.plan_merge()
        assert (yield from shop.wrong()) == set()
        shop.append(row(2, 5, "vip"))  # a late version because of which the key is selected
        assert (yield shop.plan_merge()) == "REBUILD to batch 4"
        shown = {one["id"]: one["cursor"] for one in project.rows(shop.model)}
        assert shown == {1: 1, 5: 9, 3: 1, 4: 1, 2: 9}
        shop.show((2, "_cq_batch = 4"))  # as a merge would show it
        shop.forge()
        assert (yield from shop.wrong()) == {2}


@in_step
def test_a_correct_table_passes(project: DbtProject, raw: RawSchema) -> Steps:
    """Random batches with late versions, deletes and keys that return, in any order."""
    chance = random.Random(SEED)
    shop = Snapshot(project, raw, "right")
    for step in range(STEPS):
        for _ in range(chance.choice((0, 1, 1, 3)) if step else 1):
            keys = chance.sample(range(1, 9), 5)
            shop.append(
                *(
                    (gone if chance.random() < 0.3 else row)(key, chance.randrange(1, 12))
                    for key in keys
                )
            )
        yield shop.plan_merge()
        assert shop.proved == {shop.batch}, (SEED, step)
        assert (yield from shop.wrong()) == set(), (SEED, step)
        assert shop.asked_above(shop.batch), (SEED, step)
        assert (yield from shop.wrong(*EVERYTHING)) == set(), (SEED, step)
        assert not shop.asked_above(shop.batch), (SEED, step)

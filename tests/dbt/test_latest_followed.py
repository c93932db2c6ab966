"""A snapshot's proof that asks only what is new finds what one that asks everything finds.

It takes what the table showed when it was last proved for all versions that raw had then.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.provings import Proving, proved_again, row
from tests.dbt.rawtables import RawSchema
from tests.dbt.scenarios import Command, Steps, in_step

WITHIN = 3
STEPS = 6
SEED = 20261124
GONE = {"_cq_deleted": True}


@pytest.fixture(scope="module")
def project(
    spark: SparkSession, raw: RawSchema, tmp_path_factory: pytest.TempPathFactory
) -> DbtProject:
    return proved_again(spark, raw, tmp_path_factory.mktemp("latest_followed"), WITHIN)


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
"""What a merge may do wrong: the key, and which of its versions the snapshot shows then."""

UNTOUCHED = {
    "deleted": (11, None),
    "an older version": (12, "_cq_batch = 1"),
    "back to life": (13, "_cq_batch = 1"),
}
"""The same with keys that the newest batch does not have."""


class Snapshot:
    """A snapshot whose proof is read closely."""

    def __init__(
        self, project: DbtProject, raw: RawSchema, name: str, select: str = "select * from {source}"
    ) -> None:
        self.project = project
        self.table = Proving(project, raw, name, models=("latest",), tests=[], select=select)

    @property
    def followed(self) -> bool:
        """Whether its newest proof took what it showed when it was last proved."""
        return any("as standing" in asked for asked in self.table.asked)

    @property
    def glanced(self) -> set[int]:
        """The keys for whose sake its newest proof did not believe its first look."""
        [look] = [asked for asked in self.table.asked if "_cq_is_shown" in asked]
        _, _, select = look.partition("select count(*) from (")
        rows = self.project.spark.sql(select.rpartition(") as found")[0]).collect()
        return {row["id"] for row in rows}

    @property
    def believed(self) -> bool:
        """Whether its newest proof believed its first look, if it took one."""
        return not any("as standing" in a and "_cq_is_shown" not in a for a in self.table.asked)

    def show(self, *faults: tuple[int, str | None]) -> None:
        """Makes it show other versions of keys, as if its own build had written them."""
        changes = []
        for key, versions in faults:
            changes.append(f"delete from {{0}} where id = {key}")
            if versions:
                chosen = f"select * from {self.table.name} where id = {key} and {versions}"
                changes.append(f"insert into {{0}} {chosen}")
        self.table.forge("latest", *changes)

    def wrong(self, *options: str) -> Generator[Command, Any, set[int]]:
        """Returns the keys that its proof calls wrong; what unique_key says must agree."""
        found = yield self.table.plan_proof(*options)
        proof = found["latest_matches_raw"]
        assert (proof.status, found["unique_key_latest"].status) in (
            ("pass", "pass"),
            ("fail", "pass"),
            ("fail", "fail"),
        ), found
        wrong = self.project.failing_rows(proof) if proof.failures else []
        return {row["id"] for row in wrong}


@in_step
def test_a_wrong_merge_is_found_at_once(project: DbtProject, raw: RawSchema) -> Steps:
    shop = Snapshot(project, raw, "wrong")
    table, old = shop.table, [key for key, _ in UNTOUCHED.values()]
    table.append(*(row(key, 1) for key in (1, 2, 3, 4, 6, 7, 8, *old)))
    repaired = {"_cq_generation": 2}
    table.append(
        *(row(1, 5), row(2, 9), row(3, 9, **GONE), row(6, 9), row(7, 5), row(8, 5, **repaired))
    )
    table.append(row(11, 6), row(12, 6), row(13, 6, **GONE))
    yield table.plan_merge()
    assert (yield from shop.wrong()) == set()
    table.append(
        *(row(key, 10) for key in (1, 5, 7, 8)),
        *(row(key, 8) for key in (2, 3, 6)),  # late
        row(4, 10, **GONE),
        low=5,
    )
    yield table.plan_merge()
    shown = {one["id"]: one["_cq_batch"] for one in project.rows("wrong_latest")}
    assert shown == {1: 4, 2: 2, 5: 4, 6: 2, 7: 4, 8: 2, 11: 3, 12: 3}
    shop.show(*TOUCHED.values(), *UNTOUCHED.values())

    touched = {key for key, _ in TOUCHED.values()}
    found = yield from shop.wrong()
    assert shop.followed, "all of raw was asked"
    assert found - set(old) == touched
    assert shop.glanced - set(old) == touched
    for _ in range(WITHIN):
        before, found = found, (yield from shop.wrong())
        assert found >= before, "a fault was no longer found"
    assert found == touched | set(old)


@in_step
def test_a_key_that_has_grown_in_raw_is_the_same_key(project: DbtProject, raw: RawSchema) -> Steps:
    """A bigint hashes otherwise than the int that the snapshot still has."""
    shop = Snapshot(project, raw, "grown")
    for key in (1, 2, 3):  # the last one's turn comes last
        shop.table.append(row(key, 1))
    yield shop.table.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.table.append(row(3, 5, **GONE))
    yield shop.table.plan_merge()
    shop.show((3, "_cq_batch = 3"))
    project.spark.sql(f"alter table {shop.table.name} alter column id type bigint")
    assert (yield from shop.wrong()) == {3}
    assert shop.followed


@in_step
def test_a_column_that_has_grown_in_raw_is_compared(project: DbtProject, raw: RawSchema) -> Steps:
    shop = Snapshot(project, raw, "wider")
    project.spark.sql(f"alter table {shop.table.name} add column amount decimal(10, 2)")
    shop.table.append(row(1, 1), row(2, 1))
    yield shop.table.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.table.append(row(2, 5))
    yield shop.table.plan_merge()
    project.spark.sql(f"alter table {shop.table.name} alter column amount type decimal(12, 2)")
    assert (yield from shop.wrong()) == set()


@in_step
def test_a_doubled_key_is_found_although_the_key_has_grown(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """Altering a table makes no Iceberg snapshot: the newest one has the narrower type."""
    shop = Snapshot(project, raw, "doubled")
    for key in (1, 2, 3):
        shop.table.append(row(key, 1))
    yield shop.table.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.table.append(row(3, 5))
    yield shop.table.plan_merge()
    older = f"select * from {shop.table.name} where id = 3 and _cq_batch = 3"
    shop.table.forge("latest", f"insert into {{0}} {older}")
    project.spark.sql(f"alter table {project.schema}.doubled_latest alter column id type bigint")
    assert (yield shop.table.plan_proof())["unique_key_latest"].status == "fail"


@in_step
def test_a_row_that_raw_does_not_have_is_found_when_its_turn_comes(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """By then, the snapshot showed it when it was last proved."""
    shop = Snapshot(project, raw, "invented")
    for batch in (1, 2, 3):
        shop.table.append(row(batch, batch))
    yield shop.table.plan_merge()
    assert (yield from shop.wrong()) == set()
    # as of a raw table that the model read once
    proofs = f"{project.schema}._cq_proofs"
    project.spark.sql(
        f"insert into {proofs} select proof, test, table_name, 1, configuration, 'raw.gone', "
        "raw_id, raw_snapshot_id, batch, again_step, again_batch, reason, invocation_id, proved_at "
        f"from {proofs} where raw_table = '{shop.table.name}'"
    )
    shop.table.forge("latest", "update {0} set _cq_seq = 99 where id = 3")
    for wrong in (set(), set(), {3}):
        assert (yield from shop.wrong()) == wrong
        assert shop.followed


SELECTS = {
    "select * from {source}": True,
    "select * from (select id, at, upper(payload) as payload, _cq_source_name, _cq_sync_time, "
    "_cq_batch, _cq_seq, _cq_row_hash, _cq_deleted, _cq_generation from {source}) as v": True,
    "with versions as (select * from {source}) select * from versions where id > 0": True,
    "select * from {source} where id in (select id from {source} where payload = 'vip')": False,
    "with v as (select * from {source}) select * from v where id in (select id from v)": False,
    "select a.* from {source} as a, {source} as b where a.id = b.id": False,
    "select * from (select * from {source}) as a, {source}": False,
    "select a.* from {source} as a left semi join {source} as b on a.id = b.id": False,
    "select *, count(*) over (partition by id) as versions from {source}": False,
    "select * from {source} where at < current_date": False,
    "select * from {source} where at < now()": False,
    "select * from {source} -- join over\n where payload <> 'a join, (select'": True,
    "select * from elsewhere.a_view_of_it": False,
}
"""Whether a SELECT surely decides about each version by that version alone."""


def test_selects_by_row(project: DbtProject) -> None:
    given = [select.format(source="`raw`.`orders`") for select in SELECTS]
    project.write(
        "macros/judged.sql",
        "{% macro judged(cases) %}{% for select, by_row in cases %}"
        "{% if strandline.selects_by_row(select, [{'name': 'raw.orders'}]) != by_row %}"
        "{{ exceptions.raise_compiler_error(select) }}"
        "{% endif %}{% endfor %}{% endmacro %}",
    )
    assert project.operation("judged", cases=[*zip(given, SELECTS.values(), strict=True)])


@in_step
def test_a_select_that_looks_at_other_rows_is_asked_for_all_of_raw(
    project: DbtProject, raw: RawSchema
) -> Steps:
    """Old versions of a key may be selected only later: what it showed cannot stand for them."""
    shop = Snapshot(
        project,
        raw,
        "chosen",
        "select * from {source} where id in (select id from {source} where payload = 'vip')",
    )
    shop.table.append(row(1, 1, "vip"), row(5, 9, "vip"))
    shop.table.append(row(3, 1, "vip"))
    shop.table.append(row(4, 1, "vip"), row(2, 9))
    yield shop.table.plan_merge()
    assert (yield from shop.wrong()) == set()
    shop.table.append(row(2, 5, "vip"), low=1)  # late, and with it the key is selected
    yield shop.table.plan_merge()
    shop.show((2, "_cq_batch = 4"))  # as a merge would, which is why it is built anew
    assert (yield from shop.wrong()) == {2}


@in_step
def test_what_is_right_stays_green(project: DbtProject, raw: RawSchema) -> Steps:
    """Late versions, tombstones, keys that come back, in any order."""
    chance = random.Random(SEED)
    shop = Snapshot(project, raw, "right")
    everything = ("--vars", "{strandline__prove_all: true, strandline__record_proofs: false}")
    for step in range(STEPS):
        for _ in range(chance.choice((0, 1, 1, 3)) if step else 1):
            keys = chance.sample(range(1, 9), 5)
            rows = [
                row(key, chance.randrange(1, 12), **(GONE if chance.random() < 0.3 else {}))
                for key in keys
            ]
            shop.table.append(*rows, low=1)
        yield shop.table.plan_merge()
        assert (yield from shop.wrong()) == set(), (SEED, step)
        assert shop.believed, (SEED, step)
        assert (yield from shop.wrong(*everything)) == set(), (SEED, step)
    told = [one for one in project.rows("_cq_proofs") if "right_latest" in one["proof"]]
    assert None in {one["reason"] for one in told}

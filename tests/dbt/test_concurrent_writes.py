"""A write by another program during a build is detected by the next build or test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.shop import READS, Shop, row

KINDS = ("latest", "history")
ROWS = 60


class DeletingProgram:
    """Deletes a row of a table, once, before or after a statement of the table's build."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.written: set[str] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch, statement: str, *, after: bool) -> None:
        """Patches Spark to do so at a statement with a text such as `merge into {table} as`."""
        run = SparkSession.sql

        def amid(session: SparkSession, text: str, *more: Any, **given: Any) -> Any:
            found = None if not after else run(session, text, *more, **given)
            for name in KINDS:
                table = f"{self.schema}.{name}"
                if statement.format(table=table) in text.replace("`", ""):
                    if name not in self.written:
                        run(session, f"delete from {table} where id = 3")
                    self.written.add(name)
            return found if after else run(session, text, *more, **given)

        monkeypatch.setattr(SparkSession, "sql", amid)


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    return Shop(project, raw, ["merging", "compacting", "forged"])


@pytest.fixture(autouse=True)
def run_tests_of_built_models(shop: Shop) -> Iterator[None]:
    """Runs the tests of the models that each test has built."""
    yield
    shop.prove()


@pytest.mark.parametrize(
    ("raw_table", "statement", "after"),
    [
        ("merging", "merge into {table} as", False),
        ("compacting", "system.rewrite_data_files(table => '{table}'", True),
    ],
)
def test_the_watermark_does_not_cover_a_foreign_write(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, raw_table: str, statement: str, after: bool
) -> None:
    """If the watermark named the foreign commit, no later build would detect it."""
    schema, sql = shop.project.schema, shop.project.spark.sql

    def vouched_for(name: str) -> bool:
        """Returns whether nothing but rewrites of files follows the watermark's commit."""
        snapshots = f"select snapshot_id, operation from {schema}.{name}.snapshots"
        commits = sql(f"{snapshots} order by committed_at desc").collect()
        listed = dict(sql(f"show tblproperties {schema}.{name}").collect())
        watermark = json.loads(listed["strandline.watermark"].replace("\u2063", ""))
        later = takewhile(lambda one: str(one[0]) != watermark["snapshot"], commits)
        return watermark["snapshot"] is not None and {one[1] for one in later} <= {"replace"}

    shop.raw.append(raw_table, 1, [row(n, 1) for n in range(ROWS)])
    for name in KINDS:
        shop.model(name, READS % raw_table, f"deduped_{name}")
    assert shop.messages(*KINDS) == dict.fromkeys(KINDS, "REBUILD to batch 1")
    for name in KINDS:  # so many files that each merge compacts them
        sql(f"alter table {schema}.{name} add partition field bucket(200, id)")
        sql(
            f"call lake.system.rewrite_data_files(table => '{schema}.{name}', "
            "options => map('rewrite-all', 'true'))"
        )
        [[files]] = sql(f"select count(*) from {schema}.{name}.files").collect()
        assert files > 32
    shop.raw.append(raw_table, 2, [row(2, 2, "shut")])
    assert shop.messages(*KINDS) == dict.fromkeys(KINDS, "MERGE to batch 2")
    assert all(map(vouched_for, KINDS))

    shop.raw.append(raw_table, 3, [row(1, 3, "shut")])
    amid = DeletingProgram(schema)
    amid.install(monkeypatch, statement, after=after)
    assert shop.messages(*KINDS) == dict.fromkeys(KINDS, "MERGE to batch 3")
    assert amid.written == set(KINDS)
    assert not any(map(vouched_for, KINDS))
    assert shop.messages(*KINDS) == dict.fromkeys(KINDS, "REBUILD to batch 3")


def test_the_next_run_detects_a_write_to_the_raw_table_after_the_check(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that built the table uses its own verdict and does not read the raw table again."""
    run, stored, later = SparkSession.sql, f"alter table {shop.project.schema}.forged", []

    def amid(session: SparkSession, text: str, *more: Any, **given: Any) -> Any:
        found = run(session, text, *more, **given)
        if stored in text.replace("`", ""):
            run(session, f"update {shop.raw.schema}.forged set status = 'forged' where id = 1")
            later.append("the update")
        elif later and f"{shop.raw.schema}.forged" in text.replace("`", ""):
            later.append(text)
        return found

    shop.raw.append("forged", 1, [row(1, 1), row(2, 1)])
    shop.model("forged", READS % "forged")
    with monkeypatch.context() as patched:
        patched.setattr(SparkSession, "sql", amid)
        built = shop.run("build", "--select", "forged")
    assert {one.status for one in built.values()} == {"success", "pass"}
    assert later == ["the update"]
    tested = shop.run("test", "--select", "forged")
    assert {one.status for one in tested.values()} == {"fail"}
    assert shop.build("forged", flags=("--full-refresh",)) == "REBUILD to batch 1"

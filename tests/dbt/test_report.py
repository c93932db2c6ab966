"""The report reads the test results of a real build and the keys of failing rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loader.errors import LoaderError
from loader.lake.folder_tables import FolderTables, find_warehouse
from loader.lake.lake import Lake
from loader.report.contents import build_report, choose_periods
from loader.report.history import SourceHistory
from loader.report.page import render_page
from loader.report.proofs import (
    Proof,
    add_stored_proofs,
    parse_verdicts,
    read_failing_rows,
    read_results,
    read_stored_proofs,
)
from loader.sync.status_readers import StatusReaders
from loader.sync.table_comparisons import FolderComparisons, LakeComparisons
from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.shop import STAGED, Shop, row
from tests.report.simulation import NOW

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    project.artifacts = True
    return Shop(project, raw, ["orders", "well", "stored"])


def test_results_that_builds_have_stored(shop: Shop, project: DbtProject, raw: RawSchema) -> None:
    """Without dbt's artifacts, the page has the verdicts of the newest build, not older results."""
    raw.append("stored", 1, [row(1, 1), row(2, 2)])
    shop.model("stored_latest", STAGED % ("status", "stored"))
    tests = ["strandline.matches_raw", "strandline.no_cursor_ties", "strandline.unique_key"]
    model = {"models": [{"name": "stored_latest", "data_tests": tests}]}
    project.write("models/stored_latest.yml", model)
    project.run("build", "--select", "stored_latest")
    target = project.folder / "target"
    before = read_results(target)
    assert before is not None
    assert [proof.status for proof in before.proofs] == ["pass"] * 3
    raw.append("stored", 2, [row(1, 5, "one"), row(1, 5, "two")])  # a tie
    project.run("run", "--select", "stored_latest")

    table, lake = f"{project.schema}.stored_latest", Lake(raw.spark, raw.schema)
    conf = dict(raw.spark.sparkContext.getConf().getAll())
    folder = FolderTables(find_warehouse(conf), raw.schema)
    [stored, by_spark, elsewhere] = [
        read_stored_proofs([_read_comparisons(comparisons, schema)], None)
        for comparisons, schema in (
            (FolderComparisons(folder), raw.schema),
            (LakeComparisons(lake), raw.schema),
            (FolderComparisons(folder), "elsewhere"),
        )
    ]
    assert (stored, elsewhere) == (by_spark, [])
    found = {proof.name: proof.status for proof in stored if proof.subject == table}
    expected = {"matches_raw": "pass", "no_cursor_ties": "fail", "unique_key": "pass"}
    assert found == expected
    assert f"up to batch 2 of {raw.schema}.stored" in stored[0].message

    alone = add_stored_proofs(None, stored)
    assert alone is not None
    since, length = choose_periods(NOW, 30)
    history = [SourceHistory("shop", ("shop",), [])]
    report = build_report(history, alone, NOW, since, length)
    assert report.sentence == "Something is wrong: 1 proof does not hold."
    page = render_page(report)
    assert "2 of 3 proofs hold, as stored by builds in their tables" in page
    assert f"batch 2 of {raw.schema}.stored" in page
    # stored verdicts replace dbt's results only if those are old and the table is the model's
    assert add_stored_proofs(before, stored) == before
    old = replace(before, at="2025-01-01T10:00:00Z", proofs=[*before.proofs, OTHER])
    merged = add_stored_proofs(old, stored)
    assert merged is not None
    assert {proof.name: proof.status for proof in merged.proofs} == {**expected, "other": "fail"}
    assert len(merged.proofs) == 4
    twice = [*stored, *(replace(proof, subject="dev.stored_latest") for proof in stored)]
    assert add_stored_proofs(old, twice) == old

    broken = {"strandline.watermark": "{}", "strandline.proved": "{"}
    with pytest.raises(LoaderError, match="its stored verdicts cannot be read"):
        parse_verdicts("analytics.t", broken, ["raw"])


OTHER = Proof("test.p.other", "other", "stored_latest", "fail")


def _read_comparisons(comparisons: FolderComparisons | LakeComparisons, schema: str) -> Any:
    """Returns readers of which only the comparisons and their schema are used."""
    return StatusReaders(None, schema, None, None, comparisons)  # type: ignore[arg-type]


def test_keys_of_failing_rows(shop: Shop, project: DbtProject, raw: RawSchema) -> None:
    """The page shows the keys of failing rows, but no other values of them."""
    raw.append("orders", 1, [row(key, key, SCRIPT) for key in range(1, 31)])
    raw.append("well", 1, [row(1, 1)])
    shop.model("orders_latest", STAGED % ("status", "orders"))
    shop.model("well_latest", STAGED % ("status", "well"))
    project.run("build", "--select", "orders_latest", "well_latest")
    target = project.folder / "target"
    built = read_results(target)
    assert built is not None
    assert (built.command, [proof.status for proof in built.proofs]) == ("build", ["pass", "pass"])
    assert {"orders_latest", "matches_raw on orders_latest"} <= built.node_seconds.keys()

    table = f"{project.schema}.orders_latest"
    project.spark.sql(f"update {table} set status = 'a private remark' where id > 5")
    shop.proofs("orders_latest", "well_latest")
    tested = read_results(target)
    assert tested is not None
    proofs = read_failing_rows(project.spark, tested.proofs)
    [failed] = [proof for proof in proofs if proof.has_failed]
    assert (failed.name, failed.subject, failed.failures) == ("matches_raw", "orders_latest", 25)
    assert list(failed.rows.columns) == ["id", "problem"]
    assert (len(failed.rows.rows), failed.rows.has_more) == (20, True)
    assert {key for key, _ in failed.rows.rows} < set(map(str, range(6, 31)))
    assert {problem for _, problem in failed.rows.rows} == {"differs from the raw table"}

    results = replace(tested, proofs=proofs)
    since, length = choose_periods(NOW, 30)
    report = build_report([SourceHistory("shop", ("shop",), [])], results, NOW, since, length)
    assert report.sentence == "Something is wrong: 1 proof does not hold."
    page = render_page(report)
    assert "25 failing rows; the first 20:" in page
    assert "a private remark" not in page
    assert "alert" not in page

    # This SQL names the snapshot that the test has read, so it always finds these keys. The SQL of
    # other tests may find nothing any more, or fail.
    other = replace(failed, sql="select 1 as id where false")
    wrong = replace(failed, sql="select 1 as id from nowhere")
    [gone, broken] = read_failing_rows(project.spark, [other, wrong])
    assert (gone.rows.rows, broken.rows.rows) == ((), ())
    assert "no longer finds these rows" in gone.rows.note
    assert "could not be read: " in broken.rows.note
    assert "nowhere" in broken.rows.note

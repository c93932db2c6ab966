"""The report reads the proofs of a real build, and the keys of the rows for which one fails."""

from __future__ import annotations

from dataclasses import replace

from loader.report.contents import build_report, choose_periods
from loader.report.history import SourceHistory
from loader.report.page import render_page
from loader.report.proofs import read_failing_rows, read_results
from tests.dbt.dbtproject import DbtProject
from tests.dbt.rawtables import RawSchema
from tests.dbt.shop import STAGED, Shop, row
from tests.report.simulation import NOW

SCRIPT = "<script>alert(1)</script>"


def test_keys_of_failing_rows(project: DbtProject, raw: RawSchema) -> None:
    project.artifacts = True
    shop = Shop(project, raw, ["orders", "well"])
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

"""The dbt run-operations maintain the tables that dbt builds, and refuse the loader's tables."""

from __future__ import annotations

from tests.maintenance.shop import ORDERS, Shop

ALONE = {"alone": True}
REFUSED: list[tuple[str, str, str]] = [
    ("rewrite_files", "orders", "belongs to the loader, and dbt cannot know"),
    ("expire_snapshots", "orders", "Use `loader compact --select SOURCE.TABLE`"),
    ("rewrite_files", "_cq_state", "_cq_state belongs to the loader"),
    ("expire_snapshots", "_cq_syncs", "_cq_syncs belongs to the loader"),
    ("expire_snapshots", "no_such", "there is no table"),
]


def test_other_tables_are_refused_with_a_remedy(shop: Shop) -> None:
    project = shop.project
    before = project.snapshots("orders"), project.snapshots("_cq_state")
    for name, table, said in REFUSED:
        assert said in shop.refused(name, relation=f"{project.schema}.{table}", **ALONE)
    assert (project.snapshots("orders"), project.snapshots("_cq_state")) == before


def test_a_snapshot_table_keeps_its_rows_and_its_watermark(shop: Shop) -> None:
    shop.model("latest", "deduped_latest")
    for _ in range(3):
        shop.change()
        shop.project.run()
        shop.dbt.run("run", "--select", "latest")
    rows = sorted(shop.dbt.rows("latest"), key=lambda row: row["id"])
    name = f"{shop.dbt.schema}.latest"
    for operation in ("rewrite_files", "expire_snapshots"):
        assert "then set alone: true" in shop.refused(operation, relation=name)
    for wrong in ("5d", "-5", 0.5):  # none of them is 0 days
        said = shop.refused("expire_snapshots", relation=name, days=wrong, **ALONE)
        assert "Set it to a whole number of days" in said
    spark = shop.project.spark
    spark.sql(f"alter table {name} create tag january")

    shop.operation("rewrite_files", relation=name, **ALONE)
    [(files,)] = spark.sql(f"select count(*) from {name}.files").collect()
    assert files == 1
    shop.operation("expire_snapshots", relation=name, days=0, **ALONE)
    refs = {row["name"] for row in spark.sql(f"select name from {name}.refs").collect()}
    assert refs == {"main", "january"}
    assert len(shop.dbt.snapshots("latest")) == 2
    assert spark.sql(f"select * from {name} version as of 'january'").count() == ORDERS

    assert sorted(shop.dbt.rows("latest"), key=lambda row: row["id"]) == rows
    result = shop.dbt.run("run", "--select", "latest")["latest"]
    assert result.message == "NO NEW BATCH"
    shop.run_tests(by="matches_raw")

"""The targets of the profile that `loader init` writes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from loader.spark.profile import load_profile
from loader.spark.session import sibling
from tests.services import Database

ROOT = Path(__file__).resolve().parents[2]


def test_the_cluster_target_has_views_on_a_jdbc_catalog(
    spark: SparkSession, postgres_database: Database, tmp_path: Path
) -> None:
    # dbt lists a schema's views before it builds; such a catalog lacks them by default, and fails.
    user = f"user={postgres_database.user}&password={postgres_database.password}"
    env = {
        "STRANDLINE_SPARK_MASTER": "local[1]",
        "STRANDLINE_CATALOG_TYPE": "jdbc",
        "STRANDLINE_CATALOG_URI": f"{postgres_database.url}?{user}",
        "STRANDLINE_WAREHOUSE": str(tmp_path / "warehouse"),
    }
    profile = load_profile("strandline", "cluster", ROOT, str(ROOT / "profiles"), env=env)
    session = sibling(spark)
    for key, value in profile.conf.items():
        if key.startswith("spark.sql.catalog."):
            session.conf.set(key, value)
    session.sql("create namespace lake.analytics")
    session.sql("create table lake.analytics.t (id int) using iceberg")
    assert session.sql("show views in lake.analytics").collect() == []
    assert [row["tableName"] for row in session.sql("show tables in lake.analytics").collect()] == [
        "t"
    ]

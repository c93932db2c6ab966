"""The targets of the profile that `loader init` writes: settings, host names and catalogs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.spark.profile import load_profile
from loader.spark.session import sibling
from tests.services import Database

ROOT = Path(__file__).resolve().parents[2]


PROFILE = (ROOT / "profiles" / "profiles.yml").read_text()
PAGE = (ROOT / "docs" / "cluster.md").read_text()
REQUIRED = {"STRANDLINE_SPARK_MASTER": "spark://m:7077", "STRANDLINE_WAREHOUSE": "s3://b/lake"}
_VARIABLE = r"\b(?:STRANDLINE_[A-Z0-9_]+|AWS_REGION)\b"


def test_the_page_lists_each_variable_of_the_cluster_target() -> None:
    target = PROFILE.partition("    cluster:\n")[2]
    settings = PAGE.partition("## Settings\n")[2].partition("\n## ")[0]
    listed = set(re.findall(_VARIABLE, "\n".join(re.findall(r"^\| (`.*?) \|", settings, re.M))))
    assert listed == set(re.findall(_VARIABLE, target))
    others = {"STRANDLINE_TARGET", "STRANDLINE_JARS", "STRANDLINE_CACHE"}
    assert set(re.findall(_VARIABLE, PAGE)) <= {*listed, *others}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, {"spark.executor.memory": "2g", "spark.sql.catalog.lake.type": "rest"}),
        (
            {"STRANDLINE_S3_ENDPOINT": "http://s:1", "STRANDLINE_S3_PATH_STYLE": "true"},
            {
                "spark.sql.catalog.lake.s3.endpoint": "http://s:1",
                "spark.sql.catalog.lake.s3.path-style-access": "true",
                "spark.sql.catalog.lake.client.region": "us-east-1",
            },
        ),
        (
            {"STRANDLINE_S3_ENDPOINT": "http://s:1", "AWS_REGION": "eu-west-1"},
            {"spark.sql.catalog.lake.client.region": "eu-west-1"},
        ),
        ({"STRANDLINE_CORES_MAX": "4"}, {"spark.cores.max": "4"}),
        ({"STRANDLINE_DRIVER_HOST": "10.0.0.5"}, {"spark.driver.host": "10.0.0.5"}),
        ({"STRANDLINE_CATALOG_USER": "c"}, {"spark.sql.catalog.lake.jdbc.user": "c"}),
    ],
)
def test_each_setting_of_the_cluster_target_has_a_variable(
    given: dict[str, str], settings: dict[str, str]
) -> None:
    env = {**REQUIRED, **given}
    conf = load_profile("strandline", "cluster", ROOT, str(ROOT / "profiles"), env=env).conf
    assert conf.items() >= {**settings, "spark.master": "spark://m:7077"}.items()
    unset = {"spark.driver.host", "spark.cores.max", "spark.jars", "spark.jars.packages"}
    assert not (unset - settings.keys()) & conf.keys()


def test_a_machine_whose_host_name_does_not_resolve(tmp_path: Path) -> None:
    """Spark looks up the machine's name unless the target sets `spark.driver.host`."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    named = ["unshare", *user, "--uts", "sh", "-c", 'hostname no-such-host-4711; exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*named, "true"], check=False).returncode:
        pytest.skip("this user may not rename the machine")
    code = (
        "from pathlib import Path; from loader.spark.profile import load_profile; import sys\n"
        "from loader.spark.session import session\n"
        f"profiles = {str(ROOT / 'profiles')!r}\n"
        "try: print(session(load_profile('strandline', 'cluster', Path('.'), profiles)).version)\n"
        "except Exception as error: sys.exit(str(error))\n"
    )
    own = {
        "STRANDLINE_SPARK_MASTER": "local[1]",
        "STRANDLINE_CATALOG_TYPE": "hadoop",
        "STRANDLINE_WAREHOUSE": str(tmp_path),
    }

    def start(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*named, sys.executable, "-c", code],
            env={**os.environ, **own, **more},
            capture_output=True,
            text=True,
            check=False,
        )

    refused = start()
    assert refused.returncode == 1
    assert "this machine's host name no-such-host-4711 does not resolve" in refused.stderr
    assert "Set spark.driver.host in the target (STRANDLINE_DRIVER_HOST)" in refused.stderr
    misspelt = start(STRANDLINE_DRIVER_HOST="nowhere.invalid")
    assert "the host name nowhere.invalid (spark.driver.host) does not resolve" in misspelt.stderr
    started = start(STRANDLINE_DRIVER_HOST="127.0.0.1")
    assert started.returncode == 0, started.stderr


def test_the_cluster_target_has_views_on_a_jdbc_catalog(
    spark: SparkSession, postgres_database: Database, tmp_path: Path
) -> None:
    # dbt lists a schema's views before it builds. By default, a JDBC catalog cannot list views.
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

"""The variables that docs/cluster.md shows are enough for a check, a sync and a build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loader.spark import setup
from tests.cluster.project import serve_catalog
from tests.crash import shop
from tests.services import Database
from tests.services.seaweed import ACCOUNT, BUCKET, Seaweed
from tests.services.spark_cluster import SparkCluster
from tests.setup.pages import ROOT

PAGE = (ROOT / "docs" / "cluster.md").read_text()
SPEC = """
kind: source
spec:
  name: shop
  path: jdbc
  tables: [orders]
  destinations: [lake]
  spec: {{url: "{url}", user: "{user}", password: "{password}",
    table_options: {{orders: {{cursor_field: at}}}}}}
---
kind: destination
spec:
  name: lake
  path: spark
  spec: {{profile: strandline, schema: raw}}
"""


def _exported(marker: str) -> set[str]:
    """Returns the variables that the page's block with this text exports."""
    [block] = [b for b in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if marker in b]
    return set(re.findall(r"\b([A-Z0-9_]+)=", block))


@pytest.mark.parametrize("catalog", ["jdbc", "rest"])
def test_the_variables_of_the_page_are_enough(
    catalog: str,
    cluster: SparkCluster,
    object_store: Seaweed,
    catalog_database: Database,
    postgres_database: Database,
    tmp_path: Path,
) -> None:
    setup.create(tmp_path, lambda line: None, target="cluster")
    source = postgres_database
    shop.create(source, ["orders"])
    spec = SPEC.format(url=source.url, user=source.user, password=source.password)
    (tmp_path / "loader.yml").write_text(spec)
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:*:{catalog_database.password}\n")
    passwords.chmod(0o600)
    rest = serve_catalog(object_store, tmp_path / "rest")
    values = {
        **ACCOUNT,
        "STRANDLINE_TARGET": "cluster",
        "STRANDLINE_SPARK_MASTER": cluster.url,
        "STRANDLINE_CATALOG_TYPE": catalog,
        "STRANDLINE_CATALOG_URI": catalog_database.url if catalog == "jdbc" else rest.url,
        "STRANDLINE_CATALOG_USER": catalog_database.user,
        "PGPASSFILE": str(passwords),
        "STRANDLINE_WAREHOUSE": f"s3://{BUCKET}/{'recipe' if catalog == 'jdbc' else 'rest'}",
        "STRANDLINE_S3_ENDPOINT": object_store.endpoint,
        "STRANDLINE_S3_PATH_STYLE": "true",
    }
    names = _exported("STRANDLINE_TARGET=cluster")
    if catalog == "rest":
        # The catalog of the tests needs no credential.
        names -= {"STRANDLINE_CATALOG_USER", "PGPASSFILE"}
        names |= _exported("STRANDLINE_CATALOG_TYPE=rest") - {"STRANDLINE_CATALOG_CREDENTIAL"}
    kept = {"STRANDLINE_JARS", "STRANDLINE_CACHE"}
    environment = {
        **{n: v for n, v in os.environ.items() if not n.startswith("STRANDLINE_") or n in kept},
        **{name: values[name] for name in names},
        "STRANDLINE_DRIVER_HOST": "127.0.0.1",  # all machines of the tests are this one
        "STRANDLINE_EXECUTOR_MEMORY": "1g",
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "loader", *command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"loader {command}:\n{done.stdout}"
        return done.stdout

    try:
        assert "All tables can be synced." in run("check")
        run("run")
        run("codegen")
        assert ", 0 failed" in run("run", "--build")
        assert "shop.orders" in run("status")
    finally:
        rest.close()

"""The software bill of materials has the Python packages, Spark's jars and the loader's jars."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from loader.spark.spark_version import LINES

ROOT = Path(__file__).resolve().parents[2]


def test_the_bill_names_packages_and_jars() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "sbom")], capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {each["name"].lower(): each for each in bill["components"]}
    assert by_name["pyspark"]["purl"].startswith("pkg:pypi/pyspark@")
    assert any(name.startswith("spark-core_") for name in by_name)
    for line in LINES.values():
        iceberg = by_name[line.iceberg.artifact]
        assert iceberg["purl"] == (
            f"pkg:maven/org.apache.iceberg/{line.iceberg.artifact}@{line.iceberg.version}"
        )
        assert iceberg["hashes"][0]["content"] == line.iceberg.sha256
    [mysql] = by_name["mysql-connector-j"]["licenses"]
    assert mysql["license"]["name"].startswith("GPL-2.0-only")
    assert by_name["uplot"]["purl"] == "pkg:npm/uplot@1.6.32"
    assert "strandline" not in by_name

"""The bill of materials names what runs: Python packages and Spark's jars."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_bill_names_packages_and_jars() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "sbom")], capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {each["name"].lower(): each for each in bill["components"]}
    assert by_name["pyspark"]["purl"].startswith("pkg:pypi/pyspark@3.5.")
    iceberg = by_name["iceberg-spark-runtime-3.5_2.12"]
    assert iceberg["version"].startswith("1.10.")
    assert len(iceberg["hashes"][0]["content"]) == 64
    assert "strandline" not in by_name

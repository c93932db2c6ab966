"""Collects these tests only in `make test-matrix`, which installs two versions of Spark."""

import os

collect_ignore = [] if os.environ.get("OTHER_PYTHON") else ["test_spark_versions.py"]

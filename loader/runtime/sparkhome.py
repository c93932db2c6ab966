"""Finds Spark and the Iceberg runtime without importing PySpark."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from loader.errors import SpecError

_INSTALL = "pip install 'strandline[embedded]'"
# The runtime jar is built for exactly this line of Spark and Scala.
_CORE_JARS = "spark-core_2.12-3.5.*.jar"
_ICEBERG_PACKAGE = "snowpark_connect_deps_iceberg"
_ICEBERG_JARS = "iceberg-spark-runtime-3.5_2.12-*.jar"


def find() -> Path:
    """Returns Spark's folder by PySpark's own rule: `SPARK_HOME`, then the installed package.

    Raises:
        SpecError: if there is none, or the Iceberg runtime is not built for its version.
    """
    given = os.environ.get("SPARK_HOME")
    home = Path(given) if given else _package("pyspark")
    if home is None:
        raise SpecError("PySpark is not installed", where="Spark", remedy=f"Run `{_INSTALL}`")
    if not any((home / "jars").glob(_CORE_JARS)):
        raise SpecError(
            f"{home} is not Spark 3.5 with Scala 2.12, which the Iceberg runtime is built for",
            where="SPARK_HOME" if given else "Spark",
            remedy="Unset SPARK_HOME" if given else f"Run `{_INSTALL}`",
        )
    return home


def iceberg_runtime() -> Path:
    """Returns the Iceberg runtime's jar in its Python package.

    Raises:
        SpecError: if the package is not installed.
    """
    package = _package(_ICEBERG_PACKAGE)
    jar = next((package / "jars").glob(_ICEBERG_JARS), None) if package else None
    if jar is None:
        raise SpecError(
            f"the Iceberg runtime is not installed (package {_ICEBERG_PACKAGE.replace('_', '-')})",
            where="Iceberg",
            remedy=f"Run `{_INSTALL}`",
        )
    return jar


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None

"""Builds the class path for Spark's JVM from the jars of Spark, Iceberg, drivers and the user."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import is_zipfile

from loader.spark.jars import DRIVERS, find_drivers, find_jar
from loader.spark.spark_version import SparkHome

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_ICEBERG = "iceberg-spark-runtime"
JARS = "spark.jars"
"""The setting that lists the jars for executors, which the JVM receives when it starts. A session
must not set it, because that would replace the jars that the loader added or Spark downloaded."""
_PACKAGES = "spark.jars.packages"
# Spark opens these files in `conf/` by path. It finds other files only on the class path.
_READ_BY_PATH = ("spark-env.sh", "spark-defaults.conf", "log4j2.properties")
# MLlib is not used. Spark 4 would register its functions at each start, taking 0.5 s of 3.3 s.
_UNUSED = ("spark-mllib_",)


def list_jars(home: SparkHome, settings: Mapping[str, str]) -> list[Path]:
    """Lists the jars for a JVM with these settings, starting with the jars in Spark's folder.

    Omits MLlib. From Spark's folder, also omits broken links, Iceberg runtimes for other versions
    of Spark, and drivers that `loader setup` provides in another folder.
    """
    drivers = [path.name for path in find_drivers()]
    provided = [driver for driver in DRIVERS.values() if any(map(driver.owns, drivers))]
    spark = [
        jar
        for jar in sorted((home.folder / "jars").glob("*.jar"))
        if jar.exists()
        and not jar.name.startswith(_UNUSED)
        and (not jar.name.startswith(_ICEBERG) or home.line.iceberg.owns(jar.name))
        and not any(driver.owns(jar.name) for driver in provided)
    ]
    return [*spark, *list_own_jars(home, settings)]


def list_own_jars(home: SparkHome, settings: Mapping[str, str]) -> list[Path]:
    """Lists the loader's jars: the drivers, and Iceberg unless Spark or the user provides it."""
    iceberg = find_jar(home.line.iceberg)
    others = find_spark_iceberg(home) or configures_iceberg(home, settings)
    return [*([iceberg] if iceberg and not others else []), *find_drivers(home.line.aws)]


def find_spark_iceberg(home: SparkHome) -> Path | None:
    """Returns the Iceberg runtime in Spark's folder.

    Returns None if the folder contains none for this version of Spark.
    """
    jars = (home.folder / "jars").glob(f"{home.line.iceberg.artifact}-*.jar")
    return next((jar for jar in jars if jar.exists()), None)


def configures_iceberg(home: SparkHome, settings: Mapping[str, str]) -> bool:
    """Returns whether the profile, Spark's defaults or the arguments name an Iceberg runtime."""
    defaults = read_text(conf_folder(home, os.environ) / "spark-defaults.conf")
    defaults = re.sub(r"(?m)^\s*[#!].*$", "", defaults)
    settings_texts = (
        settings.get(JARS),
        settings.get(_PACKAGES),
        os.environ.get(ARGUMENTS),
        defaults,
    )
    return any(_ICEBERG in text for text in settings_texts if text)


def lacks_iceberg(home: SparkHome, settings: Mapping[str, str]) -> bool:
    """Returns whether neither Spark, the user's settings nor the loader's jars contain Iceberg.

    A truncated jar, which `loader setup` reports, counts as missing.
    """
    if find_spark_iceberg(home) or configures_iceberg(home, settings):
        return False
    jar = find_jar(home.line.iceberg)
    return jar is None or not is_zipfile(jar)


def add_shipped_jars(home: SparkHome, settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the setting that makes Spark copy the loader's jars to remote executors."""
    if settings.get("spark.master", "local").startswith("local"):
        return {}
    given = list(filter(None, settings.get(JARS, "").split(",")))
    configured_names = {jar.strip().rpartition("/")[2] for jar in given}
    own_jars = [
        str(jar) for jar in list_own_jars(home, settings) if jar.name not in configured_names
    ]
    return {JARS: ",".join([*given, *own_jars])} if own_jars else {}


def conf_folder(home: SparkHome, environment: Mapping[str, str]) -> Path:
    configured = environment.get("SPARK_CONF_DIR")
    return Path(configured) if configured else home.folder / "conf"


def find_needed_conf(home: SparkHome, environment: Mapping[str, str]) -> Path | None:
    """Returns the configuration folder if it must be on the class path, else None."""
    conf = conf_folder(home, environment)
    files: Iterable[Path] = conf.iterdir() if conf.is_dir() else ()
    needed = bool(environment.get("SPARK_CONF_DIR")) or any(
        file.name not in _READ_BY_PATH and not file.name.endswith(".template") for file in files
    )
    return conf if needed else None


def read_text(path: Path) -> str:
    """Returns the text of a file. Like Spark, treats a file that cannot be read as empty."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

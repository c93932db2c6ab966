"""Builds the class path of Spark's JVM: Spark's jars, Iceberg, JDBC drivers, the user's jars."""

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
_JARS, _PACKAGES = "spark.jars", "spark.jars.packages"
# Files in `conf/` that are read by path: the others must be on the class path.
_READ_BY_PATH = ("spark-env.sh", "spark-defaults.conf", "log4j2.properties")
# Spark 4 registers MLlib's functions by Scala reflection in each first session: 0.5 s of 3.3 s.
_UNUSED = ("spark-mllib_",)


def list_jars(home: SparkHome, settings: Mapping[str, str]) -> list[Path]:
    """Lists the jars of a JVM with these settings, Spark's own first.

    Leaves out MLlib. Of the jars that were added to Spark's own folder, leaves out an Iceberg that
    was built for another Spark, a broken link, and a driver that we have, too.
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
    return [*spark, *own_jars(home, settings)]


def own_jars(home: SparkHome, settings: Mapping[str, str]) -> list[Path]:
    """Lists the jars that come after Spark's: drivers, and Iceberg unless there is one already."""
    iceberg = find_jar(home.line.iceberg)
    others = find_spark_iceberg(home) or names_iceberg(home, settings)
    return [*([iceberg] if iceberg and not others else []), *find_drivers(home.line.aws)]


def find_spark_iceberg(home: SparkHome) -> Path | None:
    """Returns the Iceberg runtime in Spark's own folder; None if none there fits."""
    jars = (home.folder / "jars").glob(f"{home.line.iceberg.artifact}-*.jar")
    return next((jar for jar in jars if jar.exists()), None)


def names_iceberg(home: SparkHome, settings: Mapping[str, str]) -> bool:
    """Whether the user names an Iceberg runtime: in the profile, Spark's defaults or arguments."""
    defaults = read_text(conf_folder(home, os.environ) / "spark-defaults.conf")
    defaults = re.sub(r"(?m)^\s*[#!].*$", "", defaults)
    named = (settings.get(_JARS), settings.get(_PACKAGES), os.environ.get(ARGUMENTS), defaults)
    return any(_ICEBERG in text for text in named if text)


def lacks_iceberg(home: SparkHome, settings: Mapping[str, str]) -> bool:
    """Whether neither the user, nor Spark, nor a folder of jars has the Iceberg runtime.

    A truncated one counts as missing: `loader setup` reports its error.
    """
    if find_spark_iceberg(home) or names_iceberg(home, settings):
        return False
    found = find_jar(home.line.iceberg)
    return found is None or not is_zipfile(found)


def add_shipped_jars(home: SparkHome, settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the setting by which executors on other machines get our jars."""
    if settings.get("spark.master", "local").startswith("local"):
        return {}
    given = list(filter(None, settings.get(_JARS, "").split(",")))
    named = {jar.strip().rpartition("/")[2] for jar in given}
    ours = [str(jar) for jar in own_jars(home, settings) if jar.name not in named]
    return {_JARS: ",".join([*given, *ours])} if ours else {}


def conf_folder(home: SparkHome, environment: Mapping[str, str]) -> Path:
    """Returns the folder of Spark's configuration."""
    named = environment.get("SPARK_CONF_DIR")
    return Path(named) if named else home.folder / "conf"


def find_needed_conf(home: SparkHome, environment: Mapping[str, str]) -> Path | None:
    """Returns the folder of configuration if it must be on the class path."""
    conf = conf_folder(home, environment)
    files: Iterable[Path] = conf.iterdir() if conf.is_dir() else ()
    needed = bool(environment.get("SPARK_CONF_DIR")) or any(
        file.name not in _READ_BY_PATH and not file.name.endswith(".template") for file in files
    )
    return conf if needed else None


def read_text(path: Path) -> str:
    """Returns the text of a file as Spark reads it; nothing if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

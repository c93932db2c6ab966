"""Implements `loader setup`: fetches Spark's jars, for the loader and for a plain `dbt build`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from loader.errors import SpecError
from loader.spark import jars, scaffold
from loader.spark.class_path import find_spark_iceberg, lacks_iceberg, list_jars, own_jars
from loader.spark.jars import Driver, Report
from loader.spark.java import choose_java
from loader.spark.spark_line import SparkHome, SparkLine, find_spark

AWS = "aws"


def prepare(drivers: Sequence[str], folder: Path, report: Report) -> None:
    """Prepares Spark, the named JDBC drivers, and the project in `folder` if there is one.

    Can be repeated: what is already right stays untouched.

    Args:
        drivers: names (`postgresql`, `aws`) or paths of jars.
        folder: the project's folder; its link to the dbt package is repaired.
        report: gets a line for each thing done.

    Raises:
        SpecError: if something is missing, unknown, cannot be fetched or not be written.
    """
    home = find_spark()
    java = choose_java(home.line)
    wanted = [(name, _find_jar_or_driver(name, home.line)) for name in drivers]
    report(f"Spark {home.line.version}: {home.folder}")
    report(f"Java: {java.reason}")
    report(f"Iceberg: {_provide_iceberg(home, report)}")
    for name, driver in wanted:
        report(f"{name}: {_provide(driver, report)}")
    own = ",".join(map(str, own_jars(home, {})))
    report(f"spark.jars: {own} (for a profile whose Spark the loader does not start)")
    if scaffold.uses_link(folder):
        report(scaffold.link_package(folder))
        mended = scaffold.mend_profile(folder)
        if mended:
            report(mended)


def provide_jars(conf: Mapping[str, str], urls: Iterable[str], report: Report) -> None:
    """Fetches the Iceberg runtime and the drivers for some URLs if this machine has none.

    Jars that the profile names itself are not fetched. A driver that cannot be had is left to the
    source's own error, which stops no other source.

    Raises:
        SpecError: if there is no Iceberg runtime.
    """
    home = find_spark()
    named = f"{conf.get('spark.jars', '')},{conf.get('spark.jars.packages', '')}"
    if lacks_iceberg(home, conf):
        report(f"Iceberg: {_provide_iceberg(home, report)}")
    present = [path.name for path in list_jars(home, conf)]
    for url in urls:
        driver = jars.driver_for_url(url)
        if driver is None or driver.jar.artifact in named or any(map(driver.owns, present)):
            continue
        with suppress(SpecError):
            report(f"{driver.name}: {jars.provide_driver(driver, report)}")
            present.append(driver.jar.file_name)


def _provide_iceberg(home: SparkHome, report: Report) -> str:
    other = find_spark_iceberg(home)
    if other:
        return f"{other.name} is in Spark's own folder"
    present = jars.find_jar(home.line.iceberg)
    jar = jars.provide_jar(home.line.iceberg, report)
    return f"{jar.name} {'is there' if present else 'fetched'}"


def _find_jar_or_driver(name: str, line: SparkLine) -> Path | jars.Jar | Driver | None:
    """Resolves a name: to a jar, a driver, or None for one that comes with Spark."""
    if name.lower() in jars.BUILT_IN:
        return None
    if name.lower() == AWS:
        return line.aws
    if not name.endswith(".jar") and os.sep not in name:
        return jars.find_driver(name)
    jar = Path(os.path.expanduser(name)).absolute()
    if not jar.is_file():
        raise SpecError(f"there is no file {jar}", where="loader setup")
    if jar.suffix != ".jar":
        raise SpecError(f"{jar} is not a .jar file", where="loader setup")
    return jar


def _provide(driver: Path | jars.Jar | Driver | None, report: Report) -> str:
    if driver is None:
        return "comes with Spark"
    if isinstance(driver, jars.Jar):
        present = jars.find_jar(driver)
        return f"{jars.provide_jar(driver, report).name} {'is there' if present else 'fetched'}"
    if isinstance(driver, Driver):
        return jars.provide_driver(driver, report)
    return jars.link_jar(driver)

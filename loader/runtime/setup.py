"""`loader setup`: makes the embedded Spark ready, for the loader and for a plain `dbt build`.

Everything goes into Spark's own folder, where each process that uses it looks first: jars into
`jars/`, the JDK and quiet logs into `conf/`. So nothing needs to be exported, and no setting
names a path of this machine.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from loader.errors import SpecError
from loader.runtime import drivers as jdbc
from loader.runtime import java, scaffold, sparkhome
from loader.runtime.placing import place, write_block, write_own

Report = Callable[[str], None]

_CONSOLE_LOG = """\
# Only errors: at start Spark and Hadoop warn of things that do not matter on a laptop.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# PySpark sets the log level to this class's, and says so if it differs.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
"""


def prepare(drivers: Sequence[str], folder: Path, report: Report) -> None:
    """Prepares Spark, the named JDBC drivers, and the project in `folder` if there is one.

    Can be repeated: what is already right stays untouched.

    Args:
        drivers: names (`postgresql`) or paths of jars.
        folder: the project's folder; its link to the dbt package is repaired.
        report: gets a line for each thing done.

    Raises:
        SpecError: if something is missing, unknown or not writable.
    """
    home = sparkhome.find()
    if os.pathsep in str(home):
        raise SpecError(
            f"Spark cannot run in a folder whose path has a `{os.pathsep}`: {home}",
            where="loader setup",
            remedy="Move the virtual environment",
        )
    wanted = [(name, _jar_or_driver(name)) for name in drivers]
    report(f"Spark: {home}")
    try:
        report(_iceberg(home))
        for name, driver in wanted:
            report(f"driver {name}: {_driver(driver, home)}")
        report(f"Java: {_java(home)}")
        report(f"logs: {_logs(home)}")
    except OSError as error:
        raise SpecError(
            f"cannot write {error.filename or home}: {error.strerror or error}",
            where="loader setup",
            remedy="Use a virtual environment of your own (`python3 -m venv .venv`), "
            "or run this as the owner of that folder",
        ) from error
    if scaffold.uses_link(folder):
        report(scaffold.link_package(folder))
        mended = scaffold.mend_warehouse(folder)
        if mended:
            report(mended)


def problem() -> str | None:
    """Returns what keeps Spark from running Iceberg here, or None. Looks at files only: cheap."""
    try:
        home = sparkhome.find()
    except SpecError as error:
        return error.what
    if not _iceberg_jars(home):
        return "Spark lacks the Iceberg runtime"
    if not java.reachable(home):
        return "no Java is found on this machine"
    return None


def _iceberg(home: Path) -> str:
    source = sparkhome.iceberg_runtime()
    others = [jar for jar in _iceberg_jars(home) if jar.name != source.name]
    for other in others:
        if not other.is_symlink():
            return f"Iceberg: {other.name} is in {other.parent} already, kept"
    for other in others:
        other.unlink()  # a link to another version: two of them on one class path do not work
    return f"Iceberg: {place(source, home / 'jars' / source.name)}"


def _iceberg_jars(home: Path) -> list[Path]:
    return [jar for jar in (home / "jars").glob("iceberg-spark-runtime-*.jar") if jar.exists()]


def _jar_or_driver(name: str) -> Path | jdbc.Driver | None:
    """Returns what was named: a jar, a driver, or None for one that Spark includes."""
    if name.lower() in jdbc.BUILT_IN:
        return None
    if not name.endswith(".jar") and os.sep not in name:
        return jdbc.named(name)
    jar = Path(os.path.expanduser(name)).absolute()
    if not jar.is_file():
        raise SpecError(f"there is no file {jar}", where="loader setup")
    if jar.suffix != ".jar":
        raise SpecError(f"{jar} is not a .jar file", where="loader setup")
    return jar


def _driver(driver: Path | jdbc.Driver | None, home: Path) -> str:
    jars = home / "jars"
    if driver is None:
        return "comes with Spark"
    if isinstance(driver, Path):
        return place(driver, jars / driver.name)
    present = _present(home, driver)
    if present is not None:
        return f"{present.name} is there"
    found = jdbc.on_system(driver)
    if found is not None:
        return place(found, jars / found.name)
    return f"{jdbc.download(driver, jars).name} downloaded"


def _present(home: Path, driver: jdbc.Driver) -> Path | None:
    jars: Iterable[Path] = (home / "jars").glob("*.jar")
    return next((jar for jar in jars if driver.owns(jar.name) and jar.exists()), None)


def _java(home: Path) -> str:
    choice = java.choose()
    if choice.block is None:
        return choice.reason
    if any(mark in str(home) for mark in " \t"):  # Spark's own scripts do not quote this path
        if choice.home is None:
            return choice.reason
        raise SpecError(
            f"Spark cannot read its settings in a folder whose name has a space: {home}",
            where="loader setup",
            remedy=f"Export JAVA_HOME={shlex.quote(str(choice.home))}, "
            "or move the virtual environment",
        )
    write_block(home / java.SETTINGS, choice.block)
    return choice.reason


def _logs(home: Path) -> str:
    path = home / "conf" / "log4j2.properties"
    if not write_own(path, _CONSOLE_LOG):
        return f"{path} is not ours, kept"
    return "errors only"

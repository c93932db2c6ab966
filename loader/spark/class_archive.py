"""Records a class archive, which halves Spark's start time.

The archive contains parsed classes (see
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). It is recorded once for each
combination of Java and Spark versions, during a small run
(:mod:`loader.cli.class_archive_workload`). Java uses the archive only if the class path starts with
the recorded class path, so jars that are added later must be at its end.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from loader.errors import SpecError
from loader.spark.class_path import find_needed_conf, list_jars
from loader.spark.jars import CACHE_VARIABLE, JARS_VARIABLE, Report, cache_folder, folders
from loader.spark.java import Java
from loader.spark.named_steps import step
from loader.spark.spark_version import SparkHome

JVM_FILE = "jvm.json"
"""The file in the recording's folder that contains the JVM's process group and class path."""

_MIN_JAVA_VERSION = 13  # earlier versions cannot record an archive during a run
_RECORDING_SECONDS = 900
_NEWEST_KEPT = 3  # each upgrade of Spark or Java leaves behind an old archive of 190 MB
_LOG_OFF_OPTION = "-Xlog:cds*=off"
# For such a short run, optimized code and parallel garbage collection would save no time.
_RECORDING = (_LOG_OFF_OPTION, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# These variables would change the recording's class path or select another garbage collector.
_EXCLUDED_CLASSES = (
    "HADOOP_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LOADER_CRASH_AT",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "YARN_CONF_DIR",
    "_JAVA_OPTIONS",
)
_WORKLOAD = Path(__file__).parents[1] / "cli" / "class_archive_workload.py"


@dataclass(frozen=True)
class Archive:
    """A recorded archive.

    Attributes:
        options: the JVM options that make Java use the archive.
        class_path: the jars that must be at the start of the class path.
    """

    options: tuple[str, ...]
    class_path: tuple[str, ...]


def find_archive(home: SparkHome, java: Java, jars: Sequence[str]) -> Archive | None:
    """Returns the archive for these versions of Spark and Java, or None if none can be used.

    The archive's files must have their recorded sizes, because Java crashes on a truncated archive.
    The archive's jars must be unchanged and on the class path, which consists of `jars`.
    """
    try:
        folder = _folder(home, java)
        record: dict[str, Any] = json.loads((folder / "record.json").read_text("utf-8"))
        for name, size in record["files"].items():
            if (folder / name).stat().st_size != size or not os.access(folder / name, os.R_OK):
                return None
        recorded: dict[str, list[int]] = record["class_path"]
        if not recorded.keys() <= {*jars} or recorded != _describe_jars(recorded):
            return None
    except (OSError, ValueError, KeyError, AttributeError, SpecError):
        return None
    with suppress(OSError):
        os.utime(folder)  # marks it as used, for _remove_older
    return Archive(
        (f"-XX:SharedArchiveFile={folder / 'classes.jsa'}", _LOG_OFF_OPTION), tuple(recorded)
    )


def prepare_archive(home: SparkHome, java: Java, wait: bool, report: Report) -> None:
    """Records an archive if there is none, and reports the result. Spark also runs without one.

    Args:
        wait: whether to wait for the recording. If false, a background process records the archive.

    Raises:
        SpecError: if `wait` is true and no archive can be recorded.
    """
    try:
        report(f"class archive: {_prepare(home, java, wait, report)}")
    except (_NotRecordedError, SpecError) as reason:
        if wait:
            raise SpecError(
                f"no archive was recorded: {reason}",
                where="class archive",
                remedy="Spark also works without it, but starts more slowly",
            ) from reason
        report(f"class archive: none, {reason}; Spark works without it, but starts more slowly")


def _find(home: SparkHome, java: Java) -> Archive | None:
    """Returns the archive if it includes all jars on this machine."""
    jars = [str(jar) for jar in list_jars(home, {})]
    archive = find_archive(home, java, jars)
    return archive if archive is not None and {*archive.class_path} == {*jars} else None


class _NotRecordedError(Exception):
    """Raised if no archive can be recorded."""


def _prepare(home: SparkHome, java: Java, wait: bool, report: Report) -> str:
    if java.version < _MIN_JAVA_VERSION:
        raise _NotRecordedError(f"Java {java.version} cannot record an archive")
    conf = find_needed_conf(home, {})
    if conf is not None:
        raise _NotRecordedError(f"{conf} has files that must be on the class path")
    if _find(home, java) is not None:
        return f"is installed, {_megabytes(_folder(home, java))}"
    if wait:
        began = time.monotonic()
        report("class archive: being recorded once for this Java and Spark")
        with step("class archive: being recorded"):
            record_archive(home, java)
        took = time.monotonic() - began
        return f"{_megabytes(_folder(home, java))}, recorded in {took:.0f} s"
    subprocess.Popen(
        [sys.executable, "-m", "loader.spark.class_archive"],
        cwd=home.folder,  # the project's folder may contain a folder named `loader`
        env={**_environment(), "SPARK_HOME": str(home.folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return "being recorded in the background (a minute or two); until then Spark starts more slowly"


def record_archive(home: SparkHome, java: Java) -> None:
    """Starts Spark once, and writes the classes that it loads to the class archive.

    If another process is recording the archive, waits for that process instead.

    Raises:
        _NotRecordedError: if Java cannot record the archive, or if the archive's folder is not
            writable.
    """
    folder = _folder(home, java)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{folder.name}.lock"):
            if _find(home, java) is None:
                _record(home, java, folder)
            _remove_older(folder)
    except OSError as error:
        what = f"cannot write {error.filename or folder}: {error.strerror or error}"
        raise _NotRecordedError(what) from error


def _record(home: SparkHome, java: Java, folder: Path) -> None:
    # Each recording uses a new folder, because the JVM of a killed recording may still be writing.
    for leftover in folder.glob("making-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with TemporaryDirectory(prefix="making-", dir=folder, ignore_cleanup_errors=True) as temporary:
        place = Path(temporary)
        fresh = place / "classes.jsa"
        names = ["classes.jsa"]
        options = [*_RECORDING, f"-XX:ArchiveClassesAtExit={fresh}"]
        if not (java.home / "lib" / "server" / "classes.jsa").is_file():
            # The loader's archive extends Java's base archive, which the bundled JDK does not have.
            names.append("java.jsa")
            base = folder / "java.jsa"
            _dump_java(java, place / "java.jsa")
            (place / "java.jsa").replace(base)
            options.append(f"-XX:SharedArchiveFile={base}")
        class_path = _run_workload(home, java, options, place / "run")
        if not fresh.is_file():
            free = shutil.disk_usage(folder).free
            raise _NotRecordedError(f"Java did not write an archive ({free / 1e6:.0f} MB are free)")
        with fresh.open("rb") as file:
            # Java would not detect that a power failure had truncated the file.
            os.fsync(file.fileno())
        fresh.replace(folder / "classes.jsa")
    files = {name: (folder / name).stat().st_size for name in names}
    text = json.dumps({"class_path": _describe_jars(class_path), "files": files})
    (folder / "record.new").write_text(text, "utf-8")
    (folder / "record.new").replace(folder / "record.json")


def _describe_jars(jars: Iterable[str]) -> dict[str, list[int]]:
    """Returns the size and modification time of each jar, which the JVM checks."""
    stats = {jar: os.stat(jar) for jar in jars}
    return {jar: [stat.st_size, stat.st_mtime_ns] for jar, stat in stats.items()}


def _dump_java(java: Java, target: Path) -> None:
    command = [str(java.program), "-Xshare:dump", f"-XX:SharedArchiveFile={target}"]
    subprocess.run(command, env=_environment(), capture_output=True, timeout=_RECORDING_SECONDS)
    if not target.is_file():
        raise _NotRecordedError(f"the Java in {java.home} cannot archive its own classes")


def _run_workload(home: SparkHome, java: Java, options: list[str], place: Path) -> list[str]:
    """Runs the workload until its JVM exits. Returns the JVM's class path."""
    place.mkdir()
    env = {
        **_environment(),
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home.folder),
        "SPARK_SUBMIT_OPTS": shlex.join(options),
    }
    command = [sys.executable, "-m", "loader.cli.class_archive_workload", str(place)]
    try:
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, timeout=_RECORDING_SECONDS
        )
    except BaseException as ended:
        with suppress(OSError, ValueError):  # the JVM would go on writing the archive for 30 s
            os.killpg(json.loads((place / JVM_FILE).read_text())["group"], signal.SIGKILL)
        if isinstance(ended, subprocess.TimeoutExpired):
            raise _NotRecordedError(f"recording took more than {_RECORDING_SECONDS} s") from None
        raise
    if done.returncode != 0:
        # Java prints its stack traces last, as indented lines.
        lines = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
        raise _NotRecordedError(f"the recording failed: {(lines or ['no message'])[-1]}")
    class_path: list[str] = json.loads((place / JVM_FILE).read_text())["class_path"]
    return class_path


def _remove_older(folder: Path) -> None:
    with suppress(OSError):
        others = [path for path in folder.parent.iterdir() if path.is_dir()]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for old in others[_NEWEST_KEPT:]:
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)


def _folder(home: SparkHome, java: Java) -> Path:
    """Returns the archive's folder, whose name is a digest of the archive's dependencies."""
    spark = home.folder.resolve()
    with os.scandir(spark / "jars") as entries:
        jars = sorted(
            (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
            for entry in entries
            if entry.name.endswith(".jar")
        )
    fits = json.dumps([str(spark), str(java.home), java.build, jars, _WORKLOAD.read_text("utf-8")])
    name = hashlib.sha256(fits.encode()).hexdigest()[:16]
    return cache_folder() / "class-archives" / name


def _environment() -> dict[str, str]:
    """Returns the environment for the recording, without variables that affect the archive."""
    env = {name: value for name, value in os.environ.items() if name not in _EXCLUDED_CLASSES}
    # Relative paths would be wrong, because the recording runs in a different working folder.
    env[CACHE_VARIABLE] = str(cache_folder())
    if env.get(JARS_VARIABLE):
        env[JARS_VARIABLE] = str(folders()[0])
    root = str(Path(__file__).parents[2])
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))}


def _megabytes(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in folder.glob('*.jsa')) / 1e6:.0f} MB"


def main() -> None:
    """Records an archive in the background: ``python -m loader.spark.class_archive``."""
    from loader.spark.java import choose_java
    from loader.spark.spark_version import find_spark

    os.nice(19)
    home = find_spark()
    java = choose_java(home.line)
    with suppress(_NotRecordedError):
        record_archive(home, java)


if __name__ == "__main__":
    main()

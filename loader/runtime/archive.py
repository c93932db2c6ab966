"""The class-data archive: Spark's JVM loads parsed classes from it, and so starts faster.

`loader setup` records one from a small run (:mod:`loader.cli.training`) and puts it into Spark's
own folder, with a block in ``conf/spark-env.sh`` that every start of that Spark reads: the
loader's, and a plain `dbt build`'s. An archive belongs to one Java and one class path; the JVM
silently ignores one that does not fit. See
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from loader.runtime import java
from loader.runtime.placing import write_block

Report = Callable[[str], None]

_FOLDER = "strandline"
_MAKING = "making-"  # begins the name of a folder in it, while an archive is made
# Java 13 is the first that can record an archive from a run.
_OLDEST = 13
_SECONDS = 600
# Files in conf/ that are found without the class path. All others need it.
_KNOWN = ("spark-env.sh", "log4j2.properties")
# Variables that would make the recording's class path differ from a plain start's, or give Java a
# collector beside ours, which ends it.
_LEFT_OUT = (
    "HADOOP_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LOADER_CRASH_AT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_DIST_CLASSPATH",
    "SPARK_ENV_LOADED",
    "SPARK_PREPEND_CLASSES",
    "YARN_CONF_DIR",
    "_JAVA_OPTIONS",
)
_WITHOUT = "Spark works without it, but starts more slowly"
_QUIET = "-Xlog:cds*=off"
# For the recording: its JVM ends before better code would pay off.
_QUICK = f"{_QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Most runs are over before code of the second compiler pays off, and it takes a third of their CPU.
# So it waits forty times as long as by default; loops of large reads are hot enough for it anyway.
_PATIENT = (
    "-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000 "
    "-XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1600000"
)
# Until then, the first compiler's code counts for it which way branches go and what objects are.
# That costs a tenth of a load's CPU and a third of a build's, and the second does well without.
_UNCOUNTED = "-XX:-C1ProfileBranches -XX:-C1ProfileCheckcasts -XX:-C1ProfileInlinedCalls"
# By default the heap grows until a thirteenth of the time goes into its collection, and a load of
# many rows soon holds all memory that it may. Short pauses keep the part for new objects small.
_MODEST = "-XX:GCTimeRatio=2 -XX:MaxGCPauseMillis=50"
# That is G1, whose own threads take two cores from the work. There the serial collector is as fast
# for large loads, a little faster for builds, and holds a quarter less.
_SERIAL = "-XX:+UseSerialGC"
_PACKAGE = Path(__file__).parents[1]
# Sourced by spark-class, so it sees that script's arguments. The user's own options come last: the
# JVM obeys the last. The JVM refuses an archive if a folder on its class path has a file in it, and
# conf/ comes first there; so the block takes conf/ off the path, unless something needs it.
_BLOCK = (
    r"""
strandline_archive() {
  local folder="${SPARK_HOME:-}/strandline" java="${JAVA_HOME:+$JAVA_HOME/bin/java}" file size=0
  [ "${1:-}" = org.apache.spark.deploy.SparkSubmit ] && [ -r "$folder/classes.jsa" ] || return 0
  [ "${java:-$(command -v java)}" -ef "$folder/java" ] || return 0
  [ "${SPARK_CONF_DIR:-}" -ef "$SPARK_HOME/conf" ] || return 0
  # the JVM crashes on an archive that was cut short, as a copy may be
  read -r _ size 2> /dev/null < "$folder/fingerprint" || return 0
  [ "$(wc -c < "$folder/classes.jsa")" -eq "${size:-0}" ] || return 0
  for file in "$SPARK_CONF_DIR"/*; do
    case "${file##*/}" in spark-env.sh | log4j2.properties | *.template) ;; *) return 0 ;; esac
  done
  local said="${SPARK_SUBMIT_OPTS:-} ${JAVA_TOOL_OPTIONS:-}"
  said="$said ${JDK_JAVA_OPTIONS:-} ${_JAVA_OPTIONS:-}"
  while [ $# -gt 0 ]; do
    said="$said $1"
    [ "$1" = --properties-file ] && [ -r "${2:-}" ] && said="$said $(cat "$2")"
    shift
  done
  case "$said" in
    *-Xshare:* | *SharedArchiveFile* | *ArchiveClassesAtExit*) return 0 ;;
    # the JVM crashes where an agent asks to see classes of an archive
    *-javaagent:* | *-agentlib:* | *-agentpath:* | *StartFlightRecording*) return 0 ;;
  esac
  local modest="{modest}" cores
  # nproc would tell OpenMP's number of threads
  cores="$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT
    nproc 2> /dev/null || getconf _NPROCESSORS_ONLN 2> /dev/null)" || cores=4
  [ "$cores" -gt 2 ] || modest={serial}
  # whoever tunes the collector does so alone; options in a file may
  case "$said" in *-XX:*GC* | *" @"* | *VMOptionsFile* | *-XX:Flags=*) modest= ;; esac
  case "$SPARK_HOME" in *[[:space:]\'\"\\]*) return 0 ;; esac # it may have been moved there
  SPARK_HOME="$(cd -P "$SPARK_HOME" && pwd)" # the JVM compares paths as texts
  folder="$SPARK_HOME/strandline"
  file="$SPARK_HOME/conf/log4j2.properties"
  if [ -f "$file" ] && [ -z "${LOG4J_CONFIGURATION_FILE:-}" ]; then
    SPARK_SUBMIT_OPTS="-Dlog4j.configurationFile=$file ${SPARK_SUBMIT_OPTS:-}"
  fi
  # Spark's launcher is a JVM of its own, which would look for its few classes in jar after jar
  for file in "$SPARK_HOME"/jars/spark-launcher_*.jar; do
    SPARK_LAUNCHER_OPTS="-Xbootclasspath/a:$file ${SPARK_LAUNCHER_OPTS:-}"
  done
  # Hadoop starts chmod for each file of a process's first batches: this starts it in half the time
  local started=
  case "${OSTYPE:-}" in linux*) started=-Djdk.lang.Process.launchMechanism=VFORK ;; esac
  SPARK_SUBMIT_OPTS="{patient} {uncounted} $modest $started ${SPARK_SUBMIT_OPTS:-}"
  SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$folder/classes.jsa {quiet} $SPARK_SUBMIT_OPTS"
  SPARK_CONF_DIR="$folder/no-conf"
}
strandline_archive "$@"
unset -f strandline_archive
""".lstrip()
    .replace("{quiet}", _QUIET)
    .replace("{patient}", _PATIENT)
    .replace("{uncounted}", _UNCOUNTED)
    .replace("{modest}", _MODEST)
    .replace("{serial}", _SERIAL)
)


@dataclass(frozen=True)
class _Jvm:
    home: Path
    version: str


class _Unsuitable(Exception):
    """The reason why no archive can be made."""


def prepare(home: Path, report: Report) -> None:
    """Makes Spark's archive, unless the existing one fits; reports the result.

    Spark runs without an archive: if none can be made, the reason is reported, not raised.

    Args:
        home: Spark's folder, prepared by :func:`loader.runtime.setup.prepare`.
        report: gets a line for each thing done.
    """
    try:
        report(f"class archive: {_prepared(home.resolve(), report)}")
    except _Unsuitable as reason:
        report(f"class archive: none: {reason}. {_WITHOUT}")
    except OSError as error:
        what = f"cannot write {error.filename or home}: {error.strerror or error}"
        report(f"class archive: none: {what}. {_WITHOUT}")


def _prepared(home: Path, report: Report) -> str:
    _check_folder(home)
    jvm = _jvm()
    folder = home / _FOLDER
    archive = folder / "classes.jsa"
    wanted = fingerprint(home, jvm.version)
    if _recorded(folder) == wanted:
        write_block(home / java.SETTINGS, _BLOCK, "archive")
        return f"is there, {_megabytes(archive)}"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / ".lock"):
        if _recorded(folder) != wanted:
            report("class archive: being made, once for these jars")
            began = time.monotonic()
            _make(home, folder, jvm)
            (folder / "fingerprint").write_text(f"{wanted} {archive.stat().st_size}\n")
            told = f", made in {time.monotonic() - began:.0f} s"
        else:
            told = ""
    write_block(home / java.SETTINGS, _BLOCK, "archive")
    return f"{_megabytes(archive)}{told}"


def fingerprint(home: Path, version: str) -> str:
    """Hashes what an archive fits: Spark's folder, the Java, the jars in the order it finds them.

    A change of the recording's program changes the hash, too.
    """
    with os.scandir(home / "jars") as entries:
        jars = [
            (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
            for entry in entries
            if entry.name.lower().endswith(".jar") and entry.is_file()
        ]
    recorded = (_PACKAGE / "cli" / "training.py").read_text("utf-8")
    told = json.dumps([str(home), version, jars, recorded])
    return hashlib.sha256(told.encode()).hexdigest()


def _recorded(folder: Path) -> str | None:
    """Returns the fingerprint of the existing archive; None if it is missing or damaged."""
    try:
        fits, size = (folder / "fingerprint").read_text().split()
        return fits if (folder / "classes.jsa").stat().st_size == int(size) else None
    except (OSError, ValueError):
        return None


def _check_folder(home: Path) -> None:
    if os.name != "posix":
        raise _Unsuitable(f"this system ({os.name}) starts Spark in another way")
    if re.search(r"[\s'\"\\:]", str(home)):
        raise _Unsuitable(f"a space, quote, colon or backslash in {home}")
    conf = home / "conf"
    others = [
        path.name
        for path in (sorted(conf.iterdir()) if conf.is_dir() else ())
        if path.name not in _KNOWN and not path.name.startswith(".") and path.suffix != ".template"
    ]
    if others:
        raise _Unsuitable(f"{conf} must stay on the class path, for {', '.join(others)}")


def _jvm() -> _Jvm:
    """Asks the Java that Spark will run on what it is: a `java` on PATH may be a script."""
    chosen = os.environ.get("JAVA_HOME") or java.choose().home
    runner = Path(chosen, "bin", "java") if chosen else Path(shutil.which("java") or "java")
    options = f"{_PATIENT} {_UNCOUNTED} {_MODEST} {_SERIAL}".split()
    asked = [str(runner), *options, "-XshowSettings:properties", "-version"]
    try:
        told = subprocess.run(asked, env=_environment(), capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        raise _Unsuitable(f"{runner} does not run") from None
    unknown = re.search(r"^Unrecognized VM option.*", told.stderr, re.MULTILINE)
    if unknown:
        raise _Unsuitable(f"this Java does not know our options: {unknown[0]}")
    found = dict(re.findall(r"^\s+(java\.\S+) = (.+)$", told.stderr, re.MULTILINE))
    version = found.get("java.specification.version", "")
    if not version:
        last = told.stderr.strip().rpartition("\n")[2] or "no message"
        raise _Unsuitable(f"{runner} does not tell its version: {last.rstrip('.')}")
    if not version.isdigit() or int(version) < _OLDEST:
        raise _Unsuitable(f"it needs Java {_OLDEST} or newer, this is {version}")
    home = Path(found.get("java.home", ""))
    if not (home / "bin" / "java").exists() or not runner.samefile(home / "bin" / "java"):
        raise _Unsuitable(f"{runner} is not Java itself; set JAVA_HOME={home}")
    return _Jvm(home, f"{home} {found.get('java.vm.name')} {found.get('java.vm.version')}")


def _make(home: Path, folder: Path, jvm: _Jvm) -> None:
    (folder / "fingerprint").unlink(missing_ok=True)
    # A killed setup may leave a JVM running, which would overwrite the next setup's archive.
    for left in folder.glob(f"{_MAKING}*"):
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=_MAKING, dir=folder, ignore_cleanup_errors=True) as place:
        fresh = Path(place, "classes.jsa")
        options = f"{_base(folder, Path(place), jvm)}{_QUICK} -XX:ArchiveClassesAtExit={fresh}"
        _record(home, jvm, options, Path(place, "run"))
        if not fresh.is_file():
            raise _Unsuitable("this Java wrote none")
        _keep(fresh, folder / "classes.jsa")
    link = folder / "java"
    link.unlink(missing_ok=True)
    link.symlink_to(jvm.home / "bin" / "java")


def _base(folder: Path, place: Path, jvm: _Jvm) -> str:
    """Makes the archive of the JDK's own classes, which ours builds on; the bundled JDK lacks it.

    Returns:
        The JVM option that names it; empty if the JDK has its own.
    """
    own = folder / "base.jsa"
    own.unlink(missing_ok=True)
    if (jvm.home / "lib" / "server" / "classes.jsa").is_file():
        return ""
    java, fresh = jvm.home / "bin" / "java", place / "base.jsa"
    command = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}"]
    subprocess.run(command, env=_environment(), capture_output=True, timeout=_SECONDS)
    if not fresh.is_file():
        raise _Unsuitable(f"the Java in {jvm.home} cannot archive its own classes")
    _keep(fresh, own)
    return f"-XX:SharedArchiveFile={own} "


def _keep(fresh: Path, target: Path) -> None:
    """Puts an archive in place, complete even after a power cut: the JVM does not check."""
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.replace(target)


def _record(home: Path, jvm: _Jvm, options: str, place: Path) -> None:
    root = str(_PACKAGE.parent)
    env = _environment() | {
        "JAVA_HOME": str(jvm.home),
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        "SPARK_CONF_DIR": str(home / _FOLDER / "no-conf"),
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": options,
    }
    place.mkdir()
    command = [sys.executable, "-m", "loader.cli.training", str(place)]
    try:
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _Unsuitable(f"making it took more than {_SECONDS} s") from None
    if done.returncode != 0:
        # Without the lines of Java's stack traces, which come last.
        told = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
        raise _Unsuitable(f"the run that makes it failed: {(told or ['no message'])[-1]}")


def _environment() -> dict[str, str]:
    """Returns the environment of the Java that we start, without what changes the archive."""
    return {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.0f} MB"

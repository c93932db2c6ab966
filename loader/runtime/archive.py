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
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout

from loader.runtime import java
from loader.runtime.placing import write_block

Report = Callable[[str], None]

_FOLDER = "strandline"
JAVA = "java.pid"
"""In the recording's folder: the process group of its JVM, which has a session of its own."""
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
# conf/ comes first there; so the block takes conf/ off the path, unless something needs it. It
# stands last in its file: a line above it may choose the Java.
_BLOCK = (
    (Path(__file__).parent / "templates" / "archive.sh")
    .read_text("utf-8")
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
    wanted = fingerprint(home, jvm.version)
    if _recorded(folder, jvm) == wanted:
        write_block(home / java.SETTINGS, _BLOCK, "archive", last=True)
        return f"is there, {_megabytes(folder)}"
    folder.mkdir(exist_ok=True)
    with _locked(folder, report):
        if _recorded(folder, jvm) != wanted:
            report("class archive: being made, once for this Java and these jars")
            began = time.monotonic()
            _make(home, folder, jvm, wanted)
            told = f", made in {time.monotonic() - began:.0f} s"
        else:
            told = ""
    write_block(home / java.SETTINGS, _BLOCK, "archive", last=True)
    return f"{_megabytes(folder)}{told}"


@contextmanager
def _locked(folder: Path, report: Report) -> Iterator[None]:
    """Keeps a second setup from making the same."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        report("class archive: another setup is making it; waiting for that")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


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


def _recorded(folder: Path, jvm: _Jvm) -> str | None:
    """Returns the fingerprint of the existing archive; None if Java would not take it."""
    try:
        fits, *sizes = (folder / "fingerprint").read_text().split()
        files = _files(folder)
        whole = [path.stat().st_size for path in files] == [*map(int, sizes)]
        readable = all(path.is_file() and os.access(path, os.R_OK) for path in files)
        named = (folder / "java").samefile(jvm.home / "bin" / "java")
    except (OSError, ValueError):
        return None
    return fits if sizes and whole and readable and named else None


def _files(folder: Path) -> list[Path]:
    """Returns the archive, and the one of Java's own classes that it builds on, if that is ours."""
    return [folder / "classes.jsa", *sorted(folder.glob("base*.jsa"))]


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
    if int(version) > java.NEWEST:
        raise _Unsuitable(f"Spark 3.5 does not run on Java {version}")
    home = Path(found.get("java.home", ""))
    if not (home / "bin" / "java").exists() or not runner.samefile(home / "bin" / "java"):
        raise _Unsuitable(f"{runner} is not Java itself; set JAVA_HOME={home}")
    told_of = [str(home), found.get("java.vm.name"), found.get("java.vm.version")]
    with suppress(OSError):  # ours builds on that of Java's own classes
        base = _own_base(home).stat()
        told_of += [str(base.st_size), str(base.st_mtime_ns)]
    return _Jvm(home, " ".join(map(str, told_of)))


def _own_base(home: Path) -> Path:
    return home / "lib" / "server" / "classes.jsa"


def _make(home: Path, folder: Path, jvm: _Jvm, wanted: str) -> None:
    """Makes the archive; until it is there, the one before it stays, which may fit another Java."""
    # A killed setup may leave a JVM running, which would overwrite the next setup's archive.
    for left in folder.glob(f"{_MAKING}*"):
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=_MAKING, dir=folder, ignore_cleanup_errors=True) as place:
        fresh = Path(place, "classes.jsa")
        base = None if _own_base(jvm.home).is_file() else folder / f"base-{wanted[:12]}.jsa"
        try:
            if base is not None:
                _archive_java(jvm, Path(place, base.name), base)
            options = f"-XX:SharedArchiveFile={base} " if base else ""
            options += f"{_QUICK} -XX:ArchiveClassesAtExit={fresh}"
            _record(home, jvm, options, Path(place, "run"))
            if not fresh.is_file():
                free = shutil.disk_usage(folder).free
                raise _Unsuitable(f"this Java wrote none ({free / 1e6:.0f} MB are free)")
        except BaseException:
            if base is not None:
                base.unlink(missing_ok=True)
            raise
        (folder / "fingerprint").unlink(missing_ok=True)
        for older in _files(folder):
            if older != base:
                older.unlink(missing_ok=True)
        _keep(fresh, folder / "classes.jsa")
    link = folder / "java"
    link.unlink(missing_ok=True)
    link.symlink_to(jvm.home / "bin" / "java")
    sizes = (str(path.stat().st_size) for path in _files(folder))
    (folder / "fingerprint").write_text(f"{wanted} {' '.join(sizes)}\n")


def _archive_java(jvm: _Jvm, fresh: Path, target: Path) -> None:
    """Archives the JDK's own classes: ours builds on them, by path. The bundled JDK lacks them."""
    command = [str(jvm.home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}"]
    subprocess.run(command, env=_environment(), capture_output=True, timeout=_SECONDS)
    if not fresh.is_file():
        raise _Unsuitable(f"the Java in {jvm.home} cannot archive its own classes")
    _keep(fresh, target)


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
    except BaseException as ended:
        with suppress(OSError, ValueError):  # it would write its archive first, for half a minute
            os.killpg(int((place / JAVA).read_text()), signal.SIGKILL)
        if isinstance(ended, subprocess.TimeoutExpired):
            raise _Unsuitable(f"making it took more than {_SECONDS} s") from None
        raise
    if done.returncode != 0:
        # Without the lines of Java's stack traces, which come last.
        told = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
        raise _Unsuitable(f"the run that makes it failed: {(told or ['no message'])[-1]}")


def _environment() -> dict[str, str]:
    """Returns the environment of the Java that we start, without what changes the archive."""
    return {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}


def _megabytes(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in _files(folder)) / 1e6:.0f} MB"

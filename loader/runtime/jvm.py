"""Starts Spark's JVM while Python still imports, and with no setting on its command line.

PySpark passes each setting to ``spark-submit`` as ``--conf key=value``. Every user of the machine
can read that in the process list, for as long as Spark runs. Here the settings go through a file
that only this user can read, and that is deleted once the JVM has read it.

PySpark also waits for the JVM, which takes a second; :func:`begin` does not.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from loader.runtime.gateway import Gateway
from loader.runtime.jvm_garbage import collect_together
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


class _Start:
    """A JVM that is starting, and the files that it reads meanwhile."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        options, self._secrets = split_options(settings.get(_DRIVER_OPTIONS, ""))
        given = {**settings, **({_DRIVER_OPTIONS: options} if self._secrets else {})}
        with ExitStack() as files:
            folder = files.enter_context(private_folder("settings"))
            arguments, self._own = submitted(given, folder)
            try:
                self._gateway = Gateway(arguments, folder)
            except BaseException:
                self._without_scratch()
                raise
            self._files = files.pop_all()
        _starting.append(self)
        atexit.register(self.given_up)

    def connected(self) -> Any:
        """Waits for it; from then on it deletes its scratch folder itself.

        Secrets among the driver's Java options are set now, because options are part of its
        command line.
        """
        try:
            gateway = self._gateway.connected()
            for name, value in self._secrets.items():
                gateway.jvm.java.lang.System.setProperty(name, value)
            if SETTING in self._own:
                deleted_in_the_end(gateway.jvm, self._own[SETTING])
            self._files.close()
        except BaseException:
            self.given_up()
            raise
        atexit.unregister(self.given_up)
        _starting.remove(self)
        return gateway

    def given_up(self) -> None:
        """Ends a JVM that nobody has waited for."""
        atexit.unregister(self.given_up)
        if self in _starting:
            _starting.remove(self)
        self._gateway.end()
        self._files.close()
        self._without_scratch()

    def _without_scratch(self) -> None:
        if SETTING in self._own:
            shutil.rmtree(self._own[SETTING], ignore_errors=True)


_begun: list[_Start] = []
_starting: list[_Start] = []
"""Those that are not connected yet."""


def give_up() -> None:
    """Ends what is still starting: this process is about to be killed."""
    for start in [*_starting]:
        start.given_up()


def begin(settings: Mapping[str, str]) -> None:
    """Begins to start the JVM with these settings; does nothing if this process has one.

    If that fails, :func:`start` tries again, and reports it.
    """
    if not _begun and not _runs():
        with suppress(OSError):
            _begun.append(_Start(settings))


def start(settings: Mapping[str, str]) -> None:
    """Starts the JVM, or waits for the one that was begun; does nothing if this process has one.

    Raises:
        RuntimeError, OSError: if Java does not start.
    """
    if _runs():
        return
    gateway = (_begun.pop() if _begun else _Start(settings)).connected()
    from pyspark import SparkContext

    remember(gateway)
    collect_together(gateway)
    SparkContext._ensure_initialized(gateway=gateway)


def forget_ended() -> None:
    """Makes PySpark forget a JVM that has ended, so that :func:`start` starts another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    session: Any = SparkSession
    context._gateway = context._jvm = context._active_spark_context = None
    session._instantiatedSession = session._activeSession = None


def _runs() -> bool:
    """Whether this process has a JVM, or somebody gives it one; does not import PySpark for it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    pyspark: Any = sys.modules.get("pyspark")
    context = getattr(pyspark, "SparkContext", None)
    return context is not None and context._gateway is not None


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


def submitted(settings: Mapping[str, str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Writes settings into a file in a folder that only this user can read.

    Returns:
        The arguments of `spark-submit`, which name that file, and settings of our own in it.
    """
    others, base = _arguments(os.environ.get(_ARGUMENTS))
    own = scratch(settings, base)
    path = folder / "spark.properties"
    with open(path, "x", encoding="utf-8", opener=_private) as file:
        # Spark reads one file only; if a key appears twice in it, the last one counts.
        file.write(f"{base}\n\n{properties({**settings, **own})}")
    return [_FILE, str(path), *others], own


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

"""Starts Spark's JVM while Python still imports, and with no setting on its command line.

The settings go through a file that only this user can read, and that is deleted once the JVM has
read it. PySpark waits for the JVM, which takes a second; :func:`begin` does not.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from loader.spark.gateway import PORT, Gateway
from loader.spark.java import choose_java
from loader.spark.jvm_command import build_command
from loader.spark.jvm_garbage import collect_together
from loader.spark.py4j_cache import remember
from loader.spark.spark_line import find_spark
from loader.spark.temporary_files import LOCAL_DIR, delete_at_exit, private_folder


class _Start:
    """A JVM that is starting, and the files that it reads meanwhile."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        home = find_spark()
        java = choose_java(home.line)
        with ExitStack() as files:
            folder = files.enter_context(private_folder("settings"))
            command = build_command(home, java, settings, folder)
            self._secrets, self._own = command.secrets, command.own
            try:
                self._gateway = Gateway(command, folder)
            except BaseException:
                self._without_scratch()
                raise
            self._files = files.pop_all()
        _starting.append(self)
        atexit.register(self.give_up)

    def connect(self) -> Any:
        """Waits for it; from then on it deletes its scratch folder itself.

        Secrets among the driver's Java options are set now, because options are part of its
        command line.
        """
        try:
            gateway = self._gateway.connect()
            for name, value in self._secrets.items():
                gateway.jvm.java.lang.System.setProperty(name, value)
            if LOCAL_DIR in self._own:
                delete_at_exit(gateway.jvm, self._own[LOCAL_DIR])
            self._files.close()
        except BaseException:
            self.give_up()
            raise
        atexit.unregister(self.give_up)
        _starting.remove(self)
        return gateway

    def give_up(self) -> None:
        """Ends a JVM whose start was not waited for."""
        atexit.unregister(self.give_up)
        if self in _starting:
            _starting.remove(self)
        self._gateway.end()
        self._files.close()
        self._without_scratch()

    def _without_scratch(self) -> None:
        if LOCAL_DIR in self._own:
            shutil.rmtree(self._own[LOCAL_DIR], ignore_errors=True)


_begun: list[_Start] = []
_starting: list[_Start] = []
"""Those that are not connected yet."""


def give_up() -> None:
    """Ends what is still starting: this process is about to be killed."""
    for start in [*_starting]:
        start.give_up()


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
    gateway = (_begun.pop() if _begun else _Start(settings)).connect()
    from pyspark import SparkContext

    remember(gateway)
    collect_together(gateway)
    SparkContext._ensure_initialized(gateway=gateway)


def forget_ended() -> None:
    """Clears PySpark's references to an ended JVM, so that :func:`start` starts another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    session: Any = SparkSession
    context._gateway = context._jvm = context._active_spark_context = None
    session._instantiatedSession = session._activeSession = None


def _runs() -> bool:
    """Whether this process has a JVM, or is given one; does not import PySpark for it."""
    if PORT in os.environ:
        return True
    pyspark: Any = sys.modules.get("pyspark")
    context = getattr(pyspark, "SparkContext", None)
    return context is not None and context._gateway is not None

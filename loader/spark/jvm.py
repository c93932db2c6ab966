"""Starts Spark's JVM while Python imports modules, which saves a second.

Settings may contain secrets, so the JVM reads them from a private file, which is then deleted.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from loader.spark.java import choose_java
from loader.spark.jvm_command import JvmCommand, build_command
from loader.spark.py4j_cache import cache_lookups
from loader.spark.spark_version import find_spark
from loader.spark.temporary_files import LOCAL_DIR, delete_at_exit, private_folder
from loader.spec.redaction import excerpt, redact_foreign

_CONNECTION_FILE_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_NUMBERS = struct.Struct(">ii")  # the port, and the length of the secret in bytes
_SECONDS = 1.0
"""How many seconds to wait for the remaining output of a JVM that exited."""
_EXIT_WAIT_SECONDS = 5.0
"""How many seconds Java may take to start before its output is shown."""
_LONGEST_LINE = 1 << 20
_LONGEST_REASON = 1 << 16
"""How many bytes of Java's output are searched for the reason why Java does not start."""
PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
# Lines of Java's output that do not explain why Java does not start.
_UNINFORMATIVE_LINE = re.compile(
    r"\s|Picked up |NOTE: |WARNING|Warning:|Error: Could not create the Java Virtual Machine"
    r"|Error: A fatal exception|Error occurred during initialization of VM"
)
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_BARE_CLASS = re.compile(r"[\w.$]+(?:Exception|Error)")
_PREFIX = re.compile(r"(?:Exception in thread \S+ )?(?:[\w.$]+(?:Exception|Error): )?(?:Error: )?")

_log = logging.getLogger("loader")


class Gateway:
    """A JVM that is starting. It exits when this process exits or closes the JVM's standard input.

    Args:
        folder: a private folder. The JVM writes its port and secret there.

    Raises:
        OSError: if the command cannot be started.
    """

    def __init__(self, command: JvmCommand, folder: Path) -> None:
        self._written = folder / "gateway"
        self.process = subprocess.Popen(
            command.arguments,
            stdin=subprocess.PIPE,
            # The JVM exits half a second after this process. If it inherited this process's output,
            # programs that read the output would wait for the JVM.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**command.environment, _CONNECTION_FILE_VARIABLE: str(self._written)},
            # Only the loader must receive Ctrl-C. It then cancels the work in the JVM.
            start_new_session=True,
        )
        self._buffered: list[bytes] | None = []
        self._first_output = b""  # for the error message
        self._buffer_lock = threading.Lock()
        self._printed = threading.Thread(target=self._copy_output, name="java-output", daemon=True)
        self._printed.start()

    def wait(self) -> tuple[int, str]:
        """Waits until the JVM listens, and returns its port and secret.

        Raises:
            RuntimeError: with Java's message, if Java does not start.
        """
        patient_until = time.monotonic() + _EXIT_WAIT_SECONDS
        while self.process.poll() is None and not self._written.exists():
            time.sleep(0.01)
            if time.monotonic() > patient_until:
                self._show()
        if not self._written.exists():
            self._printed.join(_SECONDS)
            data = self._first_output.decode(errors="replace")
            _log.debug("Output of Java:\n%s", redact_foreign(data))
            raise RuntimeError(reason(data))
        self._show()
        written = self._written.read_bytes()
        port, length = _NUMBERS.unpack_from(written)
        return port, written[_NUMBERS.size :][:length].decode()

    def connect(self) -> Any:
        """Like :meth:`wait`, but returns PySpark's gateway to the JVM."""
        from pyspark.java_gateway import launch_gateway

        port, secret = self.wait()
        os.environ |= {PORT: str(port), SECRET: secret}
        try:
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ[PORT], os.environ[SECRET]
        gateway.proc = self.process
        return gateway

    def _copy_output(self) -> None:
        """Copies Java's output to stderr, but buffers it until the JVM is connected."""
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        begun = b""
        with suppress(OSError):
            while data := os.read(output, 1 << 16):
                # Only complete lines are printed, because part of a secret would not be redacted.
                lines, line_break, begun = (begun + data).rpartition(b"\n")
                if len(begun) > _LONGEST_LINE:
                    lines, line_break, begun = lines + line_break + begun, b"", b""
                self._buffer_or_print(lines + line_break)
        self._buffer_or_print(begun)

    def _buffer_or_print(self, data: bytes) -> None:
        with self._buffer_lock:
            if len(self._first_output) < _LONGEST_REASON:
                self._first_output += data
            if self._buffered is None:
                _print(data)
            else:
                self._buffered.append(data)

    def _show(self) -> None:
        with self._buffer_lock:
            buffered, self._buffered = self._buffered or [], None
            _print(b"".join(buffered))

    def end(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        with suppress(ProcessLookupError):
            # The JVM's child processes would fail after the settings file is deleted.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def reason(data: str) -> str:
    """Returns the line of Java's output that explains why Java does not start."""
    lines = [
        line.strip() for line in data.splitlines() if line and not _UNINFORMATIVE_LINE.match(line)
    ]
    text = _PREFIX.sub("", lines[0], count=1) if lines else ""
    causes = _CAUSE.findall(data)
    if causes and _BARE_CLASS.fullmatch(text):
        text = causes[-1]  # an ExceptionInInitializerError has no message
    return excerpt(text.rstrip("."), 500) or "Java exited before it could be reached"


def _print(data: bytes) -> None:
    data = redact_foreign(data.decode("utf-8", "surrogateescape")).encode(
        "utf-8", "surrogateescape"
    )
    # Python's streams may already be closed at exit.
    with suppress(OSError):
        while data and sys.__stderr__ is not None:
            data = data[os.write(2, data) :]


class _Start:
    """A JVM that is starting, and its temporary files."""

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
                self._remove_scratch()
                raise
            self._files = files.pop_all()
        _starting.append(self)
        atexit.register(self.give_up)

    def connect(self) -> Any:
        """Waits until the JVM is connected, and lets it delete its scratch folder when it exits.

        System properties that contain secrets are set only now, because the command line would
        reveal them.
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
        """Kills a JVM that is not connected yet."""
        atexit.unregister(self.give_up)
        if self in _starting:
            _starting.remove(self)
        self._gateway.end()
        self._files.close()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if LOCAL_DIR in self._own:
            shutil.rmtree(self._own[LOCAL_DIR], ignore_errors=True)


_begun: list[_Start] = []
_starting: list[_Start] = []
"""The JVMs that are not connected yet."""


def give_up() -> None:
    """Kills the JVMs that are still starting, before this process is killed."""
    for start in [*_starting]:
        start.give_up()


def begin(settings: Mapping[str, str]) -> None:
    """Starts the JVM without waiting for it, unless this process already has a JVM.

    If Java does not start, :func:`start` tries again and reports the error.
    """
    if not _begun and not _runs():
        with suppress(OSError):
            _begun.append(_Start(settings))


def start(settings: Mapping[str, str]) -> None:
    """Starts the JVM if necessary, and waits until it is connected.

    Raises:
        RuntimeError, OSError: if Java does not start.
    """
    if _runs():
        return
    gateway = (_begun.pop() if _begun else _Start(settings)).connect()
    from pyspark import SparkContext

    cache_lookups(gateway)
    SparkContext._ensure_initialized(gateway=gateway)


def forget_ended() -> None:
    """Clears PySpark's references to a JVM that exited, so that :func:`start` can replace it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    session: Any = SparkSession
    context._gateway = context._jvm = context._active_spark_context = None
    session._instantiatedSession = session._activeSession = None


def _runs() -> bool:
    """Returns whether this process started or inherited a JVM. Does not import PySpark."""
    if PORT in os.environ:
        return True
    pyspark: Any = sys.modules.get("pyspark")
    context = getattr(pyspark, "SparkContext", None)
    return context is not None and context._gateway is not None

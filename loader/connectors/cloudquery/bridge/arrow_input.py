"""Reads Arrow messages of a program that may be hostile: checked before any value is used.

A message says where its buffers are, how long they are once they are decompressed, and how many
values they hold. Arrow believes that: offsets beyond a buffer read foreign memory, 10 KB of zstd
become gigabytes, and a column of nulls has as many rows as it claims. Limits also bound what one
client can take from all others: streams, silence, memory and the disk."""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

STREAMS = 64
"""Streams that write at the same time; each has a thread and may hold a message."""
OTHER_CALLS = 64
"""Calls of other kinds, which end at once or wait for the loader's start."""
TABLES = 5_000
"""Tables of a session: the loader makes each of them in the lake."""
SCHEMA_BYTES = 64 << 20
"""Of a session's tables; they are kept in memory until it ends."""
STATE_BYTES = 64 << 20
"""Of all states, those that wait included; they are kept in memory, too."""

MOST_BYTES = 100 << 20
"""Of a message, before and after decompression; as large as CloudQuery's own programs send."""
MOST_VALUES = 10_000_000
"""Of a message, in all its columns together, those inside lists and structs counted."""
LONGEST_NAME = 1_000
"""Characters in the name of a table."""
LONGEST_TEXT = 300
"""Characters of an error's text, which may quote a value."""
_TABLE = b"cq:table_name"
_VERSION_5 = 4  # since Arrow 1.0; the ones before say elsewhere how they are compressed
_SMALL = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_temporal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)


class OverBudgetError(Exception):
    """A call takes more than its share; the text is for people."""


class IdleTimeout:
    """Ends calls that wait for their client for too long.

    All state waits for an open stream, so one that is left open would hold up every other sync.

    Args:
        longest: seconds.
        ended: is called for each call that is ended.
    """

    def __init__(self, longest: float, ended: Callable[[], None]) -> None:
        self._longest = longest
        self._ended = ended
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._changing = threading.Lock()
        threading.Thread(target=self._watch, name="idle", daemon=True).start()

    def messages(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """Yields a client's messages."""
        while True:
            with self.waiting(context):
                request = next(requests, None)
            if request is None:
                return
            yield request

    @contextmanager
    def waiting(self, context: Any) -> Iterator[None]:
        """Bounds a wait for a client."""
        call = id(context)
        with self._changing:
            self._waiting[call] = (time.monotonic(), context)
        try:
            yield
        finally:
            with self._changing:
                self._waiting.pop(call, None)

    def _watch(self) -> None:
        """Ends silent calls; each then fails as if its client had gone."""
        while True:
            time.sleep(min(1.0, self._longest / 4))
            late = time.monotonic() - self._longest
            with self._changing:
                silent = [one for one, (began, _) in self._waiting.items() if began < late]
                contexts = [self._waiting.pop(one)[1] for one in silent]
            for context in contexts:
                context.cancel()
                self._ended()


class DiskBudget:
    """Limits what a session writes to half of what is free.

    The loader writes the rows once more, and other programs need room, too.

    Args:
        folder: where it writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = shutil.disk_usage(folder).free // 2

    def take(self, size: int) -> None:
        """Counts what is about to be written.

        Raises:
            OverBudgetError: if that is too much.
        """
        self._left -= size
        if self._left < 0:
            raise OverBudgetError(
                f"the sync's rows take more than half of the room on the disk of {self._folder}: "
                "start `loader serve` with TMPDIR on a larger one"
            )


class MalformedError(Exception):
    """A message that is damaged, too large, or none of the protocol.

    Attributes:
        what: the fault.
        table: whose it is, as far as is known; else empty.
    """

    def __init__(self, what: str, table: str = "") -> None:
        whose = f" of the table {table}" if table else ""
        super().__init__(
            f"a message{whose} cannot be read: {what}. Update the plugin, or report it to "
            "those who maintain it"
        )
        self.what = what
        self.table = table


def table_name(schema: pa.Schema) -> str:
    """Returns a table's name.

    Raises:
        MalformedError: if it has none.
    """
    name = _name_of(schema)
    if not name:
        raise MalformedError(
            f"its table has no name, or one of more than {LONGEST_NAME:,} characters"
        )
    return name


def _name_of(schema: pa.Schema) -> str:
    """Returns a table's name; an empty text if it has none."""
    name = str((schema.metadata or {}).get(_TABLE, b"").decode("utf-8", "replace"))
    return name if len(name) <= LONGEST_NAME else ""


def malformed_error(error: Exception, table: str) -> MalformedError:
    """Returns an error for what could not be read or converted."""
    text = str(error).partition("\n")[0]
    kind = type(error).__name__
    # Not cut: that could show a part of a secret, which would not be recognised.
    return MalformedError(f"{kind}: {text}" if len(text) <= LONGEST_TEXT else kind, table)


def read_schema(data: bytes) -> pa.Schema:
    """Reads a table's schema.

    Raises:
        MalformedError: if it is damaged, or has a type that CloudQuery does not have.
    """
    return _read(data, _schema)


def read_record(data: bytes) -> pa.RecordBatch:
    """Reads a record batch, whose values are safe to use then.

    Raises:
        MalformedError: if it is damaged, too large, or not exactly one.
    """
    return _read(data, _record)


def _read(data: bytes, parse: Any) -> Any:
    if len(data) > MOST_BYTES:
        raise MalformedError(f"it has {len(data):,} bytes; the most is {MOST_BYTES:,}")
    table = ""
    try:
        with pa.ipc.open_stream(data) as reader:
            table = _name_of(reader.schema)
            return parse(data, reader)
    except MalformedError as error:
        raise MalformedError(error.what, table) from None
    except Exception as error:  # Arrow's own, or of Python where a name or a number is none
        raise malformed_error(error, table) from None


def _schema(_data: bytes, reader: Any) -> pa.Schema:
    names = reader.schema.names
    if len(set(names)) < len(names):
        raise MalformedError("two of its columns have one name")
    for field in reader.schema:
        _check_type(field.type)
    return reader.schema


def _record(data: bytes, reader: Any) -> pa.RecordBatch:
    _schema(data, reader)
    kinds = []
    for message in _messages(data):
        kinds.append(message.type)
        if message.type == "record batch":
            _check_size(message)
    if kinds != ["schema", "record batch"]:
        raise MalformedError("it is not one record batch")
    batch = reader.read_next_batch()
    batch.validate(full=True)
    return batch


def _messages(data: bytes) -> Iterator[Any]:
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _check_type(kind: pa.DataType) -> None:
    """Refuses types whose values take no room of their own, so that few bytes become many values.

    Dictionaries, runs, unions and views share values. CloudQuery has none of these types.
    """
    if isinstance(kind, pa.BaseExtensionType):
        _check_type(kind.storage_type)
    elif pa.types.is_struct(kind) or any(is_kind(kind) for is_kind in _LISTS):
        for place in range(kind.num_fields):
            _check_type(kind.field(place).type)
    elif not any(is_kind(kind) for is_kind in _SMALL):
        raise MalformedError(f"it has a column of the type {kind}, which CloudQuery does not have")


def _check_size(message: Any) -> None:
    """Refuses a record batch that says it is too large; its form has been verified by Arrow."""
    root = _Table.root(memoryview(message.metadata))
    batch = root.table(2)
    values = [batch.number("<q", 0), *(length for length, _ in batch.pairs(1))]
    if min(values) < 0 or sum(values) > MOST_VALUES:
        raise MalformedError(f"it has {sum(values):,} values; the most is {MOST_VALUES:,}")
    if root.number("<h", 0) != _VERSION_5:
        raise MalformedError("it is in a format older than Arrow 1.0")
    size = sum(_sizes(batch, memoryview(message.body)))
    if size > MOST_BYTES:
        raise MalformedError(f"it has {size:,} bytes decompressed; the most is {MOST_BYTES:,}")


def _sizes(batch: _Table, body: memoryview) -> Iterator[int]:
    """Yields the size of each buffer; a compressed one begins with it."""
    for offset, length in batch.pairs(2):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise MalformedError("a buffer of it is beyond its end")
        if batch.place(3) is None or length < 8:
            yield length
            continue
        (declared,) = struct.unpack_from("<q", body, offset)
        if declared < -1:
            raise MalformedError("a buffer of it has a negative size")
        yield length if declared == -1 else declared  # -1: it is not compressed


class _Table:
    """A table of a flat buffer, as Arrow's metadata are."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def place(self, field: int) -> int | None:
        """Returns where a field is; None if it is left out."""
        fields = self._at - int(struct.unpack_from("<i", self._data, self._at)[0])
        (size,) = struct.unpack_from("<H", self._data, fields)
        entry = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, fields + entry)[0] if entry < size else 0
        return self._at + offset if offset else None

    def number(self, form: str, field: int) -> int:
        place = self.place(field)
        return 0 if place is None else int(struct.unpack_from(form, self._data, place)[0])

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._follow(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Returns a list of structs of two long integers."""
        if self.place(field) is None:
            return []
        at = self._follow(field)
        (count,) = struct.unpack_from("<I", self._data, at)
        return list(struct.iter_unpack("<qq", self._data[at + 4 : at + 4 + 16 * count]))

    def _follow(self, field: int) -> int:
        place = self.place(field)
        if place is None:
            raise MalformedError("its metadata lack a part")
        return place + int(struct.unpack_from("<I", self._data, place)[0])

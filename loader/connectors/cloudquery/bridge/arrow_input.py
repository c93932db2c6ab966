"""Reads Arrow messages from untrusted programs, and checks them before any value is used.

A message declares the offsets of its buffers, their decompressed sizes, and the number of values.
Arrow does not check these numbers: an offset beyond a buffer reads other memory, 10 KB of zstd can
expand to gigabytes, and a column of nulls can have any number of rows. This module also limits the
streams, idle time, memory and disk space that one client can use.
"""

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

MAX_STREAMS = 64
"""The maximum number of writing streams. Each needs a thread and memory for one message."""
MAX_OTHER_CALLS = 64
"""The maximum number of other calls, which are short or wait until the loader is ready."""
MAX_TABLES = 5_000
"""The maximum number of tables in a session. The loader creates each table in the lake."""
MAX_SCHEMA_BYTES = 64 << 20
"""The maximum size of a session's schemas. They stay in memory until the session ends."""
MAX_STATE_BYTES = 64 << 20
"""The maximum size of all states in memory, including states that wait for streams."""

MAX_BYTES = 100 << 20
"""The maximum size of a message, both compressed and decompressed, as in CloudQuery."""
MAX_VALUES = 10_000_000
"""The maximum number of values in a message, including values in lists and structs."""
MAX_NAME = 1_000
MAX_ERROR_TEXT = 300
"""The length above which an error's text is omitted. The text may quote a value."""
_TABLE = b"cq:table_name"
_VERSION_5 = 4  # the format used since Arrow 1.0; older formats declare compression differently
_SCALARS = (
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
_IS_LIST_TYPE = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_map,
)


class OverBudgetError(Exception):
    """A call exceeds a resource limit. The message is shown to users."""


class IdleTimeout:
    """Cancels calls whose clients have sent nothing for too long.

    States wait for all open streams, so an idle stream would delay every other sync.

    Args:
        seconds: the maximum time in seconds that a call waits for its client.
        on_end: called for each cancelled call.
    """

    def __init__(self, seconds: float, on_end: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_end = on_end
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="idle", daemon=True).start()

    def messages(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """Yields a client's messages, and limits how long the call waits for each of them."""
        while True:
            with self.bound_wait(context):
                request = next(requests, None)
            if request is None:
                return
            yield request

    @contextmanager
    def bound_wait(self, context: Any) -> Iterator[None]:
        """Limits how long a call may wait for its client inside the block."""
        call = id(context)
        with self._lock:
            self._waiting[call] = (time.monotonic(), context)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(call, None)

    def _watch(self) -> None:
        """Cancels idle calls, which then fail as if the client had disconnected."""
        while True:
            time.sleep(min(1.0, self._seconds / 4))
            late = time.monotonic() - self._seconds
            with self._lock:
                idle = [call for call, (began, _) in self._waiting.items() if began < late]
                contexts = [self._waiting.pop(call)[1] for call in idle]
            for context in contexts:
                context.cancel()
                self._on_end()


class DiskBudget:
    """Limits the size of a session's rows to half of the free disk space.

    The other half is for the loader's second copy of the rows, and for other programs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = shutil.disk_usage(folder).free // 2

    def take(self, size: int) -> None:
        """Reserves disk space before bytes are written.

        Raises:
            OverBudgetError: if the limit is exceeded.
        """
        self._left -= size
        if self._left < 0:
            raise OverBudgetError(
                f"the sync's rows need more than half of the free space on the disk of "
                f"{self._folder}: set TMPDIR to a larger disk, and restart the loader"
            )


class MalformedError(Exception):
    """A message is damaged, too large, or not part of the protocol.

    Attributes:
        table: the table that the message belongs to; empty if unknown.
    """

    def __init__(self, what: str, table: str = "") -> None:
        whose = f" of the table {table}" if table else ""
        super().__init__(
            f"a message{whose} cannot be read: {what}. Update the plugin, or report the problem to "
            "its maintainers"
        )
        self.what = what
        self.table = table


def read_table_name(schema: pa.Schema) -> str:
    """Returns the name of a schema's table.

    Raises:
        MalformedError: if the schema has no table name.
    """
    name = _name_of(schema)
    if not name:
        raise MalformedError(
            f"its table has no name, or a name of more than {MAX_NAME:,} characters"
        )
    return name


def _name_of(schema: pa.Schema) -> str:
    name = str((schema.metadata or {}).get(_TABLE, b"").decode("utf-8", "replace"))
    return name if len(name) <= MAX_NAME else ""


def build_malformed_error(error: Exception, table: str) -> MalformedError:
    text = str(error).partition("\n")[0]
    kind = type(error).__name__
    # A long text is omitted instead of truncated, because redaction does not recognise part of a
    # secret.
    return MalformedError(f"{kind}: {text}" if len(text) <= MAX_ERROR_TEXT else kind, table)


def read_schema(data: bytes) -> pa.Schema:
    """Reads a table's schema.

    Raises:
        MalformedError: if the schema is damaged, or has a type that CloudQuery does not use.
    """
    return _read(data, _parse_schema)


def read_record(data: bytes) -> pa.RecordBatch:
    """Reads a record batch and validates it, so that its values are safe to use.

    Raises:
        MalformedError: if the data is damaged, too large, or not exactly one record batch.
    """
    return _read(data, _parse_record)


def _read(data: bytes, parse: Any) -> Any:
    if len(data) > MAX_BYTES:
        raise MalformedError(f"it has {len(data):,} bytes; the maximum is {MAX_BYTES:,}")
    table = ""
    try:
        with pa.ipc.open_stream(data) as reader:
            table = _name_of(reader.schema)
            return parse(data, reader)
    except MalformedError as error:
        raise MalformedError(error.what, table) from None
    # Arrow raises various exceptions, and Python others for invalid names and numbers.
    except Exception as error:
        raise build_malformed_error(error, table) from None


def _parse_schema(_data: bytes, reader: Any) -> pa.Schema:
    names = reader.schema.names
    if len(set(names)) < len(names):
        raise MalformedError("two of its columns have the same name")
    for field in reader.schema:
        _check_type(field.type)
    return reader.schema


def _parse_record(data: bytes, reader: Any) -> pa.RecordBatch:
    _parse_schema(data, reader)
    kinds = []
    for message in _read_ipc_messages(data):
        kinds.append(message.type)
        if message.type == "record batch":
            _check_size(message)
    if kinds != ["schema", "record batch"]:
        raise MalformedError("it is not one record batch")
    batch = reader.read_next_batch()
    batch.validate(full=True)
    return batch


def _read_ipc_messages(data: bytes) -> Iterator[Any]:
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _check_type(kind: pa.DataType) -> None:
    """Rejects types whose values share memory, because a few bytes could expand to many values.

    These are dictionaries, run-length encodings, unions and views, which CloudQuery does not use.
    """
    if isinstance(kind, pa.BaseExtensionType):
        _check_type(kind.storage_type)
    elif pa.types.is_struct(kind) or any(is_kind(kind) for is_kind in _IS_LIST_TYPE):
        for index in range(kind.num_fields):
            _check_type(kind.field(index).type)
    elif not any(is_kind(kind) for is_kind in _SCALARS):
        raise MalformedError(f"it has a column of the type {kind}, which CloudQuery does not use")


def _check_size(message: Any) -> None:
    """Rejects a batch that declares too many values or bytes.

    Arrow must already have verified the format of the message.
    """
    root = _Table.root(memoryview(message.metadata))
    batch = root.table(2)
    values = [batch.number("<q", 0), *(length for length, _ in batch.pairs(1))]
    if min(values) < 0 or sum(values) > MAX_VALUES:
        raise MalformedError(f"it has {sum(values):,} values; the maximum is {MAX_VALUES:,}")
    if root.number("<h", 0) != _VERSION_5:
        raise MalformedError("it is in a format older than Arrow 1.0")
    size = sum(_list_sizes(batch, memoryview(message.body)))
    if size > MAX_BYTES:
        raise MalformedError(f"it has {size:,} bytes decompressed; the maximum is {MAX_BYTES:,}")


def _list_sizes(batch: _Table, body: memoryview) -> Iterator[int]:
    """Yields the decompressed size of each buffer. Compressed buffers start with this size."""
    for offset, length in batch.pairs(2):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise MalformedError("one of its buffers ends after the message")
        if batch.field_offset(3) is None or length < 8:
            yield length
            continue
        (declared,) = struct.unpack_from("<q", body, offset)
        if declared < -1:
            raise MalformedError("one of its buffers has a negative size")
        yield length if declared == -1 else declared  # -1 means that the buffer is not compressed


class _Table:
    """A table in the FlatBuffers format, which Arrow uses for metadata."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def field_offset(self, field: int) -> int | None:
        fields = self._at - int(struct.unpack_from("<i", self._data, self._at)[0])
        (size,) = struct.unpack_from("<H", self._data, fields)
        entry = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, fields + entry)[0] if entry < size else 0
        return self._at + offset if offset else None

    def number(self, struct_format: str, field: int) -> int:
        field_offset = self.field_offset(field)
        return (
            0
            if field_offset is None
            else int(struct.unpack_from(struct_format, self._data, field_offset)[0])
        )

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._resolve_offset(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Returns a field that is a list of structs of two 64-bit integers."""
        if self.field_offset(field) is None:
            return []
        at = self._resolve_offset(field)
        (count,) = struct.unpack_from("<I", self._data, at)
        return list(struct.iter_unpack("<qq", self._data[at + 4 : at + 4 + 16 * count]))

    def _resolve_offset(self, field: int) -> int:
        field_offset = self.field_offset(field)
        if field_offset is None:
            raise MalformedError("its metadata is incomplete")
        return field_offset + int(struct.unpack_from("<I", self._data, field_offset)[0])

"""The spool: files that Debezium's process writes and Spark reads.

Only the current user can read the spool's folder. It contains:

- a folder of text files for each table. Each line is a change:
  `number<tab>ordinal<tab>transaction<tab>change as JSON`. `number` counts the changes. `ordinal`
  counts the transactions in commit order, from 0. If the table has masked columns, each line is a
  base64-encoded, encrypted block of such lines. The key exists only in the run's memory.
- `transactions`, with the end of each complete transaction. Changes in incomplete transactions
  are ignored.
- `done`, with the number of changes for each table. This file is written last.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

TRANSACTIONS = "transactions"
DONE = "done"
FILE_BYTES = 64 * 1024 * 1024
"""The size at which the writer starts a new file. Spark reads several files in parallel."""
BLOCK_BYTES = 256 * 1024
"""The size at which the writer encrypts a block of lines."""
_TRUNCATES = '"op":"t"'  # this may also match the value of a column that is called op
_ENTRY = struct.Struct(">Q")
_WARNING = re.compile(
    r"(?:No converter found for column |"
    r"Failed to properly convert data value for '|"
    r"Failed to convert value .* from column '|"
    r"Unexpected value for JDBC type -?\d+ and column |"
    r"Unexpected JDBC \w+ value for field )(.+)"
)
_ELEMENT = "-element"


class DebeziumLog:
    """Collects Debezium's warnings about values that it omitted or replaced with null.

    The log itself is not stored, because it may quote values.

    Attributes:
        last_line: the last line that is not empty.
    """

    def __init__(self) -> None:
        self.last_line = ""
        # The variable part of each warning. It starts with the column's name, or with the names of
        # the table and the column.
        self._mentions: set[str] = set()

    def add_line(self, line: str) -> None:
        self.last_line = line.strip() or self.last_line
        match = _WARNING.search(line)
        if match:
            self._mentions.add(match[1])

    def has_replaced_values(self, table: str, column: str) -> bool:
        """Returns whether values of a column may have been replaced with null.

        Args:
            table: the table's name in the log. Warnings that name no table apply to all tables.
        """
        prefixes = tuple(f"{name}{end}" for name in (f"{table}.{column}", column) for end in " '")
        return any(mention.startswith(prefixes) for mention in self._mentions)

    def has_replaced_elements(self, column: str) -> bool:
        """Returns whether elements of arrays in a column may have been replaced with null."""
        return any(mention.startswith(f"{column}{_ELEMENT}") for mention in self._mentions)


class SpoolWriter:
    """Writes a spool. Runs in Debezium's process.

    Args:
        tables: the tables' names in the log, as `schema.table`. A table's index is the name of its
            folder.
        placeholder: the string that Debezium writes for a value that the log omits.
    """

    def __init__(
        self,
        folder: Path,
        tables: Sequence[str],
        placeholder: str,
        encrypted: Collection[str] = (),
        encrypt: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.folder = folder
        self._encrypt = encrypt
        self._blocks = {n: bytearray() for n, name in enumerate(tables) if name in encrypted}
        self._placeholders = Placeholder(placeholder).encodings
        self._table_ids = {name: number for number, name in enumerate(tables)}
        self._files: dict[int, IO[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._transactions = _create_private_file(folder / TRANSACTIONS)
        self._ordinal = 0
        self._number = 0

    def write_change(self, table: str, transaction: int, text: str) -> None:
        """Adds a change in the current transaction. Ignores tables that were not requested."""
        table_id = self._table_ids.get(table)
        if table_id is None:
            return
        self._number += 1
        line = f"{self._number}\t{self._ordinal}\t{transaction}\t{text}\n".encode()
        block = self._blocks.get(table_id)
        if block is None:
            self._write_line(table_id, line)
        else:
            block += line
            if len(block) >= BLOCK_BYTES:
                self._write_block(table_id)
        self._count("changes", table_id)
        if _TRUNCATES in text and json.loads(text)["op"] == "t":
            self._count("truncates", table_id)
        elif any(placeholder in text for placeholder in self._placeholders):
            self._count("unavailable", table_id)

    def _write_block(self, table_id: int) -> None:
        assert self._encrypt is not None
        block = self._blocks[table_id]
        self._write_line(table_id, base64.b64encode(self._encrypt(bytes(block))) + b"\n")
        block.clear()

    def _write_line(self, table_id: int, line: bytes) -> None:
        self._open_file(table_id).write(line)
        self._sizes[table_id] += len(line)

    def end_transaction(self, end: int) -> None:
        """Ends the current transaction.

        Args:
            end: the position after the transaction's commit.
        """
        self._transactions.write(_ENTRY.pack(end))
        self._ordinal += 1

    def close(self) -> None:
        for table_id, block in self._blocks.items():
            if block:
                self._write_block(table_id)
        for file in (*self._files.values(), self._transactions):
            file.close()
        part = self.folder / f"{DONE}.part"
        with _create_private_file(part) as file:
            file.write(json.dumps(self._counts).encode())
        part.rename(self.folder / DONE)

    def _count(self, kind: str, table_id: int) -> None:
        counts = self._counts.setdefault(kind, {})
        counts[str(table_id)] = counts.get(str(table_id), 0) + 1

    def _open_file(self, table_id: int) -> IO[bytes]:
        file = self._files.get(table_id)
        if file is None or self._sizes[table_id] > FILE_BYTES:
            if file is not None:
                file.close()
            folder = self.folder / str(table_id)
            folder.mkdir(exist_ok=True)
            self._files[table_id] = file = _create_private_file(folder / f"{self._number:015}.txt")
            self._sizes[table_id] = 0
        return file


@dataclass(frozen=True)
class Placeholder:
    """The forms of Debezium's placeholder for a value that the log omits.

    Attributes:
        text: the placeholder for strings, numbers and arrays of strings.
    """

    text: str

    @property
    def binary(self) -> str:
        """The placeholder for binary values, in base64."""
        return base64.b64encode(self.text.encode()).decode()

    @property
    def codes(self) -> list[int]:
        """The placeholder for arrays of integers or dates: the character codes of :attr:`text`."""
        return list(self.text.encode())

    @property
    def uuid(self) -> str:
        """The placeholder for arrays of UUIDs, computed like Java's `nameUUIDFromBytes`."""
        digest = hashlib.md5(self.text.encode(), usedforsecurity=False).digest()
        return str(uuid.UUID(bytes=digest, version=3))

    @property
    def encodings(self) -> tuple[str, ...]:
        """All forms of the placeholder, as they appear in the JSON of a change."""
        codes = ",".join(map(str, self.codes))
        return self.text, self.binary, self.uuid, f"[{codes}]"


class ChangeSpool:
    """A complete spool.

    Args:
        tables: the tables of the :class:`SpoolWriter`, in the same order.
    """

    def __init__(self, folder: Path, tables: Sequence[str], log: DebeziumLog) -> None:
        self.folder = folder
        self.log = log
        self._table_ids = {name: number for number, name in enumerate(tables)}
        self._counts: dict[str, Any] = json.loads((folder / DONE).read_text())
        self._transactions = (folder / TRANSACTIONS).read_bytes()

    def __len__(self) -> int:
        return len(self._transactions) // _ENTRY.size

    def read_end(self, ordinal: int) -> int:
        """Returns the position after the commit of a transaction."""
        return int(_ENTRY.unpack_from(self._transactions, ordinal * _ENTRY.size)[0])

    def find_first_after(self, position: int) -> int:
        """Returns the ordinal of the first transaction that ends after a position."""
        return bisect_right(range(len(self)), position, key=self.read_end)

    @property
    def end(self) -> int | None:
        """The position after the last transaction, or None if there are no transactions."""
        return self.read_end(len(self) - 1) if len(self) else None

    def count_changes(self, table: str) -> int:
        return self._count("changes", table)

    def count_truncates(self, table: str) -> int:
        return self._count("truncates", table)

    def count_omitted(self, table: str) -> int:
        """Returns an upper bound for the number of a table's changes that lack a value."""
        return self._count("unavailable", table)

    def get_folder(self, table: str) -> Path:
        return self.folder / str(self._table_ids[table])

    def _count(self, kind: str, table: str) -> int:
        return int(self._counts.get(kind, {}).get(str(self._table_ids[table]), 0))


def _create_private_file(path: Path) -> IO[bytes]:
    """Creates a file that only the current user can read, because it contains database rows."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

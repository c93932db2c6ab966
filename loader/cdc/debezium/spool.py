"""The spool: files that Debezium's process writes and Spark reads.

A folder that only this user can read. For each table it has a folder of text files, one change a
line: `number<tab>ordinal<tab>transaction<tab>change as JSON`. `ordinal` counts transactions from
0, in the order in which they committed; `number` counts changes. `transactions` has an entry for
each transaction that was read to its end, so a transaction without one is not whole, and its
changes do not count. `done` records how the process ended.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

TRANSACTIONS = "transactions"
DONE = "done"
FILE_BYTES = 64 * 1024 * 1024
"""A table's next change goes into a new file once the current one is larger: Spark reads files in
parallel."""
_TRUNCATES = '"op":"t"'  # a column may be called so, too
_ENTRY = struct.Struct(">QQ")
_WARNING = re.compile(
    r"(?:No converter found for column |"
    r"Failed to properly convert data value for '|"
    r"Failed to convert value .* from column '|"
    r"Unexpected value for JDBC type -?\d+ and column |"
    r"Unexpected JDBC \w+ value for field )(.+)"
)
_ELEMENT = "-element"


@dataclass(frozen=True)
class ConversionWarnings:
    """Debezium's warnings about values that it wrote as null, or left out with their column.

    Attributes:
        mentions: the rest of the warnings, after their fixed beginnings: a column, perhaps with its
            table.
    """

    mentions: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, log: Path) -> ConversionWarnings:
        """Reads the warnings."""
        with log.open(errors="replace") as lines:
            found = (_WARNING.search(line) for line in lines)
            return cls(frozenset(one[1] for one in found if one))

    def has_replaced_values(self, table: str, column: str) -> bool:
        """Returns whether values of a column may have been replaced by null.

        Args:
            table: the table's name in the log. Some warnings lack it, and count for all tables.
        """
        names = tuple(f"{name}{end}" for name in (f"{table}.{column}", column) for end in " '")
        return any(mention.startswith(names) for mention in self.mentions)

    def has_replaced_elements(self, column: str) -> bool:
        """Returns whether elements of arrays in a column may have been replaced by null."""
        return any(mention.startswith(f"{column}{_ELEMENT}") for mention in self.mentions)


class SpoolWriter:
    """Writes a spool; used by Debezium's process only.

    Args:
        tables: the tables' names in the log, `schema.table`; their places name the folders.
        placeholder: Debezium's text for a value that the log leaves out.
    """

    def __init__(self, folder: Path, tables: Sequence[str], placeholder: str) -> None:
        self.folder = folder
        self._placeholders = Placeholder(placeholder).forms
        self._places = {name: place for place, name in enumerate(tables)}
        self._files: dict[int, IO[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._index = _create_private_file(folder / TRANSACTIONS)
        self._ordinal = 0
        self._number = 0

    def write_change(self, table: str, transaction: int, text: str) -> None:
        """Adds a change of the transaction that is being read; skips tables not asked for."""
        place = self._places.get(table)
        if place is None:
            return
        self._number += 1
        line = f"{self._number}\t{self._ordinal}\t{transaction}\t{text}\n".encode()
        self._file(place).write(line)
        self._sizes[place] += len(line)
        self._count("changes", place)
        if _TRUNCATES in text and json.loads(text)["op"] == "t":
            self._count("truncates", place)
        elif any(form in text for form in self._placeholders):
            self._count("unavailable", place)

    def end_transaction(self, transaction: int, end: int) -> None:
        """Ends the transaction that is being read.

        Args:
            end: the position after its commit.
        """
        self._index.write(_ENTRY.pack(end, transaction))
        self._ordinal += 1

    def close(self) -> None:
        """Makes the spool complete."""
        for file in (*self._files.values(), self._index):
            file.close()
        part = self.folder / f"{DONE}.part"
        with _create_private_file(part) as file:
            file.write(json.dumps(self._counts).encode())
        part.rename(self.folder / DONE)

    def _count(self, what: str, place: int) -> None:
        counts = self._counts.setdefault(what, {})
        counts[str(place)] = counts.get(str(place), 0) + 1

    def _file(self, place: int) -> IO[bytes]:
        file = self._files.get(place)
        if file is None or self._sizes[place] > FILE_BYTES:
            if file is not None:
                file.close()
            folder = self.folder / str(place)
            folder.mkdir(exist_ok=True)
            self._files[place] = file = _create_private_file(folder / f"{self._number:015}.txt")
            self._sizes[place] = 0
        return file


@dataclass(frozen=True)
class Placeholder:
    """Debezium's placeholder for a value that the log leaves out, in its forms.

    Attributes:
        text: in texts, numbers and arrays of texts.
    """

    text: str

    @property
    def binary(self) -> str:
        """In a binary value, as JSON has it."""
        return base64.b64encode(self.text.encode()).decode()

    @property
    def codes(self) -> list[int]:
        """In an array of integers or dates."""
        return list(self.text.encode())

    @property
    def uuid(self) -> str:
        """In an array of UUIDs (Java's `nameUUIDFromBytes`)."""
        digest = hashlib.md5(self.text.encode(), usedforsecurity=False).digest()
        return str(uuid.UUID(bytes=digest, version=3))

    @property
    def forms(self) -> tuple[str, ...]:
        """All of them, as they are found in the text of a change."""
        codes = ",".join(map(str, self.codes))
        return self.text, self.binary, self.uuid, f"[{codes}]"


@dataclass(frozen=True)
class Transaction:
    """A transaction in the spool.

    Attributes:
        id: its id in the log.
        end: the position after its commit.
    """

    id: int
    end: int


class ChangeSpool:
    """A complete spool.

    Args:
        tables: as the writer had them.
        replaced: the values that it lacks though the log has them.
    """

    def __init__(
        self,
        folder: Path,
        tables: Sequence[str],
        replaced: ConversionWarnings = ConversionWarnings(),
    ) -> None:
        self.folder = folder
        self.replaced = replaced
        self._places = {name: place for place, name in enumerate(tables)}
        self._said: dict[str, Any] = json.loads((folder / DONE).read_text())
        self._index = (folder / TRANSACTIONS).read_bytes()

    def __len__(self) -> int:
        return len(self._index) // _ENTRY.size

    def transaction(self, ordinal: int) -> Transaction:
        """Returns a transaction by its ordinal."""
        end, number = _ENTRY.unpack_from(self._index, ordinal * _ENTRY.size)
        return Transaction(number, end)

    def find_first_after(self, position: int) -> int:
        """Returns the ordinal of the first transaction that ends after a position."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.transaction(middle).end <= position:
                low = middle + 1
            else:
                high = middle
        return low

    @property
    def end(self) -> int | None:
        """The position after the last transaction; None if there is none."""
        return self.transaction(len(self) - 1).end if len(self) else None

    def count_changes(self, table: str) -> int:
        """Returns how many changes of a table the spool has."""
        return self._count("changes", table)

    def count_truncates(self, table: str) -> int:
        """Returns how many of them empty the table."""
        return self._count("truncates", table)

    def count_left_out(self, table: str) -> int:
        """Returns how many of them lack a value, at most."""
        return self._count("unavailable", table)

    def folder_of(self, table: str) -> Path:
        """Returns the folder with a table's changes."""
        return self.folder / str(self._places[table])

    def _count(self, what: str, table: str) -> int:
        return int(self._said.get(what, {}).get(str(self._places[table]), 0))


def _create_private_file(path: Path) -> IO[bytes]:
    """Creates a file that only this user can read: the database's rows are in it."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

"""Values that Debezium could not convert: it warns, and writes null or leaves the column out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
    """Debezium's warnings about such values.

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

    def values(self, table: str, column: str) -> bool:
        """Returns whether values of a column may have been replaced by null.

        Args:
            table: the table's name in the log. Some warnings lack it, and count for all tables.
        """
        names = tuple(f"{name}{end}" for name in (f"{table}.{column}", column) for end in " '")
        return any(mention.startswith(names) for mention in self.mentions)

    def elements(self, column: str) -> bool:
        """Returns whether elements of arrays in a column may have been replaced by null."""
        return any(mention.startswith(f"{column}{_ELEMENT}") for mention in self.mentions)

"""Plans sweeps. A sweep finds rows by the transaction that wrote them, regardless of their cursors.

A window contains the rows at or above the stored cursor. An application that computes the cursor
may write a lower value: its clock may be behind, it may round times to hours, it may import old
dates, or it may update a row without changing the cursor. In PostgreSQL, each row contains the id
of the transaction that wrote it. A sweep counts the rows below the window whose transactions the
last sweep could not see. If there are none, the sync runs no other query that scans the table.

The table's state records which transactions the last sweep could see. A stale record does no harm:
the next sweep finds some rows that were already loaded, and the sync drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loader.duration import seconds_of
from loader.rows.cursor import Cursor
from loader.sources.jdbc.postgresql.continuity import DatabaseContinuity, TransactionMark

SWEEP = "sweep"
"""The checkpoint's entry for the record of the last sweep."""

_BYTES_PER_SECOND = 100e6
"""The assumed speed of a scan if the last sweep was too small to measure it."""
_MEASURABLE_SECONDS = 0.1
_MEASURABLE_BYTES = 1_000_000
_ALWAYS_ALLOWED_SECONDS = 0.1
_SHARE = 0.05
"""The largest share of the time that `sweep: auto` may spend on sweeping one table."""
_NEGLIGIBLE_SECONDS = 0.05
_NEGLIGIBLE_SECONDS_IF_SMALL = 1.0
"""The limit for small tables. It is higher, because a busy machine may slow a quick sweep down."""


@dataclass(frozen=True)
class SweepRecord:
    """The transactions that the last sweep of a table could see, and the cost of the sweep.

    Attributes:
        transactions: the transaction state of the sweep's snapshot.
        at: the time of the sweep by the database's clock, in seconds since 1970; 0 if there was no
            sweep.
        bytes: the table's size.
        seconds: the duration of the sweep; 0 if a sync read all rows instead.
    """

    transactions: TransactionMark
    at: float = 0.0
    bytes: int = 0
    seconds: float = 0.0

    def to_mark(self) -> dict[str, Any]:
        seen = self.transactions
        return {
            "at": round(self.at, 3),
            "bytes": self.bytes,
            "log_end": seen.log_end,
            "seconds": round(self.seconds, 3),
            "since": seen.since,
            "system": seen.system,
            "unseen": " ".join(map(str, seen.unseen)),
            "unseen_from": str(seen.unseen_from),
            "xmin": str(seen.xmin),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> SweepRecord | None:
        """Parses the entry in a stored checkpoint. Returns None if there is no entry."""
        entry = (mark or {}).get(SWEEP)
        if entry is None:
            return None
        transactions = TransactionMark(
            entry["since"],
            int(entry["xmin"]),
            False,
            str(entry["system"]),
            log_end=int(entry["log_end"]),
            unseen=tuple(map(int, entry.get("unseen", "").split())),
            unseen_from=int(entry.get("unseen_from", 0)),
        )
        at, bytes_, seconds = float(entry["at"]), int(entry["bytes"]), float(entry["seconds"])
        return cls(transactions, at, bytes_, seconds)

    def is_behind(self, now: TransactionMark) -> bool:
        """Returns whether the server is a replica that lacks rows that the last sweep saw."""
        if self.transactions.compare_database(now) is DatabaseContinuity.BEHIND:
            return True
        return now.replica and now.log_end < self.transactions.log_end

    def is_due(self, interval: str, bytes_: int, clock: float) -> bool:
        """Returns whether a sweep is due.

        Args:
            interval: the table's `sweep` option.
            clock: the database's clock, in seconds since 1970.
        """
        if interval in ("always", "never"):
            return interval == "always"
        passed = clock - self.at
        if not self.at or passed < 0:  # the clock was set back
            return True
        if interval != "auto":
            return passed >= seconds_of(interval, "an interval", "")
        is_measured = self.seconds >= _MEASURABLE_SECONDS and self.bytes >= _MEASURABLE_BYTES
        speed = self.bytes / self.seconds if is_measured else _BYTES_PER_SECOND
        return bytes_ <= speed * max(_ALWAYS_ALLOWED_SECONDS, _SHARE * passed)


@dataclass(frozen=True)
class Sweep:
    """The sweep of one table in one sync, or the decision not to sweep.

    Attributes:
        record: the record to store.
        has_run: whether the table was swept.
        rows: the number of rows that the sweep found below the window.
        lowest: the lowest cursor in these rows; None if there are none.
        condition: an SQL condition that selects these rows; empty if there are none.
        must_store: whether the record must be stored even if no row is appended.
        excluded: the number of rows, with any cursor, that were written after the last sweep and do
            not match the `where` option. The raw table may contain earlier versions that matched.
        exclusion: an SQL condition that selects the excluded rows; empty if there are none.
    """

    record: SweepRecord
    has_run: bool = False
    rows: int = 0
    lowest: Cursor | None = None
    condition: str = ""
    must_store: bool = False
    excluded: int = 0
    exclusion: str = ""


def must_store(before: SweepRecord, after: SweepRecord, rows: int, interval: str) -> bool:
    """Returns whether a sweep's record must be stored even if no row is appended.

    After a quick sweep that found no rows, a sync need not write its state, because the next sync
    can repeat the sweep.
    """
    is_valid = (
        before.transactions.compare_database(after.transactions) is DatabaseContinuity.SAME
        and not before.transactions.is_outlived(after.transactions)
        and before.at > 0
    )
    is_timed = interval not in ("auto", "always")
    is_small = after.bytes < _MEASURABLE_BYTES
    is_negligible = after.seconds <= (
        _NEGLIGIBLE_SECONDS_IF_SMALL if is_small else _NEGLIGIBLE_SECONDS
    )
    return bool(rows) or is_timed or not is_valid or not is_negligible

"""Lists the files of a table and selects the files in a window.

Spark lists the files with the table's reader options, so the listed files are exactly those that it
reads. A file is identified by its path and modification time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import NullType, StructType, TimestampType

from loader.rows.cursor import Cursor, CursorType
from loader.rows.literal import cursor_literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader.rows.window import Window
    from loader.sources.file.options import ReaderOptions
    from loader.sources.interface import SourceTable

MODIFIED = "_file_modified_at"
PATH = "_file_path"
SIZE = "_file_size"
RECURSIVE = "recursiveFileLookup"

_COARSEST = dt.timedelta(seconds=2)
"""The coarsest resolution of modification times on any file system (on FAT)."""

_LONGEST_COLUMNS = 16_000
"""The maximum length of the column list in the checkpoint, which is stored in each commit."""


def list_files(spark: SparkSession, native: ReaderOptions) -> DataFrame:
    """Lazily lists the files, one per row, with the columns of Spark's `binaryFile` format."""
    return spark.read.format("binaryFile").options(**dict(native.options)).load(native.pattern)


def files(spark: SparkSession, native: ReaderOptions) -> DataFrame:
    return list_files(spark, native).select(
        path().alias(PATH),
        f.col("_metadata.file_modification_time").alias(MODIFIED),
        f.col("_metadata.file_size").alias(SIZE),
    )


def path() -> Column:
    """Returns the path of the file that contains a row, in the format of PATH."""
    return f.col("_metadata.file_path")


def is_in_window(window: Window, end: Cursor | None, beyond: bool = False) -> Column:
    """Returns whether a file's modification time is in the window and not later than `end`.

    If `end` is None, there is no upper bound. If `beyond` is true, the lower bound is excluded.
    """
    time, inside = f.col(MODIFIED), f.lit(True)
    if window.low is not None:
        low = _literal(window.low)
        inside = time > low if beyond else time >= low
    if end is not None:
        inside = inside & (time <= _literal(end))
    return inside


@dataclass(frozen=True)
class Tally:
    """The number of files in a set, and the sum of 64-bit hashes of their paths, times and sizes.

    The checkpoint contains these numbers instead of the paths, so that changes can be detected.
    """

    count: int
    digest: str


@dataclass(frozen=True)
class Seen:
    """A summary of the files that the last sync listed.

    Attributes:
        cursor: the modification time up to which the last sync read the files.
        below: the files whose time is earlier than `cursor`.
        at: the files whose time is `cursor`; None if the next sync must reread them.
        begin: the cursor that a user set, if any. Files whose time is earlier are ignored.
        reader: the fingerprint of the reader options.
        columns: the columns of the files; None if they are not stored.
        apart: see :attr:`loader.sources.file.options.ReaderOptions.apart`.
    """

    cursor: Cursor
    below: Tally
    at: Tally | None = None
    begin: Cursor | None = None
    reader: str = ""
    columns: Mapping[str, Any] | None = None
    apart: bool = False

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> Seen | None:
        """Parses the last sync's checkpoint. Returns None if there is none."""
        if mark is None or not {"before", "files", "digest"} <= set(mark):
            return None
        cursor, begin = (
            Cursor.parse(str(mark[name]), CursorType.TIMESTAMPTZ) if name in mark else None
            for name in ("before", "from")
        )
        assert cursor is not None
        below, at = Tally(int(mark["files"]), str(mark["digest"])), mark.get("at")
        if at is None:
            return cls(cursor, below, None, begin)
        return cls(
            cursor,
            below,
            Tally(int(at["files"]), str(at["digest"])),
            begin,
            str(at["reader"]),
            at.get("columns"),
            bool(at.get("apart")),
        )

    def to_mark(self) -> dict[str, Any]:
        mark: dict[str, Any] = {
            "before": self.cursor.text,
            "files": self.below.count,
            "digest": self.below.digest,
        }
        if self.begin is not None:
            mark["from"] = self.begin.text
        if self.at is not None:
            at = {"files": self.at.count, "digest": self.at.digest, "reader": self.reader}
            mark["at"] = at if self.columns is None else {**at, "columns": self.columns}
            if self.apart:
                mark["at"]["apart"] = True
        return mark


def summarize_files(files: DataFrame, cursor: Cursor) -> tuple[Tally, Tally, Tally]:
    """Returns three tallies: of the files whose time is below, at and above `cursor`."""
    time, limit = f.col(MODIFIED), _literal(cursor)
    hashed = f.xxhash64(PATH, MODIFIED, SIZE).cast("decimal(20, 0)")
    sides = (time < limit, time == limit, time > limit)
    [row] = files.agg(
        *(f.count_if(side).alias(f"files{n}") for n, side in enumerate(sides)),
        *(
            f.sum(f.when(side, hashed)).cast("string").alias(f"sum{n}")
            for n, side in enumerate(sides)
        ),
    ).collect()
    below, at, above = (Tally(row[f"files{n}"], row[f"sum{n}"] or "0") for n in range(3))
    return below, at, above


def is_settled(cursor: Cursor, listed_at: Cursor) -> bool:
    """Returns whether a file with the time `cursor` is sure to get a new time if it changes later.

    Some file systems store times with a resolution of two seconds. A file that was listed within
    two seconds of its time may be replaced by one that has the same time and size.
    """
    return bool(cursor.order + _COARSEST <= listed_at.order)


def fingerprint(native: ReaderOptions) -> str:
    """Returns a digest of the reader options. If it changes, the files at the cursor are reread."""
    text = repr((native.format.lower(), native.options, native.columns, native.types))
    text += native.selection
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def has_read_boundary(files: DataFrame, native: ReaderOptions, window: Window) -> bool:
    """Returns whether the last sync read all files whose time is the window's lower bound.

    If so, these files contain no new rows and need not be opened.
    """
    seen = Seen.from_mark(window.mark)
    if seen is None or seen.at is None or window.low is None:
        return False
    if window.low.order != seen.cursor.order or seen.reader != fingerprint(native):
        return False
    _, at, _ = summarize_files(files, seen.cursor)
    return at == seen.at


def find_stored_columns(
    files: DataFrame, native: ReaderOptions, mark: Mapping[str, Any] | None
) -> tuple[ReaderOptions, StructType] | None:
    """Returns the columns that the last sync stored, or None if the files have changed since."""
    seen = Seen.from_mark(mark)
    if seen is None or seen.columns is None or seen.reader != fingerprint(native):
        return None
    below, at, above = summarize_files(files, seen.cursor)
    if (below, at, above.count) != (seen.below, seen.at, 0):
        return None
    return replace(native, apart=seen.apart), StructType.fromJson(dict(seen.columns))


def find_moved_in(files: DataFrame, window: Window) -> DataFrame | None:
    """Returns files that are older than the window but missing from the raw table.

    Such files kept an old modification time when they were moved into the folder (`mv`,
    `rsync -a`). Returns None, without reading the raw table, if the files below the window match
    the last sync's summary or if there is no summary, as after `loader state set`.
    """
    seen = Seen.from_mark(window.mark)
    if window.low is None or window.read_raw is None or seen is None:
        return None
    if (
        window.low.order <= seen.cursor.order
        and seen.below == summarize_files(files, seen.cursor)[0]
    ):
        return None
    older = files.where(f.col(MODIFIED) < _literal(window.low))
    for begin in (window.initial, seen.begin):
        if begin is not None:
            older = older.where(f.col(MODIFIED) >= _literal(begin))
    return older.join(window.read_raw((PATH, MODIFIED)).distinct(), [PATH, MODIFIED], "left_anti")


def find_loaded_files(window: Window, table: SourceTable) -> Column | None:
    """Returns a condition that selects the files in the window that have already been loaded.

    Returns None if the condition is not needed. The files at the cursor are reread. In a table
    without a key, the rows that were already loaded are then recognized by their values. But if a
    new file widens a column's type, these values change, so the files that were already loaded must
    be excluded with this condition.
    """
    if not window.is_exhaustive or window.read_raw is None or window.low is None:
        return None
    raw = window.read_raw(table.schema.names).schema
    types = zip(raw.fields, table.schema.fields, strict=True)
    if all(
        isinstance(raw_field.dataType, NullType)
        or raw_field.dataType.simpleString() == c.dataType.simpleString()
        for raw_field, c in types
    ):
        return None
    name = f.concat_ws(" ", f.col(MODIFIED).cast("string"), PATH)
    loaded = window.read_raw((PATH, MODIFIED)).where(f.col(MODIFIED) >= _literal(window.low))
    return name.isin([row[0] for row in loaded.select(name).distinct().collect()])


def build_mark(
    files: DataFrame, table: SourceTable, window: Window, cursor: Cursor, listed_at: Cursor
) -> dict[str, Any]:
    """Returns the checkpoint after a sync that read all files up to the time `cursor`.

    Args:
        listed_at: the time at which the files were listed.
    """
    last = Seen.from_mark(window.mark)
    begin = last.begin if last else window.low
    if window.low is None or (last is None and window.low == window.initial):
        begin = None
    below, at, _ = summarize_files(files, cursor)
    if not is_settled(cursor, listed_at):
        return Seen(cursor, below, None, begin).to_mark()
    native: ReaderOptions = table.ref.native
    columns = None
    if native.columns is None and not native.types:
        source_fields = [
            field for field in table.schema.fields if field.name not in (MODIFIED, PATH)
        ]
        columns = StructType(source_fields).jsonValue()
        columns = columns if len(json.dumps(columns)) <= _LONGEST_COLUMNS else None
    seen = Seen(cursor, below, at, begin, fingerprint(native), columns, native.apart)
    return seen.to_mark()


def _literal(cursor: Cursor) -> Column:
    return cursor_literal(cursor, TimestampType())

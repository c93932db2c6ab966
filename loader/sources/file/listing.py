"""Lists the files of one table, and chooses those that a window reads.

Spark lists them with the table's own reader options, so it lists the same files that it reads. A
file is identified by its path and modification time.
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
from pyspark.sql.window import Window as Over

from loader.rows.cursor import Cursor, CursorType
from loader.rows.literal import cursor_literal
from loader.rows.version_order import SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader.rows.window import Window
    from loader.sources.file.options import ReaderOptions
    from loader.sources.interface import SourceTable

MODIFIED = "_file_modified_at"
PATH = "_file_path"
SIZE = "_file_size"
RECURSIVE = "recursiveFileLookup"

_LINES = 1 << 33
"""Spark's `monotonically_increasing_id` numbers the rows of a partition up to here."""

_FIRST = Over.unboundedPreceding

_COARSEST = dt.timedelta(seconds=2)
"""Times of files are at least as fine as this: on FAT they are this coarse."""

_LONGEST_COLUMNS = 16_000
"""More characters of columns are not remembered: each commit carries the state."""


def list_files(spark: SparkSession, native: ReaderOptions) -> DataFrame:
    """Returns one row per file, in Spark's `binaryFile` columns; does not read the files."""
    return spark.read.format("binaryFile").options(**dict(native.options)).load(native.pattern)


def files(spark: SparkSession, native: ReaderOptions) -> DataFrame:
    """Returns the table's files: PATH, MODIFIED and size."""
    return list_files(spark, native).select(
        path().alias(PATH),
        f.col("_metadata.file_modification_time").alias(MODIFIED),
        f.col("_metadata.file_size").alias(SIZE),
    )


def path() -> Column:
    """Returns the path of the file that a row comes from, as PATH holds it."""
    return f.col("_metadata.file_path")


def within(window: Window, end: Cursor | None, beyond: bool = False) -> Column:
    """Returns whether a file's time lies in the window, which ends at `end`.

    Args:
        beyond: the files at the window's lower bound are left out.
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
    """A number of files, in short: shows, without naming each, whether they have changed.

    Attributes:
        count: how many files there are.
        digest: the sum of a 64-bit hash of each file's path, time and size.
    """

    count: int
    digest: str


@dataclass(frozen=True)
class Seen:
    """The files of a table as a sync listed them before it read them.

    Attributes:
        cursor: a time.
        below: the files below that time.
        at: the files at that time, if they need not be opened again; else None.
        begin: the time to which the cursor was set by hand: files below it are not listed.
        reader: a fingerprint of the reader's options with which the files were read.
        columns: the columns that they have; None if they are not remembered.
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
        """Reads the mark of the last sync; None if there is none."""
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
        """Returns the form that the state stores."""
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


def tally(files: DataFrame, cursor: Cursor) -> tuple[Tally, Tally, Tally]:
    """Counts the files below, at and above a time."""
    time, limit = f.col(MODIFIED), _literal(cursor)
    hashed = f.xxhash64(PATH, MODIFIED, SIZE).cast("decimal(20, 0)")
    sides = (time < limit, time == limit, time > limit)
    [found] = files.agg(
        *(f.count_if(side).alias(f"files{n}") for n, side in enumerate(sides)),
        *(
            f.sum(f.when(side, hashed)).cast("string").alias(f"sum{n}")
            for n, side in enumerate(sides)
        ),
    ).collect()
    below, at, above = (Tally(found[f"files{n}"], found[f"sum{n}"] or "0") for n in range(3))
    return below, at, above


def is_settled(cursor: Cursor, listed_at: Cursor) -> bool:
    """Returns whether files of a time can have no other content later without a later time.

    Some file systems and stores have times of two seconds: a file that was listed sooner after its
    time may be replaced by one of the same time and size.

    Args:
        listed_at: when the files were listed.
    """
    return bool(cursor.order + _COARSEST <= listed_at.order)


def fingerprint(native: ReaderOptions) -> str:
    """Returns a digest of how files are read: those at the cursor are read again if it differs."""
    said = repr((native.format.lower(), native.options, native.columns, native.types))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def has_read_boundary(files: DataFrame, native: ReaderOptions, window: Window) -> bool:
    """Returns whether the last sync read the files at the window's lower bound, just as they are.

    Then nothing is new in them, and they are not opened.
    """
    seen = Seen.from_mark(window.mark)
    if seen is None or seen.at is None or window.low is None:
        return False
    if window.low.order != seen.cursor.order or seen.reader != fingerprint(native):
        return False
    _, at, _ = tally(files, seen.cursor)
    return at == seen.at


def remembered_columns(
    files: DataFrame, native: ReaderOptions, mark: Mapping[str, Any] | None
) -> tuple[ReaderOptions, StructType] | None:
    """Returns the columns that the last sync found in the same files; None if others are there."""
    seen = Seen.from_mark(mark)
    if seen is None or seen.columns is None or seen.reader != fingerprint(native):
        return None
    below, at, above = tally(files, seen.cursor)
    if (below, at, above.count) != (seen.below, seen.at, 0):
        return None
    return replace(native, apart=seen.apart), StructType.fromJson(dict(seen.columns))


def find_moved_in(files: DataFrame, window: Window) -> DataFrame | None:
    """Returns the files below the window that raw does not hold; None if there can be none.

    Such files kept an older time when they were moved in (`mv`, `rsync -a`) after a sync had
    passed that time, or they are older files that replaced others. Reads raw only if the files
    below the window are not those that the last sync summarized. Without that summary, after
    `loader state set`, reading begins at the cursor.
    """
    seen = Seen.from_mark(window.mark)
    if window.low is None or window.read_raw is None or seen is None:
        return None
    if window.low.order <= seen.cursor.order and seen.below == tally(files, seen.cursor)[0]:
        return None
    older = files.where(f.col(MODIFIED) < _literal(window.low))
    for begin in (window.initial, seen.begin):
        if begin is not None:
            older = older.where(f.col(MODIFIED) >= _literal(begin))
    return older.join(window.read_raw((PATH, MODIFIED)).distinct(), [PATH, MODIFIED], "left_anti")


def select_held(window: Window, table: SourceTable) -> Column | None:
    """Returns which files of a window raw holds, if their rows would not be recognised there.

    The files at the cursor are read again. Rows without a key are recognised by all of their
    values, and these are others once a file has changed a column's type for all files.
    """
    if not window.is_exhaustive or window.read_raw is None or window.low is None:
        return None
    raw = window.read_raw(table.schema.names).schema
    types = zip(raw.fields, table.schema.fields, strict=True)
    if all(
        isinstance(had.dataType, NullType)
        or had.dataType.simpleString() == c.dataType.simpleString()
        for had, c in types
    ):
        return None
    name = f.concat_ws(" ", f.col(MODIFIED).cast("string"), PATH)
    held = window.read_raw((PATH, MODIFIED)).where(f.col(MODIFIED) >= _literal(window.low))
    return name.isin([row[0] for row in held.select(name).distinct().collect()])


def remember(
    files: DataFrame, table: SourceTable, window: Window, cursor: Cursor, listed_at: Cursor
) -> dict[str, Any]:
    """Returns the mark of a sync that reads or has skipped all files up to a time.

    Args:
        cursor: the time; no file above it is read that is not read again.
        listed_at: when the files were listed.
    """
    last = Seen.from_mark(window.mark)
    begin = last.begin if last else window.low
    if window.low is None or (last is None and window.low == window.initial):
        begin = None
    below, at, _ = tally(files, cursor)
    if not is_settled(cursor, listed_at):
        return Seen(cursor, below, None, begin).to_mark()
    native: ReaderOptions = table.ref.native
    columns = None
    if native.columns is None and not native.types:
        own = [field for field in table.schema.fields if field.name not in (MODIFIED, PATH)]
        columns = StructType(own).jsonValue()
        columns = columns if len(json.dumps(columns)) <= _LONGEST_COLUMNS else None
    seen = Seen(cursor, below, at, begin, fingerprint(native), columns, native.apart)
    return seen.to_mark()


@dataclass(frozen=True)
class ReadOrder:
    """Numbers rows in the order in which they were written: by their files' times and paths.

    Spark packs files into partitions by size. To sort the rows would read all of them twice, and
    move them.

    Attributes:
        places: PATH, and the number of the first block of each file.
        number: a row's number, increasing, with gaps; of rows with _cq_block, _cq_line and the
            columns of `places`.
    """

    places: DataFrame
    number: Column


def read_order(files: DataFrame) -> ReadOrder:
    """Returns the order of the rows of some files."""
    session: Any = files.sparkSession
    conf = session._jsparkSession.sessionState().conf()
    # Spark splits files into blocks of at least this size.
    block = max(1, min(int(conf.filesOpenCostInBytes()), int(conf.filesMaxPartitionBytes())))
    blocks = f.expr(f"{SIZE} div {block}") + 1
    before = Over.partitionBy(f.lit(0)).orderBy(MODIFIED, PATH).rowsBetween(_FIRST, -1)
    first = f.coalesce(f.sum(blocks).over(before), f.lit(0))
    place = f.col("_cq_first") + f.expr(f"_cq_block div {block}")
    line = f.col("_cq_line").bitwiseAND(f.lit(_LINES - 1))
    return ReadOrder(
        files.select(PATH, first.alias("_cq_first")), (place * _LINES + line).alias(SEQUENCE)
    )


def _literal(cursor: Cursor) -> Column:
    return cursor_literal(cursor, TimestampType())

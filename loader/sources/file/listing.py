"""Lists the files of one table, and chooses those that a window reads.

Spark lists them with the table's own reader options, so it lists the same files that it reads. A
file is identified by its path and modification time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import NullType, TimestampType

from loader.rows.cursor import Cursor, CursorType
from loader.rows.literal import literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader.rows.window import Window
    from loader.sources import SourceTable
    from loader.sources.file.options import Native

MODIFIED = "_file_modified_at"
PATH = "_file_path"
SIZE = "_file_size"
RECURSIVE = "recursiveFileLookup"


def listed(spark: SparkSession, native: Native) -> DataFrame:
    """Returns one row per file, in Spark's `binaryFile` columns; does not read the files."""
    return spark.read.format("binaryFile").options(**dict(native.options)).load(native.pattern)


def files(spark: SparkSession, native: Native) -> DataFrame:
    """Returns the table's files: PATH, MODIFIED and size."""
    return listed(spark, native).select(
        path().alias(PATH),
        f.col("_metadata.file_modification_time").alias(MODIFIED),
        f.col("_metadata.file_size").alias(SIZE),
    )


def path() -> Column:
    """Returns the path of the file that a row comes from, as PATH holds it."""
    return f.col("_metadata.file_path")


def within(window: Window, end: Cursor | None) -> Column:
    """Returns whether a file's time lies in the window, which ends at `end`."""
    time, inside = f.col(MODIFIED), f.lit(True)
    if window.low is not None:
        inside = inside & (time >= _literal(window.low))
    if end is not None:
        inside = inside & (time <= _literal(end))
    return inside


@dataclass(frozen=True)
class Older:
    """A summary of the files below a time: shows, without naming each, whether they have changed.

    Attributes:
        before: the time, exclusive.
        count: how many files there are.
        digest: the sum of a 64-bit hash of each file's path, time and size.
        begin: the time at which somebody set the cursor: files below it are not looked for.
    """

    before: Cursor
    count: int
    digest: str
    begin: Cursor | None = None

    @classmethod
    def of(cls, files: DataFrame, before: Cursor, begin: Cursor | None) -> Older:
        """Summarizes the files below a time."""
        hashed = f.xxhash64(PATH, MODIFIED, SIZE).cast("decimal(20, 0)")
        [found] = (
            files.where(f.col(MODIFIED) < _literal(before))
            .agg(f.count(f.lit(1)).alias("n"), f.sum(hashed).cast("string").alias("digest"))
            .collect()
        )
        return cls(before, found["n"], found["digest"] or "0", begin)

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> Older | None:
        """Reads what the last sync remembered; None if it remembered nothing."""
        if mark is None or not {"before", "files", "digest"} <= set(mark):
            return None
        before, begin = (
            Cursor.parse(str(mark[name]), CursorType.TIMESTAMPTZ) if name in mark else None
            for name in ("before", "from")
        )
        assert before is not None
        return cls(before, int(mark["files"]), str(mark["digest"]), begin)

    def to_mark(self) -> dict[str, Any]:
        """Returns the form that the state stores."""
        mark = {"before": self.before.text, "files": self.count, "digest": self.digest}
        return mark if self.begin is None else {**mark, "from": self.begin.text}


def moved_in(files: DataFrame, window: Window) -> DataFrame | None:
    """Returns the files below the window that raw does not hold; None if there can be none.

    Such files kept an older time when they were moved in (`mv`, `rsync -a`) after a sync had
    passed that time, or they are older files that replaced others. Reads raw only if the files
    below the window are not those that the last sync summarized. Without that summary, after
    `loader state set`, reading begins at the cursor.
    """
    remembered = Older.from_mark(window.mark)
    if window.low is None or window.held is None or remembered is None:
        return None
    passed = window.low.order <= remembered.before.order
    if passed and remembered == Older.of(files, remembered.before, remembered.begin):
        return None
    older = files.where(f.col(MODIFIED) < _literal(window.low))
    for begin in (window.initial, remembered.begin):
        if begin is not None:
            older = older.where(f.col(MODIFIED) >= _literal(begin))
    return older.join(window.held((PATH, MODIFIED)).distinct(), [PATH, MODIFIED], "left_anti")


def held_anyway(window: Window, table: SourceTable) -> Column | None:
    """Returns which files of a window raw holds, if their rows would not be recognised there.

    The files at the cursor are read again. Rows without a key are recognised by all of their
    values, and these are others once a file has changed a column's type for all files.
    """
    if not window.whole or window.held is None or window.low is None:
        return None
    raw = window.held(table.schema.names).schema
    types = zip(raw.fields, table.schema.fields, strict=True)
    if all(
        isinstance(had.dataType, NullType)
        or had.dataType.simpleString() == c.dataType.simpleString()
        for had, c in types
    ):
        return None
    name = f.concat_ws(" ", f.col(MODIFIED).cast("string"), PATH)
    held = window.held((PATH, MODIFIED)).where(f.col(MODIFIED) >= _literal(window.low))
    return name.isin([row[0] for row in held.select(name).distinct().collect()])


def remembered(files: DataFrame, window: Window, before: Cursor) -> dict[str, Any]:
    """Returns the mark of a sync that has read or skipped all files below a time."""
    last = Older.from_mark(window.mark)
    begin = last.begin if last else window.low
    if window.low is None or (last is None and window.low == window.initial):
        begin = None
    return Older.of(files, before, begin).to_mark()


def _literal(cursor: Cursor) -> Column:
    return literal(cursor, TimestampType())

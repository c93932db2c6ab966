"""Refuses lines that are longer than a source's `line_limit`.

A packed file of 2 MB may hold one line of gigabytes, and Spark would end for lack of memory. Its
reader of lines leaves out those that are too long, without a word. It does so here, to need no
memory for them, because the files that may have such lines are looked at first.
"""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.sources.file.listing import PATH, SIZE, files
from loader.sources.file.options import ReaderOptions
from loader.spark.error_translation import TOO_LONG, too_long

_LINE_READER = "mapreduce.input.linerecordreader.line.maxlength"
_SLACK = 16
"""What the reader of lines counts besides a line itself: its end, and a byte order mark."""

_PACKED = 16
"""A packed file is taken to be no more than 2 to this power times as large when it is unpacked."""

# Each line is one value of one column: no byte is one of these characters.
_AS_LINES = {
    "multiLine": "true",
    "encoding": "ISO-8859-1",
    "header": "false",
    "sep": "\u0100",
    "quote": "\u0101",
    "escape": "\u0102",
    "comment": "\u0103",
    "mode": "FAILFAST",
    "recursiveFileLookup": "true",
    "__globPaths__": "false",
}


def limiting_options(form: str, multiline: bool, limit: int) -> dict[str, str]:
    """Returns the reader options with which longer lines and values need no memory."""
    if form not in ("csv", "json", "text"):
        return {}
    values = {"maxCharsPerColumn": str(limit)} if form == "csv" and multiline else {}
    return {_LINE_READER: str(limit + _SLACK), **values}


def check_line_lengths(
    spark: SparkSession, native: ReaderOptions, chosen: Column | None, where: str
) -> None:
    """Refuses files with a line that is too long, which Spark would leave out.

    Args:
        chosen: a condition on MODIFIED and PATH that chooses the files; None means all.

    Raises:
        TableError: names the file and the line.
    """
    if native.option(_LINE_READER) is None or native.multiline:
        return
    found = files(spark, native)
    size, limit = f.col(SIZE), native.line_limit
    packed = f.col(PATH).rlike(_endings(spark)) & (size > limit >> _PACKED)
    found = found.where((size > limit) | packed)
    paths = [row[PATH] for row in (found if chosen is None else found.where(chosen)).collect()]
    error = _read(spark, native, paths)
    if error is None:
        return
    for path in paths:  # Spark does not say which file it is
        error = _read(spark, native, [path])
        if error is not None:
            _, line = error
            raise TableError(
                f"line {line:,} of {path} has more than {limit:,} bytes",
                where=where,
                remedy=TOO_LONG,
            )


def _read(spark: SparkSession, native: ReaderOptions, paths: list[str]) -> tuple[int, int] | None:
    """Reads files line by line; returns the limit and the number of a line that is too long."""
    if not paths:
        return None
    jvm: Any = spark._jvm
    options = {**_AS_LINES, "maxCharsPerColumn": str(native.line_limit)}
    separator = native.option("linesep")
    if separator is not None:
        options["lineSep"] = separator
    named = [
        str(jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path)).toString()) for path in paths
    ]
    lines = spark.read.format("csv").options(**options).schema("value string").load(named)
    try:
        lines.where(f.length("value") < 0).count()
    except Py4JJavaError as error:
        found = too_long(str(error))
        if found is None:
            raise
        return found
    return None


def _endings(spark: SparkSession) -> str:
    """Returns the pattern of the names of files that Hadoop unpacks."""
    session: Any = spark
    jvm, hadoop = session._jvm, session.sparkContext._jsc.hadoopConfiguration()
    new = jvm.org.apache.hadoop.util.ReflectionUtils.newInstance
    kinds = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory.getCodecClasses(hadoop)
    endings = [str(new(kind, hadoop).getDefaultExtension()) for kind in kinds]
    return f"({'|'.join(re.escape(ending) for ending in endings)})$"

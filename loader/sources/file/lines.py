"""Refuses lines of text that Spark would read otherwise than they are meant, without a word.

Spark replaces bytes that are no characters of the encoding, splits a quoted value at the end of a
line, and reads no more than the first JSON value of a line. The lines are checked in the job
that reads the rows; those longer than the source's `line_limit` before it, as Spark's reader
leaves them out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.sources.file import listing as list_of
from loader.sources.file.csv import has_escaped_quote, open_quote
from loader.sources.file.file_checks import is_archive
from loader.sources.file.json_key_case import find_miscased_key, is_plain
from loader.sources.file.listing import MODIFIED, PATH, RECURSIVE, SIZE, files
from loader.sources.file.options import ReaderOptions
from loader.spark.error_translation import TOO_LONG, find_long_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from loader.sources.file.options import ReaderOptions

FORMATS = frozenset({"csv", "json", "text"})
_SHOWN = 60
_WHOLE = 256 * 1024 * 1024
"""Larger files of one JSON value are not looked at: they would have to be held in memory."""

# Texts one after the other, so that none begins at a quote within another. The group is a key.
_EMPTY_KEY = r"""(?s)"(?:[^"\\]++|\\.)++"|'(?:[^'\\]++|\\.)++'|((?:""|'')\s*+:)"""

_WIDE = re.compile(r"utf-?(?:16|32)", re.IGNORECASE)
_NO_CHARACTER = "\ufffd"
_NOT_OF_LINES = frozenset(
    {"mode", "columnnameofcorruptrecord", "multiline", "encoding", "charset", "linesep"}
    | {"samplingratio", "recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter"}
)


def checked(
    rows: DataFrame, spark: SparkSession, native: ReaderOptions, chosen: Column | None
) -> DataFrame:
    """Returns the rows, whose read fails if a line of the chosen files would be misread.

    Args:
        rows: the rows of the chosen files.
        chosen: a condition on MODIFIED and PATH that chooses the files; None means all.
    """
    form = native.format.lower()
    if form not in FORMATS:
        return rows
    found = _refusals(native, form, rows.schema)
    if found is None:
        return rows
    read = lines(spark, native, chosen)
    # The condition is never true: it fails, or the line is all right.
    refused = read.where(found.isNotNull())
    return rows.union(refused.select(*_nothing(rows.schema)))


def lines(spark: SparkSession, native: ReaderOptions, chosen: Column | None) -> DataFrame:
    """Returns the lines of the chosen files: `value`, MODIFIED and PATH.

    If a JSON value may go over several lines, each file is one `value`.
    """
    options = {name.lower(): value for name, value in native.options}
    options.setdefault(RECURSIVE.lower(), "true")  # the same files; their folders make no columns
    whole = native.format.lower() == "json" and native.multiline
    if whole:
        options["wholetext"] = "true"
    read = spark.read.format("text").options(**options).load(native.pattern)
    read = read.withColumns(
        {MODIFIED: f.col("_metadata.file_modification_time"), PATH: list_of.path()}
    )
    if whole:
        read = read.where(f.col("_metadata.file_size") <= _WHOLE)
    read = read if chosen is None else read.where(chosen)
    return read.select("value", MODIFIED, PATH)


def _nothing(schema: StructType) -> list[Column]:
    # One for each type, and no names, which a union takes from the rows: each is a few calls.
    types = {field.dataType for field in schema.fields}
    nothing = {data_type: f.lit(None).cast(data_type) for data_type in types}
    return [nothing[field.dataType] for field in schema.fields]


def _refusals(native: ReaderOptions, form: str, schema: StructType) -> Column | None:
    """Returns an expression that fails if a line is refused; None if no line can be judged.

    It is null otherwise. What takes long is within a `when`: Spark evaluates what is there twice
    for all lines, also to the right of an `&` that is false.
    """
    encoding = "UTF-8" if form == "text" else native.encoding
    if _WIDE.match(encoding) and native.option("linesep") is None:
        return None  # the bytes do not show where a line ends
    utf8 = encoding.upper() in ("UTF-8", "UTF8")
    raw, text = f.col("value"), f.decode(f.col("value").cast("binary"), encoding)
    known = text == raw if utf8 else ~text.contains(_NO_CHARACTER)
    reason = f.concat(PATH, f.lit(" is an archive, which Spark cannot read"))
    archive = f.when(is_archive(raw), f.raise_error(reason))
    reason = f.concat(PATH, f.lit(f" holds bytes that are not {encoding}"))
    found = archive.when(~known, f.raise_error(reason))
    text = raw if utf8 else text
    if form == "csv":
        opened = open_quote(native, text)
        if opened is not None:
            reason = f.concat(f.lit("a quote is still open where a line ends, in "), PATH)
            found = found.when(opened, _refuse(reason, text))
        escaped = has_escaped_quote(native, text)
        if escaped is not None:
            reason = f.concat(
                f.lit("a quote stands behind a backslash within a quoted value, in "), PATH
            )
            found = found.when(escaped, _refuse(reason, text))
    if form == "json":
        if native.multiline:  # Spark's parser itself refuses such bytes
            found = archive
        reason = f.concat(f.lit("something stands behind a JSON value, in "), PATH)
        found = found.when(_goes_on(native, text), _refuse(reason, text))
        if native.columns is None:
            reason = f.concat(f.lit("a JSON key is an empty text, in "), PATH)
            found = found.when(_has_empty_key(text), _refuse(reason, text))
        other = find_miscased_key(text, schema, _options(native))
        reason = f.concat(f.lit("a key differs from a column only in case, "), other)
        reason = f.concat(reason, f.lit(", in "), PATH)
        # Null if there is no such key.
        refused = f.when(other.isNotNull(), _refuse(reason, text))
        found = f.when(~is_plain(text, schema, _options(native)), found.otherwise(refused))
    return found


def _has_empty_key(text: Column) -> Column:
    """Returns whether an object has a key without a character, which Spark leaves out."""
    keys = f.regexp_extract_all(text, f.lit(_EMPTY_KEY), f.lit(1))
    found = f.exists(keys, lambda key: key != "")
    return f.when(text.rlike("(?:\"\"|'')\\s*+:"), found)


def _refuse(reason: Column, text: Column) -> Column:
    """Returns an expression that fails, for a reason, and shows the begin of a line."""
    return f.raise_error(f.concat(reason, f.lit(": "), f.substring(text, 1, _SHOWN)))


def _options(native: ReaderOptions) -> dict[str, str]:
    """Returns the reader's options that are about one value."""
    return {k.lower(): v for k, v in native.options if k.lower() not in _NOT_OF_LINES}


def _goes_on(native: ReaderOptions, text: Column) -> Column:
    """Returns whether something stands behind the first value of a line that has a valid one.

    In brackets, such a line is no array of one value. A comma alone may stand there. Spark's
    functions for plain JSON are quick; only if they object, the table's own options count.
    """
    options = {**_options(native), "columnNameOfCorruptRecord": "_cq_bad"}
    ends = f.substring(text, -1, 1).isin(",", " ", "\t", "\r", "\n")
    bare = f.when(ends, f.regexp_replace(text, r"[,\s]+$", "")).otherwise(text)
    listed = f.concat(f.lit("["), bare, f.lit("\n]"))
    named = f.concat(f.lit('{"_":'), bare, f.lit("\n}"))
    several = (f.coalesce(f.json_array_length(listed), f.lit(0)) != 1) & (
        f.coalesce(f.size(f.from_json(listed, "array<string>", options)), f.lit(0)) != 1
    )
    # Brackets of its own could close those around it, but not both kinds.
    closed = (
        bare.rlike(r"[\]}]\s*+\]")
        & (f.coalesce(f.size(f.json_object_keys(named)), f.lit(0)) != 1)
        & (f.coalesce(f.size(f.from_json(named, "map<string,string>", options)), f.lit(0)) != 1)
    )
    value = f.from_json(text, "_cq_bad string", options).getField("_cq_bad").isNull()
    values = f.from_json(text, "array<string>", options).isNotNull()
    # Most lines are one object without another in it: nothing can stand behind it.
    flat = bare.startswith("{") & (f.instr(bare, "}") == f.length(bare))
    return f.when((bare != "") & ~flat, f.when(several | closed, value | values))


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
        found = find_long_line(str(error))
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

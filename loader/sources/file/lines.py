"""Rejects lines of text that Spark would silently misread.

Spark replaces undecodable bytes, splits a quoted value at the end of a line, and reads only the
first JSON value in a line. The job that reads the rows also checks the lines for such errors. A
separate job, which runs first, detects lines that are longer than the source's `line_limit`,
because Spark's reader would omit them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.rows.mask_values import REDACTED
from loader.sources.file import listing as list_of
from loader.sources.file.csv import has_escaped_quote, has_open_quote
from loader.sources.file.file_checks import is_archive
from loader.sources.file.json_key_case import find_miscased_key, is_plain
from loader.sources.file.listing import MODIFIED, PATH, RECURSIVE, SIZE, files
from loader.sources.file.options import ReaderOptions
from loader.spark.error_translation import TOO_LONG, find_long_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = frozenset({"csv", "json", "text"})
_SHOWN = 60
_WHOLE = 256 * 1024 * 1024
"""The maximum size of a multi-line JSON file that is checked. The file must fit in memory."""

# The group captures an empty key. Non-empty strings must match, too, so that no match starts at an
# escaped quote.
_EMPTY_KEY = r"""(?s)"(?:[^"\\]++|\\.)++"|'(?:[^'\\]++|\\.)++'|((?:""|'')\s*+:)"""

WIDE_ENCODING = re.compile(r"utf-?(?:16|32)", re.IGNORECASE)
"""Encodings in which a line break is more than one byte long."""
_NO_CHARACTER = "\ufffd"
_NOT_OF_LINES = frozenset(
    {"mode", "columnnameofcorruptrecord", "multiline", "encoding", "charset", "linesep"}
    | {"samplingratio", "recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter"}
)


def add_line_checks(
    rows: DataFrame, spark: SparkSession, native: ReaderOptions, chosen: Column | None
) -> DataFrame:
    """Returns the rows, but reading them fails if Spark would misread a line.

    Args:
        chosen: a condition on the columns MODIFIED and PATH; None selects all files.
    """
    form = native.format.lower()
    if form not in FORMATS:
        return rows
    refusal = _refusals(native, form, rows.schema)
    if refusal is None:
        return rows
    read = read_lines(spark, native, chosen)
    # The condition is never true: it raises an error for a rejected line.
    refused = read.where(refusal.isNotNull())
    return rows.union(refused.select(*_nothing(rows.schema)))


def read_lines(spark: SparkSession, native: ReaderOptions, chosen: Column | None) -> DataFrame:
    """Returns the columns `value`, MODIFIED and PATH for each line of the selected files.

    If JSON values may span several lines, each `value` contains a whole file.
    """
    options = {name.lower(): value for name, value in native.options}
    # This prevents partition columns, and does not change the list of files.
    options.setdefault(RECURSIVE.lower(), "true")
    reads_whole_files = native.format.lower() == "json" and native.multiline
    if reads_whole_files:
        options["wholetext"] = "true"
    read = spark.read.format("text").options(**options).load(native.pattern)
    read = read.withColumns(
        {MODIFIED: f.col("_metadata.file_modification_time"), PATH: list_of.path()}
    )
    if reads_whole_files:
        read = read.where(f.col("_metadata.file_size") <= _WHOLE)
    read = read if chosen is None else read.where(chosen)
    return read.select("value", MODIFIED, PATH)


def _nothing(schema: StructType) -> list[Column]:
    # Columns of the same type share an expression, because building one takes several Py4J calls.
    types = {field.dataType for field in schema.fields}
    nothing = {data_type: f.lit(None).cast(data_type) for data_type in types}
    return [nothing[field.dataType] for field in schema.fields]


def _refusals(native: ReaderOptions, form: str, schema: StructType) -> Column | None:
    """Returns an expression that fails for rejected lines and is null for all others.

    Returns None if no check is possible.
    Expensive parts are nested in `when`, because Spark evaluates repeated expressions for all
    lines, even if the left operand of `&` is false.
    """
    encoding = "UTF-8" if form == "text" else native.encoding
    if WIDE_ENCODING.match(encoding) and native.option("linesep") is None:
        return None  # in this encoding, a line break has several bytes
    utf8 = encoding.upper() in ("UTF-8", "UTF8")
    raw, text = f.col("value"), f.decode(f.col("value").cast("binary"), encoding)
    is_decodable = text == raw if utf8 else ~text.contains(_NO_CHARACTER)
    reason = f.concat(PATH, f.lit(" is an archive, which Spark cannot read"))
    archive = f.when(is_archive(raw), f.raise_error(reason))
    reason = f.concat(PATH, f.lit(f" contains bytes that are not {encoding}"))
    refusal = archive.when(~is_decodable, f.raise_error(reason))
    text = raw if utf8 else text
    shown = f.lit(REDACTED) if native.masks else text
    if form == "csv":
        opened = has_open_quote(native, text)
        if opened is not None:
            reason = f.concat(f.lit("a quote is still open where a line ends, in "), PATH)
            refusal = refusal.when(opened, _refuse(reason, shown))
        escaped = has_escaped_quote(native, text)
        if escaped is not None:
            reason = f.concat(f.lit("a quote follows a backslash within a quoted value, in "), PATH)
            refusal = refusal.when(escaped, _refuse(reason, shown))
    if form == "json":
        if native.multiline:  # Spark's parser rejects undecodable bytes
            refusal = archive
        reason = f.concat(f.lit("text follows a JSON value, in "), PATH)
        refusal = refusal.when(_goes_on(native, text), _refuse(reason, shown))
        if native.columns is None:
            reason = f.concat(f.lit("a JSON key is an empty string, in "), PATH)
            refusal = refusal.when(_has_empty_key(text), _refuse(reason, shown))
        other = find_miscased_key(text, schema, _options(native))
        reason = f.concat(f.lit("a key differs from a column only in case, "), other)
        reason = f.concat(reason, f.lit(", in "), PATH)
        refused = f.when(other.isNotNull(), _refuse(reason, shown))
        refusal = f.when(~is_plain(text, schema, _options(native)), refusal.otherwise(refused))
    return refusal


def _has_empty_key(text: Column) -> Column:
    """Returns whether an object has an empty key. Spark would ignore the key's value."""
    keys = f.regexp_extract_all(text, f.lit(_EMPTY_KEY), f.lit(1))
    has_match = f.exists(keys, lambda key: key != "")
    return f.when(text.rlike("(?:\"\"|'')\\s*+:"), has_match)


def _refuse(reason: Column, text: Column) -> Column:
    """Returns an expression that raises an error with a reason and the start of the line."""
    return f.raise_error(f.concat(reason, f.lit(": "), f.substring(text, 1, _SHOWN)))


def _options(native: ReaderOptions) -> dict[str, str]:
    return {k.lower(): v for k, v in native.options if k.lower() not in _NOT_OF_LINES}


def _goes_on(native: ReaderOptions, text: Column) -> Column:
    """Returns whether text other than a comma follows a valid JSON value in a line.

    When enclosed in brackets, such a line is not an array of one value. The fast functions for
    standard JSON are tried before the parser that applies the table's options.
    """
    options = {**_options(native), "columnNameOfCorruptRecord": "_cq_bad"}
    ends = f.substring(text, -1, 1).isin(",", " ", "\t", "\r", "\n")
    bare = f.when(ends, f.regexp_replace(text, r"[,\s]+$", "")).otherwise(text)
    listed = f.concat(f.lit("["), bare, f.lit("\n]"))
    named = f.concat(f.lit('{"_":'), bare, f.lit("\n}"))
    several = (f.coalesce(f.json_array_length(listed), f.lit(0)) != 1) & (
        f.coalesce(f.size(f.from_json(listed, "array<string>", options)), f.lit(0)) != 1
    )
    # A bracket in the line may close the added bracket, but it cannot close the added brace.
    closed = (
        bare.rlike(r"[\]}]\s*+\]")
        & (f.coalesce(f.size(f.json_object_keys(named)), f.lit(0)) != 1)
        & (f.coalesce(f.size(f.from_json(named, "map<string,string>", options)), f.lit(0)) != 1)
    )
    value = f.from_json(text, "_cq_bad string", options).getField("_cq_bad").isNull()
    values = f.from_json(text, "array<string>", options).isNotNull()
    # Most lines are one object without nested objects. Such an object ends at the first brace.
    flat = bare.startswith("{") & (f.instr(bare, "}") == f.length(bare))
    return f.when((bare != "") & ~flat, f.when(several | closed, value | values))


_LINE_READER = "mapreduce.input.linerecordreader.line.maxlength"
_SLACK = 16
"""An allowance for the line break and the byte order mark, which the line reader counts."""

_PACKED = 16
"""Decompression is assumed to enlarge a file by a factor of at most 2**16."""

# These options make Spark read each line as one value, because no byte decodes to the separator or
# to a quote.
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
    """Returns reader options that limit the length of lines and values, to save memory."""
    if form not in ("csv", "json", "text"):
        return {}
    values = {"maxCharsPerColumn": str(limit)} if form == "csv" and multiline else {}
    return {_LINE_READER: str(limit + _SLACK), **values}


def check_line_lengths(
    spark: SparkSession, native: ReaderOptions, chosen: Column | None, where: str
) -> None:
    """Raises a TableError if a line is so long that Spark would omit it.

    Args:
        chosen: a condition on the columns MODIFIED and PATH; None selects all files.
    """
    if native.option(_LINE_READER) is None or native.multiline:
        return
    candidates = files(spark, native)
    size, limit = f.col(SIZE), native.line_limit
    packed = f.col(PATH).rlike(_endings(spark)) & (size > limit >> _PACKED)
    candidates = candidates.where((size > limit) | packed)
    paths = [
        row[PATH] for row in (candidates if chosen is None else candidates.where(chosen)).collect()
    ]
    error = _read(spark, native, paths)
    if error is None:
        return
    for path in paths:  # Spark's error does not contain the path
        error = _read(spark, native, [path])
        if error is not None:
            _, line = error
            raise TableError(
                f"line {line:,} of {path} has more than {limit:,} bytes",
                where=where,
                remedy=TOO_LONG,
            )


def _read(spark: SparkSession, native: ReaderOptions, paths: list[str]) -> tuple[int, int] | None:
    """Returns the limit and the number of the first line that exceeds it; None if no line does."""
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
        long_line = find_long_line(str(error))
        if long_line is None:
            raise
        return long_line
    return None


def _endings(spark: SparkSession) -> str:
    """Returns a regular expression that matches the names of files that Hadoop decompresses."""
    session: Any = spark
    jvm, hadoop = session._jvm, session.sparkContext._jsc.hadoopConfiguration()
    new = jvm.org.apache.hadoop.util.ReflectionUtils.newInstance
    kinds = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory.getCodecClasses(hadoop)
    endings = [str(new(kind, hadoop).getDefaultExtension()) for kind in kinds]
    return f"({'|'.join(re.escape(ending) for ending in endings)})$"

"""Reads the headers of CSV files, and detects lines whose quotes Spark may misinterpret.

Spark takes the column names from the header of one file and reads all other files by position, so
it would mix up the columns of files whose headers differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from loader.errors import TableError
from loader.names import literal_path
from loader.sources.file.file_checks import check_unpacked
from loader.spark.error_translation import UNKNOWN_BYTES

if TYPE_CHECKING:
    from loader.sources.file.options import ReaderOptions

_READERS = 16
_LINES = 1000
"""The maximum number of lines in a header. A longer header has an unclosed quote."""

_LONGEST = 16 << 20
"""The maximum number of bytes to read in search of a file's header."""

_NO_CHARACTERS = ("MalformedInputException", "UnmappableCharacterException")


@dataclass(frozen=True)
class Group:
    """Files that have the same header.

    Attributes:
        columns: the names that Spark reads from the header.
        paths: the paths of the files in reading order, in the format of
            :data:`loader.sources.file.listing.PATH`.
        literal: whether the header's text contains these names verbatim.
    """

    columns: tuple[str, ...]
    paths: tuple[str, ...]
    literal: bool = False

    def guard_options(self, native: ReaderOptions) -> ReaderOptions:
        """Returns reader options that make Spark fail on a file with a different header.

        A file may have been rewritten after its header was read. A header with an empty or
        duplicate name is not checked, because Spark renames such columns.
        """
        if not self.literal:
            return native
        return replace(native, options=(*native.options, ("enforceSchema", "false")))


def is_matched_by_name(native: ReaderOptions) -> bool:
    """Returns whether CSV columns are matched by header. The option enforceSchema prevents this."""
    options = {name.lower(): value.lower() for name, value in native.options}
    header = options.get("header") == "true"
    return native.format.lower() == "csv" and header and "enforceschema" not in options


def group_by_header(
    spark: SparkSession, native: ReaderOptions, paths: Iterable[str]
) -> list[Group]:
    """Groups files by their headers. Omits files that have no lines.

    Raises:
        TableError: if a file's compression does not match its extension, its encoding is not the
            declared one, or its header does not end.
        Py4JJavaError: if a file cannot be read.
    """
    paths = tuple(paths)
    read = _Reader(spark, native)
    with ThreadPoolExecutor(_READERS) as pool:
        headers = list(pool.map(read.header, paths))
    by_header: dict[Any, list[str]] = {}
    for path, header in zip(paths, headers, strict=True):
        if header is not None:
            by_header.setdefault(header, []).append(path)
    groups: dict[tuple[str, ...], Group] = {}
    for header, of_header in by_header.items():
        columns = read.columns(header)
        literal = isinstance(header, str) and all(name in header for name in columns)
        existing = groups.get(columns, Group(columns, (), True))
        groups[columns] = Group(
            columns, (*existing.paths, *of_header), existing.literal and literal
        )
    return list(groups.values())


def merge_columns(groups: Sequence[Group]) -> list[str]:
    """Returns the columns of all groups in order of first appearance, ignoring case."""
    names: dict[str, str] = {}
    for group in groups:
        for name in group.columns:
            names.setdefault(name.lower(), name)
    return list(names.values())


class _Reader:
    """Reads the headers of files through Hadoop and parses them with Spark."""

    def __init__(self, spark: SparkSession, native: ReaderOptions) -> None:
        session: Any = spark
        self.jvm = session._jvm
        self.spark = session
        self.options = {name.lower(): value for name, value in native.options}
        self.hadoop = session.sparkContext._jsc.hadoopConfiguration()
        self.codecs = self.jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(self.hadoop)
        # If the spec sets the line separator, only Spark can find the end of the header.
        self.whole = "linesep" in self.options
        opened = open_quote_pattern(native) if native.multiline else None
        self.opened = self.jvm.java.util.regex.Pattern.compile(opened) if opened else None
        self.native = native

    def header(self, path: str) -> str | tuple[str, ...] | None:
        """Returns a file's header, as a string or as column names; None if it has none."""
        file = self.jvm.org.apache.hadoop.fs.Path(self.jvm.java.net.URI(path))
        if self.whole:
            options = {
                name: value
                for name, value in self.native.options
                if name.lower() not in ("inferschema", "basepath", "pathglobfilter")
            }
            reader = self.spark.read.format("csv").options(**options)
            return tuple(reader.load(literal_path(str(file.toString()))).schema.names) or None
        plain = file.getFileSystem(self.hadoop).open(file)
        try:
            codec = self.codecs.getCodec(file)
            if codec is not None:
                plain = codec.createInputStream(plain)
            plain = self.jvm.java.io.BufferedInputStream(plain)
            check_unpacked(path, plain)
            return self._first(path, plain)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() not in _NO_CHARACTERS:
                raise
            raise TableError(
                f"{path} contains bytes that are not {self.native.encoding}", remedy=UNKNOWN_BYTES
            ) from error
        finally:
            plain.close()

    def _first(self, path: str, stream: Any) -> str | tuple[str, ...] | None:
        decoder = self.jvm.java.nio.charset.Charset.forName(self.native.encoding).newDecoder()
        begin = self.jvm.org.apache.commons.io.input.BoundedInputStream(stream, _LONGEST)
        text = self.jvm.java.io.InputStreamReader(begin, decoder)
        lines = self.jvm.java.io.BufferedReader(text)
        comment = self.options.get("comment", "")
        line = lines.readLine()
        line = None if line is None else line.removeprefix("\ufeff")
        while line is not None and self._is_skipped(line, comment):
            line = lines.readLine()
        if (line is None or len(line) > _LONGEST // 8) and stream.read() >= 0:
            raise TableError(
                f"the header of {path} does not end within {_LONGEST:,} bytes",
                remedy="Correct the file: the line break after its header may be missing",
            )
        if line is None or self.opened is None or not self._open(line):
            return None if line is None else str(line)
        for _ in range(_LINES):
            more = lines.readLine()
            if more is None:
                break
            line += f"\n{more}"
            if not self._open(line):
                break
        return self.columns(line)  # the same names may be quoted differently

    def _open(self, text: str) -> bool:
        return self.opened is not None and bool(self.opened.matcher(text).find())

    def columns(self, header: str | tuple[str, ...]) -> tuple[str, ...]:
        if isinstance(header, tuple):
            return header
        lines = self.spark._jsparkSession.createDataset(
            [header], self.jvm.org.apache.spark.sql.Encoders.STRING()
        )
        options = {k: v for k, v in self.native.options if k.lower() != "inferschema"}
        reader: Any = self.spark.read.options(**options)
        return tuple(reader._jreader.csv(lines).schema().fieldNames())

    @staticmethod
    def _is_skipped(line: str, comment: str) -> bool:
        return not line.strip() or (comment != "" and line.startswith(comment))


def has_open_quote(native: ReaderOptions, text: Column) -> Column | None:
    """Returns whether a line ends within a quoted value.

    Returns None if `multiLine` is set, even to false, because the option then determines whether a
    quoted value may contain a line break.
    """
    pattern = open_quote_pattern(native)
    if native.option("multiline") is not None or pattern is None:
        return None
    quote, comment = _quote(native), native.option("comment")
    opened = text.contains(quote) & text.rlike(pattern)
    if _escape(native) == quote:
        # A line with an open quote has an odd number of quotes, which is cheaper to check.
        odd = (f.length(text) - f.length(f.replace(text, f.lit(quote)))) % 2 == 1
        opened = odd & text.rlike(pattern)
    return opened & ~text.startswith(comment) if comment else opened


def has_escaped_quote(native: ReaderOptions, text: Column) -> Column | None:
    r"""Returns whether a line has `\"` within a quoted value; None if the spec sets `escape`.

    Spark and MySQL write `\"` by default.
    """
    pattern, quote, comment = open_quote_pattern(native), _quote(native), native.option("comment")
    if "escape" in native.given or native.multiline or pattern is None:
        return None
    q, s = re.escape(quote), re.escape(_separator(native))
    # The pattern matches the preceding values, and then a value that would end after the backslash.
    begin = pattern.removesuffix(r"\z").replace(f"{s})*+", f"{s})*?", 1)
    escaped = text.contains(f"\\{quote}") & text.rlike(rf"{begin}(?<=\\){q}(?!{s}|\z)")
    return escaped & ~text.startswith(comment) if comment else escaped


def open_quote_pattern(native: ReaderOptions) -> str | None:
    """Returns a Java pattern for text that ends within a quoted value.

    Returns None if the reader uses no quote character. A quote inside an unquoted value is literal,
    as in Spark's parser. All quantifiers are possessive, because backtracking would take too long
    and overflow the stack on long lines.
    """
    quote, escape, separator = _quote(native), _escape(native), _separator(native)
    if not quote:
        return None
    q, e, s = (re.escape(part) for part in (quote, escape, separator))
    blank = r"[ \t]*+" if native.option("ignoreleadingwhitespace") == "true" else ""
    if not escape or escape == quote:
        inside = f"[^{q}]*+(?:{q}{q}[^{q}]*+)*+"
    else:
        inside = rf"[^{q}{e}]*+(?:{e}[\s\S][^{q}{e}]*+)*+"
    rest = f"[^{s}]*+" if len(separator) == 1 else rf"(?:(?!{s})[\s\S])*+"
    value = f"(?:{blank}{q}{inside}{q}{rest}|(?!{blank}{q}){rest})"
    return rf"\A(?:{value}{s})*+{blank}{q}{inside}\z"


def _quote(native: ReaderOptions) -> str:
    given = native.option("quote")
    return '"' if given is None else given.strip("\0")


def _escape(native: ReaderOptions) -> str:
    given = native.option("escape")
    return '"' if given is None else given


def _separator(native: ReaderOptions) -> str:
    given = native.option("sep", "delimiter") or ","
    return {"\\t": "\t", "\\\\": "\\"}.get(given, given)

"""Converts Spark's read errors to errors with a reason and a remedy."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_string

from loader.errors import LoaderError, TableError
from loader.sources.file.file_checks import check_unpacked
from loader.sources.file.lines import FORMATS, add_line_checks, check_line_lengths
from loader.sources.file.listing import PATH, files
from loader.sources.file.options import ReaderOptions
from loader.spark.error_translation import BROKEN_LINE, TOO_LONG, TOO_MANY, translate_error

_COLON = re.compile(r"Relative path in absolute URI: (\S.*?)(?:\.crc)?$")
_PATTERN = re.compile(r"^(?:Input Pattern .* matches 0 files|error parsing regexp)")
_UNLIKE = re.compile(r'CANNOT_MERGE_SCHEMAS.*?"(STRUCT<[^"\n]*>)".*?"(STRUCT<[^"\n]*>)"', re.DOTALL)
_TWICE = re.compile(r"COLUMN_ALREADY_EXISTS\W.*?`([^`\n]+)`", re.DOTALL)
_LOOKED_AT = 100
"""The maximum number of files to check when a table cannot be read."""


def explain_read_error(
    spark: SparkSession, native: ReaderOptions, error: PySparkException | Py4JJavaError, where: str
) -> TableError:
    translated = translate_error(error, "")
    colon = _COLON.search(translated.what)
    if colon is not None:
        name = colon[1].removeprefix(".")
        return TableError(
            f"the file {name!r} of {native.path} has a colon in its name, and Spark cannot read it",
            where=where,
            remedy="Rename it, for example to 2025-01-01T10.00.csv, and write new names so",
        )
    if _PATTERN.search(translated.what):
        return TableError(
            f"Spark interprets the name of a file as a pattern ({translated.what})",
            where=where,
            remedy="Rename files with one of {}[] in their names, or declare the "
            "table's `column_types`",
        )
    if native.format.lower() in FORMATS:
        with suppress(PySparkException, Py4JJavaError):
            reason = _find_reason(spark, native)
            if reason is not None:
                return TableError(reason.what, where=where, remedy=reason.remedy)
    unlike = find_differing_types(error)
    if unlike is not None:
        return TableError(
            f"its files have different types for {unlike}",
            where=where,
            remedy="Declare the table's `column_types` with types for the values of all files, or "
            "write the columns with one type",
        )
    twice = _TWICE.search(str(error))
    if twice is not None:
        return TableError(
            f"the column {twice[1]!r} exists twice: a key is repeated, or differs only in case "
            "from another one, and names in the lake ignore case",
            where=f"{where} ({native.path})",
            remedy="Rename one of them in the files, and in the program that writes them",
        )
    what = translated.what
    remedy = (
        "Check the path, format and options of the table's reader; set `column_types` if "
        "Spark cannot infer them"
    )
    if translated.remedy in (BROKEN_LINE, TOO_LONG, TOO_MANY):
        remedy = translated.remedy
    if what.endswith(".DefaultSource"):  # the class that Spark could not find
        what = f"Spark has no reader for the format {native.format!r}"
    return TableError(what, where=f"{where} ({native.path})", remedy=remedy)


def find_differing_types(error: BaseException) -> str | None:
    """Lists the columns whose types differ between files. Returns None for other errors."""
    unlike = _UNLIKE.search(str(error))
    if unlike is None:
        return None
    left, right = unlike.groups()
    first, second = (
        {c.name: c.dataType for c in schema.fields}
        for schema in map(_parse_datatype_string, (left, right))
        if isinstance(schema, StructType)
    )
    return ", ".join(
        f"{name} ({first[name].simpleString()}, {second[name].simpleString()})"
        for name in first
        if name in second and first[name] != second[name]
    )


def _find_reason(spark: SparkSession, native: ReaderOptions) -> LoaderError | None:
    """Checks the files for known problems, because Spark's error does not name the path."""
    try:
        _check_packing(spark, native)
        check_line_lengths(spark, native, None, "")
        if native.format.lower() == "json":
            add_line_checks(spark.createDataFrame([], "nothing int"), spark, native, None).collect()
    except TableError as packed:
        return packed
    except (PySparkException, Py4JJavaError) as error:
        translated = translate_error(error, "")
        return translated if translated.remedy not in ("", BROKEN_LINE) else None
    return None


def _check_packing(spark: SparkSession, native: ReaderOptions) -> None:
    session: Any = spark
    jvm, hadoop = session._jvm, session.sparkContext._jsc.hadoopConfiguration()
    codecs = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(hadoop)
    for [path] in islice(files(spark, native).select(PATH).toLocalIterator(), _LOOKED_AT):
        file = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path))
        if codecs.getCodec(file) is not None:
            continue
        stream = jvm.java.io.BufferedInputStream(file.getFileSystem(hadoop).open(file))
        try:
            check_unpacked(path, stream)
        finally:
            stream.close()

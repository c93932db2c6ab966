"""Turns an exception of Spark, a driver or the system into one clear error."""

from __future__ import annotations

import re

from filelock import Timeout
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from loader.corruption import detect_damage
from loader.errors import JavaEndedError, LoaderError, LockedError, TableError
from loader.spark.database_errors import explain
from loader.spark.interruption import interruption_error
from loader.spark.jvm_exit import explain_java_end
from loader.spec.redaction import excerpt

BROKEN_LINE = (
    "A line does not have the table's columns: its file is half written (run again), of another "
    "table, or broken. With the reader option mode: PERMISSIVE, missing values become null"
)

UNKNOWN_BYTES = (
    "Name the encoding that the file has in the reader's option encoding (windows-1252, UTF-16), "
    "or write it as UTF-8; with ISO-8859-1, every byte is a character"
)

_STOPPED = (
    "Nothing of this batch is visible; run again. If nobody stopped it, its memory was too small: "
    "give it more (spark.driver.memory in the profile's target), or fewer wide rows at a time "
    "(fetch_size)"
)

# Spark's CSV parser; it counts the lines before.
_TOO_LONG = re.compile(
    r"exceeds the maximum number of characters defined in your parser settings \((\d+)\)"
    r"(?s:.*?)Internal state when error was thrown: line=(\d+)"
)
_TOO_MANY = re.compile(r"univocity(?s:.*?)Index (\d+) out of bounds for length \1\b")
_FILE = re.compile(r"error while reading file (\S+)\. Details")
_ENDING = "Spark was stopped while it worked on the table"
_NO_MEMORY = ("outofmemory", "java heap space", "gc overhead limit", "array size exceeds")

TOO_MANY = "Correct the file, or the reader's option sep; or set its option maxColumns to more"

UNPACK = "Unpack it, and remove it from the folder"

TOO_LONG = (
    "Correct the file: the end of a line may be missing, or a quote may be open; or raise "
    "line_limit in the source's spec, and Spark's memory (spark.driver.memory in the profile's "
    "target) with it"
)

# A part of the text, in lower case, and the remedy.
_REMEDIES = {
    "no space left": "Free disk space and run again: nothing is half written",
    "read-only file system": "Mount it so that the user that runs the loader can write, or name "
    "another folder; nothing is half written",
    "cancelled": "Nothing of this batch is visible; run again",
    "context was shut down": _STOPPED,
    "outofmemory": "Give Spark more memory (spark.driver.memory in the profile's target)",
    "java heap space": "Give Spark more memory (spark.driver.memory in the profile's target)",
    "exceeds max precision": "Read it through a view in the source that casts the column: Spark's "
    "numbers have 38 digits, 18 of them after the point if the source declares no precision",
    "malformed csv record": BROKEN_LINE,
    "malformed records are detected": BROKEN_LINE,
    "unexpected end-of-input": BROKEN_LINE,
    "is an archive, which spark cannot read": UNPACK,
    "holds bytes that are not ": UNKNOWN_BYTES,
    "a quote is still open where a line ends": "If values go over several lines, set the reader's "
    "option multiLine: 'true'; with multiLine: 'false' each line is a row, and with quote: '' "
    "quotes are literal characters; else correct the file",
    "a quote stands behind a backslash": "If backslashes escape quotes, as Spark and MySQL write "
    "them, set the reader's option escape: '\\'; with escape: '\"' backslashes are literal "
    "characters",
    "a key differs from a column only in case": "Write it in one way in all files, and in "
    "`column_types`: in JSON `id` and `ID` are two names, in the lake one",
    "a json key is an empty text": "Spark would leave the value out: give it a name, or declare "
    "the table's `column_types`, which leave out what they do not name",
    "something stands behind a json value": "Write each value on a line of its own: Spark would "
    "read only the first one",
    "has digits below the microsecond": "Write it in microseconds (pyarrow: "
    "coerce_timestamps='us'), or set spark.sql.legacy.parquet.nanosAsLong: 'true' in the profile's "
    "target: the column is then a whole number of nanoseconds",
    "parquet column cannot be converted": "Declare in `column_types` the type that the file "
    "has, or none at all: then each file is read with its own types",
    "illegal parquet type: int64 (timestamp(nanos": "Remove the table's `column_types`, or leave "
    "this one out of them: without, nanoseconds are read as far as the microsecond",
    "relative path in absolute uri": "A file has a colon in its name, and Spark cannot read it: "
    "rename it",
    "unexpected end of input stream": "A compressed file is cut off, or is none although its name "
    "says so: write it again, or name it as what it is",
    "cannot convert json root field": "A line's value is no object: each must be one, or an array "
    "of them",
    "header does not conform": "A file's header changed while it was read: run again",
    "permission denied": "Let the user that runs the loader write there",
    "mkdirs failed to create": "Let the user that runs the loader write there, or name another "
    "warehouse",
}


def clear(error: BaseException, where: str) -> LoaderError:
    """Returns the error as a user should read it; the loader's own pass through unchanged.

    If Spark's Java process has ended, that is the error, not the failures that follow from it.
    """
    if isinstance(error, JavaEndedError):
        return JavaEndedError(error.what, where=where or error.where, remedy=error.remedy)
    ended = explain_java_end(error, where)
    if ended is not None:
        return ended
    if isinstance(error, LoaderError):
        return error
    if isinstance(error, Timeout):
        return LockedError(
            "another run holds the lock",
            where=where,
            remedy="Run again when it is done",
        )
    if isinstance(error, (PySparkException, Py4JError)):
        broken = detect_damage(_whole(error), where)
        if broken is not None:
            return broken
    if isinstance(error, Py4JJavaError):
        found = explain(error, where)
        if "context was shut down" in found.what.lower():
            return TableError(_ENDING, where=where, remedy=_STOPPED)
        length = too_long(str(error))
        if length is not None:
            limit, line = length
            file = _FILE.search(str(error))
            near = f"near line {line:,} of {file[1] if file else 'a file'}"
            told = f"a value {near} has more than {limit:,} characters"
            return TableError(told, where=where, remedy=TOO_LONG)
        columns = _TOO_MANY.search(str(error))
        if columns is not None:
            told = f"a line has more than {int(columns[1]):,} columns"
            return TableError(told, where=where, remedy=TOO_MANY)
        if re.search(r"\b(?:job|stage) \d+ (?:was )?cancelled", found.what, re.IGNORECASE):
            # Spark's own text is the number of a job.
            return interruption_error(where)
        return TableError(_first(found.what), where=where, remedy=_remedy(found.what, found.remedy))
    if isinstance(error, (PySparkException, Py4JError, OSError)):
        text = _first(_error_text(error))
        return TableError(text, where=where, remedy=_remedy(str(error), ""))
    if isinstance(error, RecursionError):
        return TableError(
            "something is nested too deeply to be read",
            where=where,
            remedy="Declare the column that holds it as text (`column_types`), or nest it less "
            "deeply",
        )
    return TableError(
        f"{type(error).__name__}: {_first(str(error))}",
        where=where,
        remedy="This is a defect: run again with --debug and report the trace",
    )


def too_long(text: str) -> tuple[int, int] | None:
    """Returns the limit and the line of a value that a CSV parser found to be too long."""
    found = _TOO_LONG.search(text)
    return None if found is None else (int(found[1]), int(found[2]) + 1)


def may_precede_java_end(error: LoaderError) -> bool:
    """Returns whether an error is what a table gets when Java is about to end, or has ended.

    If a task lacks memory, Spark reports that, stops, and then ends its JVM.
    """
    text = error.what.lower()
    lacks_memory = any(sign in text for sign in _NO_MEMORY)
    return isinstance(error, JavaEndedError) or error.what == _ENDING or lacks_memory


def _whole(error: PySparkException | Py4JError) -> str:
    """Returns an error's text, with those of its causes in the JVM."""
    origin = getattr(error, "_origin", None)
    return f"{error}\n{getattr(error, 'stackTrace', '') or ''}\n{origin or ''}"


def _error_text(error: BaseException) -> str:
    """Returns an error's text; the system's without its number, the file first."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _first(text: str) -> str:
    """Returns the sentence that matters, without Java's class names, plans and stack traces."""
    caused = re.findall(r"Caused by: (?:[\w.$]+: )?([^\n]+)", text)
    line = caused[-1] if caused else (text.strip().splitlines() or [""])[0]
    line = re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", line)
    line = re.sub(r"^\[[A-Z_.]+\] ", "", line)
    line = re.sub(r"\s*SQLSTATE: \w{5}\.?$", "", line.strip())  # Spark 4 adds it
    line = re.sub(r"\(line \d+, pos \d+\)$", "", line)  # in DDL that no user wrote
    return excerpt(line.strip().rstrip("."), 500)


def _remedy(text: str, remedy: str) -> str:
    lowered = text.lower()
    return next((told for part, told in _REMEDIES.items() if part in lowered), remedy)

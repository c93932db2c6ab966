"""Turns what Spark, a driver or the system throws into one clear error."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from loader.errors import LoaderError, TableError
from loader.sources.connection import explain


def clear(error: BaseException, where: str) -> LoaderError:
    """The error as a user should read it; ours pass through unchanged."""
    if isinstance(error, LoaderError):
        return error
    if isinstance(error, Py4JJavaError):
        found = explain(error, where)
        return TableError(_first(found.what), where=where, remedy=_remedy(found.what, found.remedy))
    if isinstance(error, (PySparkException, Py4JError, OSError)):
        text = _first(str(error) or type(error).__name__)
        return TableError(text, where=where, remedy=_remedy(str(error), ""))
    return TableError(
        f"{type(error).__name__}: {_first(str(error))}",
        where=where,
        remedy="This is a defect: run again with --debug and report the trace",
    )


def _first(text: str) -> str:
    """The sentence that says it: without Java's class names, plans and stack traces."""
    caused = re.findall(r"Caused by: (?:[\w.$]+: )?([^\n]+)", text)
    line = caused[-1] if caused else (text.strip().splitlines() or [""])[0]
    line = re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", line)
    return line.strip().rstrip(".")[:500]


def _remedy(text: str, remedy: str) -> str:
    lowered = text.lower()
    if "no space left" in lowered:
        return "Free disk space and run again: the batch was discarded, nothing is half written"
    if "cancelled" in lowered or "context was shut down" in lowered:
        return "The run was interrupted: the batch was discarded, run again"
    if "outofmemory" in lowered or "java heap space" in lowered:
        return "Give Spark more memory (spark.driver.memory in the profile's target)"
    return remedy

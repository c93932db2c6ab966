"""Relays the log of a program, and detects damaged messages among its log lines.

Warnings are shown to users. All other lines go to the `loader.program` logger, which `--debug`
shows. A damaged message must not count as a log line, because its record would be lost.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from loader.spec.redaction import excerpt, redact_foreign

_log = logging.getLogger("loader.program")

_MAX_WARNINGS = 20
"""The maximum number of distinct warnings from a program that a run shows."""
_MAX_WARNING_LENGTH = 500
_FATAL_LEVELS = ("FATAL", "CRITICAL")
_DATA_TYPES = (b'"RECORD"', b'"STATE"', b'"BATCH"')
_BRACKETS = re.compile(rb'\\.|["[\]{}]', re.DOTALL)
_LEADING = b" \t\r\n\xef\xbb\xbf\xff\xfe"  # white space and byte order marks


def _redact_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = redact_foreign(record.getMessage()), ()
    return True


_log.addFilter(_redact_record)


def is_error(level: str) -> bool:
    """Returns whether a log level means an error. Ignores case."""
    return level.strip().upper() == "ERROR" or is_fatal(level)


def is_fatal(level: str) -> bool:
    return level.strip().upper() in _FATAL_LEVELS


def strip_trace(text: str) -> str:
    """Removes the stack trace that some programs append to a message."""
    return text.partition("Traceback (most recent call last)")[0].strip(" \n:,") or text


def is_log_shown() -> bool:
    return _log.isEnabledFor(logging.DEBUG)


class LogRelay:
    """Relays a program's log during one run.

    Args:
        warn: called with the name of a table or of the source, and a warning.
        before_output: called before any output of the program is shown.
    """

    def __init__(
        self, source: str, warn: Callable[[str, str], None], before_output: Callable[[], None]
    ) -> None:
        self.source = source
        self.before_output = before_output
        self._warn = warn
        self._warned: set[str] = set()
        self._shown: set[str] = set()

    def relay(self, level: str, text: str) -> None:
        """Shows or logs a message, depending on its level."""
        if level.strip().upper() in ("WARN", "WARNING"):
            self._relay_warning(f"the connector warns: {strip_trace(text)}")
        elif is_error(level):
            self.log(text)
            self._relay_warning(f"the connector reports an error: {strip_trace(text)}")
        else:
            self.log(text)

    def log(self, text: str) -> None:
        _log.debug("%s: %s", self.source, text)

    def warn_once(self, text: str, table: str | None = None) -> None:
        """Warns the user, unless the run has already shown the same warning."""
        self.before_output()
        text = excerpt(text.strip(), _MAX_WARNING_LENGTH)
        if text in self._warned:
            return
        self._warned.add(text)
        self._warn(table or self.source, text)

    def _relay_warning(self, text: str) -> None:
        if text not in self._shown and len(self._shown) >= _MAX_WARNINGS:
            self.log(text)
            return
        self._shown.add(text)
        self.warn_once(text)


def is_broken_message(line: bytes) -> bool:
    """Returns whether a line is probably a damaged message.

    Such a line starts like a message, or contains a message type. All other lines are log lines.
    """
    start = line[:64].replace(b"\0", b"").lstrip(_LEADING)
    return start.startswith(b"{") or any(word in line for word in _DATA_TYPES)


def is_untyped_record(message: Any, line: bytes) -> bool:
    """Returns whether a JSON value of an unknown message type contains a record."""
    if isinstance(message, list):
        return any(word in line for word in _DATA_TYPES)
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    if isinstance(kind, str):
        return kind.strip().upper() == "RECORD"
    record = message.get("record")
    return isinstance(record, dict) and ("stream" in message or "stream" in record)


def truncate_nesting(line: bytes, max_depth: int = 10) -> bytes:
    """Replaces deeply nested values with null, but keeps the message's type and stream.

    Args:
        max_depth: the number of nested levels to keep.
    """
    result = bytearray()
    depth = kept_from = 0
    in_string = False
    for token in _BRACKETS.finditer(line):
        if token[0] == b'"':
            in_string = not in_string
        elif in_string:
            continue
        elif token[0] in (b"{", b"["):
            depth += 1
            if depth == max_depth + 1:
                result += line[kept_from : token.start()] + b"null"
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == max_depth:
                kept_from = token.end()
    return bytes(result + line[kept_from:]) if depth <= max_depth else bytes(result)

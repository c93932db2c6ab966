"""Routes what a program writes besides messages: logs, and messages that arrived broken.

Warnings reach the user, the rest goes to the logger `loader.program`, which `--debug` shows. A
message that arrived broken would be a gap, so it must not pass for a log line."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from loader.spec.redaction import excerpt, redact_foreign

_log = logging.getLogger("loader.program")

_MOST = 20
"""So many different warnings of a program's own are shown of one run; the loader's all are."""
_LONGEST = 500
_FATAL = ("FATAL", "CRITICAL")
_VITAL = (b'"RECORD"', b'"STATE"', b'"BATCH"')
_MARK = re.compile(rb'\\.|["[\]{}]', re.DOTALL)
_BEFORE = b" \t\r\n\xef\xbb\xbf\xff\xfe"  # white space, and the marks of UTF-8 and UTF-16


def _redact_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = redact_foreign(record.getMessage()), ()
    return True


_log.addFilter(_redact_record)


def is_error(level: str) -> bool:
    """Returns whether a level of a log is an error's; programs write it in either case."""
    return level.strip().upper() == "ERROR" or is_fatal(level)


def is_fatal(level: str) -> bool:
    """Returns whether a level of a log is that of the error which ends the program."""
    return level.strip().upper() in _FATAL


def strip_trace(text: str) -> str:
    """Strips the stack trace that some programs append to a message."""
    return text.partition("Traceback (most recent call last)")[0].strip(" \n:,") or text


def is_log_shown() -> bool:
    """Returns whether the user sees all output of programs."""
    return _log.isEnabledFor(logging.DEBUG)


class LogRelay:
    """The log output of one run of a program.

    Args:
        source: the source's name.
        warn: gets warnings, with the name of a table or the source.
        before: called before the first output of the program is shown.
    """

    def __init__(
        self, source: str, warn: Callable[[str, str], None], before: Callable[[], None]
    ) -> None:
        self.source = source
        self.before = before
        self._warn = warn
        self._warned: set[str] = set()
        self._said: set[str] = set()

    def relay(self, level: str, text: str) -> None:
        """Passes on what the program logs."""
        if level.strip().upper() in ("WARN", "WARNING"):
            self._pass_on(f"it warns: {strip_trace(text)}")
        elif is_error(level):
            self.log(text)
            self._pass_on(f"it reports an error: {strip_trace(text)}")
        else:
            self.log(text)

    def log(self, text: str) -> None:
        """Writes to the log only."""
        _log.debug("%s: %s", self.source, text)

    def warn_once(self, text: str, table: str | None = None) -> None:
        """Warns the user, unless the same was said already."""
        self.before()
        text = excerpt(text.strip(), _LONGEST)
        if text in self._warned:
            return
        self._warned.add(text)
        self._warn(table or self.source, text)

    def _pass_on(self, text: str) -> None:
        """Warns of the program's messages, a few times at most."""
        if text not in self._said and len(self._said) >= _MOST:
            self.log(text)
            return
        self._said.add(text)
        self.warn_once(text)


def is_broken(line: bytes) -> bool:
    """Returns whether a line that is not JSON begins as a message, or names the type of one.

    Programs print text between their messages; that is their log.
    """
    begins = line[:64].replace(b"\0", b"").lstrip(_BEFORE)
    return begins.startswith(b"{") or any(word in line for word in _VITAL)


def is_misnamed(message: Any, line: bytes) -> bool:
    """Returns whether JSON that is no message of a known type holds a record all the same."""
    if isinstance(message, list):
        return any(word in line for word in _VITAL)
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    if isinstance(kind, str):
        return kind.strip().upper() == "RECORD"
    record = message.get("record")
    return isinstance(record, dict) and ("stream" in message or "stream" in record)


def flatten(line: bytes, deepest: int = 10) -> bytes:
    """Replaces what is nested deeper by null: who a message is for stands further out.

    Args:
        deepest: so many objects and lists inside each other are kept.
    """
    found = bytearray()
    depth = begin = 0
    in_string = False
    for token in _MARK.finditer(line):
        if token[0] == b'"':
            in_string = not in_string
        elif in_string:
            continue
        elif token[0] in (b"{", b"["):
            depth += 1
            if depth == deepest + 1:
                found += line[begin : token.start()] + b"null"
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == deepest:
                begin = token.end()
    return bytes(found + line[begin:]) if depth <= deepest else bytes(found)

"""Routes connector logs: warnings reach the user, the rest goes to the debug log.

The logger `loader.program` gets that, also of the bridge to CloudQuery; `--debug` shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from loader.spec.redaction import excerpt, redact_foreign

_log = logging.getLogger("loader.program")


def _redact_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = redact_foreign(record.getMessage()), ()
    return True


_log.addFilter(_redact_record)

_MOST = 20
"""So many different warnings of a program's own are shown of one run; the loader's all are."""
_LONGEST = 500


_FATAL = ("FATAL", "CRITICAL")


def is_error(level: str) -> bool:
    """Whether a level of a log is an error's; programs write them in letters of either case."""
    return level.strip().upper() == "ERROR" or is_fatal(level)


def is_fatal(level: str) -> bool:
    """Whether a level of a log is that of the error which ends the program."""
    return level.strip().upper() in _FATAL


def without_trace(text: str) -> str:
    """Strips the stack trace that some programs append to a message."""
    return text.partition("Traceback (most recent call last)")[0].strip(" \n:,") or text


def is_log_shown() -> bool:
    """Returns whether the user sees all output of programs."""
    return _log.isEnabledFor(logging.DEBUG)


class Words:
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

    def say(self, level: str, text: str) -> None:
        """Passes on what the program logs."""
        if level.strip().upper() in ("WARN", "WARNING"):
            self._pass_on(f"it warns: {without_trace(text)}")
        elif is_error(level):
            self.note(text)
            self._pass_on(f"it reports an error: {without_trace(text)}")
        else:
            self.note(text)

    def note(self, text: str) -> None:
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
            self.note(text)
            return
        self._said.add(text)
        self.warn_once(text)

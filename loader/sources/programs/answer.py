"""A question to a program that answers and ends: its catalog, or whether it reaches its source."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from loader.errors import TableError
from loader.sources.programs.process import Process
from loader.spec.redaction import excerpt

_log = logging.getLogger("loader.program")

Message = TypeVar("Message", bound=Any)


def answered(
    start: Callable[[Callable[[str], None]], Process],
    hear: Callable[[bytes], Message | None],
    why: Sequence[str],
    silence: float,
    where: str,
    before_words: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    """Yields what a program answers, until it ends.

    Args:
        start: starts the program.
        hear: turns a line into a message; None if it is none.
        why: what the messages said is wrong, by the time that the program has ended.
        silence: after so many seconds without a word it is ended.
        where: the source, for messages.
        before_words: called before the program's own words are shown.

    Raises:
        TableError: if it fails.
    """
    process = start(lambda text: _log.debug("%s: %s", where, text))
    done = threading.Event()
    hung = threading.Event()

    def watch() -> None:
        while not done.wait(min(1.0, silence)):
            if process.lingers():  # it has answered
                process.stop(patience=1.0)
                return
            if time.monotonic() - process.heard > silence:
                hung.set()
                process.stop(patience=1.0)
                return

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        for line in process.lines():
            message = hear(line)
            if message is not None:
                yield message
        code = process.end()
    finally:
        done.set()
        process.stop(patience=1.0)
    if hung.is_set():
        raise TableError(
            f"the program has said nothing for {silence:,.0f} seconds, and was ended",
            where=where,
            remedy="Run again; if it needs longer, raise `timeout`",
        )
    if code or why:
        before_words()
        said = next(iter(why), "") or process.last_words
        how = f"it was killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise TableError(
            f"the program failed ({how}){': ' if said else ''}{excerpt(said, 1000).rstrip('.')}",
            where=where,
            remedy="Correct the connector's `config`; with --debug, all that it says is shown",
        )

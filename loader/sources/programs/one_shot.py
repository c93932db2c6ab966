"""Runs a program for one answer: its catalog, or the result of a connection check."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from loader.errors import TableError
from loader.sources.programs.process import Process
from loader.spark.interruption import interruptible
from loader.spec.redaction import excerpt

_log = logging.getLogger("loader.program")

Message = TypeVar("Message", bound=Any)

_TICK = 0.5
_LARGEST = 1 << 30
"""The most bytes of an answer."""
_PATIENCE = 4
"""An answer may take so many times what a program may say nothing for."""


def read_answer(
    start: Callable[[Callable[[str], None]], Process],
    hear: Callable[[bytes], Message | None],
    why: Sequence[str],
    silence: float,
    where: str,
    before_words: Callable[[], None] = lambda: None,
    waits: bool = False,
) -> Iterator[Message]:
    """Yields a program's messages, until it ends.

    Args:
        start: starts the program.
        hear: turns a line into a message; None if it is none.
        why: the error that the messages reported, once the program has ended.
        silence: after so many seconds without output it is ended, and after four times as many
            in any case.
        where: the source, for messages.
        before_words: called before the program's output is shown.
        waits: whether a run that is asked to stop still waits for it.

    Raises:
        TableError: if it fails, or the run is asked to stop.
    """
    process = start(lambda text: _log.debug("%s: %s", where, text))
    done = threading.Event()
    hung = threading.Event()
    late = threading.Event()
    until = time.monotonic() + _PATIENCE * silence
    size = 0
    interrupted = threading.Event()

    def watch() -> None:
        while not done.wait(min(_TICK, silence)):
            if process.lingers() or interrupted.is_set():  # it has answered, or the run is stopping
                process.stop(patience=1.0)
                return
            if time.monotonic() > until:
                late.set()
                process.stop(patience=1.0)
                return
            if time.monotonic() - process.heard > silence:
                hung.set()
                process.stop(patience=1.0)
                return

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        with nullcontext() if waits else interruptible(interrupted.set):
            for line in process.lines():
                size += len(line)
                if size > _LARGEST:
                    raise TableError(
                        f"the program answered with more than {_LARGEST:,} bytes",
                        where=where,
                        remedy="Let the connector log less, or list fewer streams, in its own "
                        "configuration",
                    )
                message = hear(line)
                if message is not None:
                    yield message
            code = process.end()
    finally:
        done.set()
        process.stop(patience=1.0)
    if interrupted.is_set():
        raise TableError(
            "the run was interrupted while the program answered",
            where=where,
            remedy="Nothing of it is visible; run again",
        )
    if hung.is_set():
        raise TableError(
            f"the program has said nothing for {silence:,.0f} seconds, and was ended",
            where=where,
            remedy="Run again; if it needs longer, raise `timeout`",
        )
    if late.is_set():
        raise TableError(
            f"the program has not answered for {_PATIENCE * silence:,.0f} seconds, and was ended",
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

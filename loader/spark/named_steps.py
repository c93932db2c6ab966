"""Names the current step of a command for the user: most take a moment, some minutes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "loader.step"
"""Gets a message when a step begins, in the thread that does it, and an empty one at its end."""

_log = logging.getLogger(LOGGER)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Encloses a step that may take more than a few seconds.

    Args:
        text: the table and the action: `shop.orders: compacting`.
    """
    _log.debug("%s", text)
    try:
        yield
    finally:
        _log.debug("")

"""Reports the current step of a command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "loader.step"
"""The logger for steps. It logs a message when a step starts, and an empty one when it ends."""

_log = logging.getLogger(LOGGER)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Reports a step that may take more than a few seconds.

    Args:
        text: the table and the action, such as `shop.orders: compacting`.
    """
    _log.debug("%s", text)
    try:
        yield
    finally:
        _log.debug("")

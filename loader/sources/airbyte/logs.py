"""Detects reports of missing records in a connector's log."""

from __future__ import annotations

import re

from loader.sources.programs.log_relay import is_error

LEFT_OUT = (
    "Cannot decode/parse line ",  # JsonLineParser: a record
    "Response cannot be parsed from XML: ",  # XmlDecoder: a page, and all behind it
    "older than the last time it was synced. This is unexpected. Skipping the file.",
    "Unable to fetch permissions. stream=",  # PermissionsFileBasedStream: a record
)
"""Warnings of `airbyte-cdk` that it leaves something out without being asked to."""

_EMPTY = re.compile(r"parse line b'(?:\s|\\[rnt])*' as JSON|response\.text='', ")
"""The text of these warnings about a blank line or an empty answer: nothing is missing."""


def lacks(level: str, text: str) -> bool:
    """Whether a log message of a connector means that its streams may lack records."""
    left_out = any(part in text for part in LEFT_OUT) and not _EMPTY.search(text)
    return is_error(level) or left_out

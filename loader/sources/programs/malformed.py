"""Lines that are no messages: log lines, or messages that arrived broken, which would be gaps."""

from __future__ import annotations

from typing import Any

_VITAL = (b'"RECORD"', b'"STATE"', b'"BATCH"')
_BEFORE = b" \t\r\n\xef\xbb\xbf\xff\xfe"  # white space, and the marks of UTF-8 and UTF-16


def is_broken(line: bytes) -> bool:
    """Whether a line that is not JSON looks like a message: it begins as one, or names its type.

    Programs print text between their messages; that is their log.
    """
    begins = line[:64].replace(b"\0", b"").lstrip(_BEFORE)
    return begins.startswith(b"{") or any(word in line for word in _VITAL)


def is_misnamed(message: Any, line: bytes) -> bool:
    """Whether JSON that is no message of a known type holds a record all the same."""
    if isinstance(message, list):
        return any(word in line for word in _VITAL)
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    if isinstance(kind, str):
        return kind.strip().upper() == "RECORD"
    record = message.get("record")
    return isinstance(record, dict) and ("stream" in message or "stream" in record)

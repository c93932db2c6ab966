"""Lines that are no messages: log lines, or messages that arrived broken, which would be gaps."""

from __future__ import annotations

import re
from typing import Any

_VITAL = (b'"RECORD"', b'"STATE"', b'"BATCH"')
_MARK = re.compile(rb'\\.|["[\]{}]', re.DOTALL)
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

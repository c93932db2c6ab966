"""Checks SQL from the spec before the loader inserts it into its own statements."""

from __future__ import annotations

import re

from loader.spec.validation import OptionError

_QUOTED = r""""(?:[^"]|"")*"|`[^`]*`|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"""
_PLAIN_TEXT = r"'(?:[^']|'')*'"
_ESCAPED_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_DOUBLE_QUOTED_TEXT = _ESCAPED_TEXT.replace("'", '"')
_REFUSED = {
    "--": "begins a comment",
    "/*": "begins a comment",
    "#": "begins a comment",
    ";": "ends the statement",
    "'": "begins a string that does not end",
    '"': "begins a quoted name that does not end",
    "`": "begins a quoted name that does not end",
    "?": "is a parameter for JDBC; write a function instead, such as jsonb_exists(column, key)",
}


def check_sql(text: str, option: str, url: str, kind: str) -> None:
    """Checks that SQL from the spec can be put into parentheses within a statement.

    The database checks everything else.

    Args:
        url: the database's JDBC URL, which determines how strings are quoted.
        kind: the kind of SQL that the option requires, for the remedy.

    Raises:
        OptionError: if the SQL is empty, if it contains a comment, a semicolon or an unbalanced
            parenthesis, or if it ends within quotes.
    """
    is_mysql = url.lower().startswith(("jdbc:mariadb:", "jdbc:mysql:"))
    texts = (
        f"{_ESCAPED_TEXT}|{_DOUBLE_QUOTED_TEXT}"
        if is_mysql
        else rf"\b[eE]{_ESCAPED_TEXT}|{_PLAIN_TEXT}"
    )
    token = re.compile(rf"{texts}|{_QUOTED}|--|/\*|[#;?()'\"`]", re.DOTALL)
    remedy = f"Write {kind} as one line or block of SQL, without comments or semicolons"
    if not text.strip():
        raise OptionError(f"{option} is empty", f"Write {kind}, or remove it")
    depth = 0
    for match in token.finditer(text):
        found = match[0]
        depth += {"(": 1, ")": -1}.get(found, 0)
        reason = _REFUSED.get(found, "")
        if found == "#" and not is_mysql:
            reason = ""  # a PostgreSQL operator
        if depth < 0:
            reason = "has no opening parenthesis"
        if reason:
            raise OptionError(
                f"{option}: {found} at character {match.start() + 1} {reason}", remedy
            )
    if depth:
        raise OptionError(f"{option}: a parenthesis is not closed", remedy)

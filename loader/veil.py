"""Texts in table properties, written so that Spark shows them again.

`SHOW TBLPROPERTIES` blots out any property whose name or value holds `url`, `token`, `secret` or
`password` (`spark.redaction.regex`, `spark.sql.redaction.options.regex`), and the name of a table,
of a column or of a source may well hold one. So what dbt reads back is written in hexadecimal; the
package's macros `veiled` and `unveiled` do the same.
"""

from __future__ import annotations

_MARK = "hex:"


def veiled(text: str) -> str:
    """A property's value, in hexadecimal."""
    return _MARK + text.encode().hex()


def unveiled(value: str) -> str:
    """A property's value as it was before :func:`veiled`; one that never was, as it is.

    Raises:
        ValueError: where it is not hexadecimal, though it says so.
    """
    if not value.startswith(_MARK):
        return value
    return bytes.fromhex(value.removeprefix(_MARK)).decode()

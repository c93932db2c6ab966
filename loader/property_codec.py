"""Encodes texts in table properties, so that Spark does not mask them.

`SHOW TBLPROPERTIES` masks any property whose name or value contains `url`, `token`, `secret` or
`password` (`spark.redaction.regex`, `spark.sql.redaction.options.regex`), and names of tables,
columns and sources may well contain one. So what dbt reads back is written in hexadecimal; the
package's macros `veiled` and `unveiled` do the same.
"""

from __future__ import annotations

_MARK = "hex:"


def encode_property(text: str) -> str:
    """Returns a property's value in hexadecimal."""
    return _MARK + text.encode().hex()


def decode_property(value: str) -> str:
    """Reverses :func:`encode_property`; a value that is not encoded is returned as it is.

    Raises:
        ValueError: if it is marked as hexadecimal but is not.
    """
    if not value.startswith(_MARK):
        return value
    return bytes.fromhex(value.removeprefix(_MARK)).decode()

"""Encodes texts in table properties, so that Spark does not mask them.

`SHOW TBLPROPERTIES` masks each property whose name or value contains `url`, `token`, `secret` or
`password` (`spark.redaction.regex`, `spark.sql.redaction.options.regex`), which names of tables,
columns and sources may contain. Properties that dbt reads are therefore hexadecimal; the package's
macros `veiled` and `unveiled` use the same encoding.
"""

from __future__ import annotations

_MARK = "hex:"


def encode_property(text: str) -> str:
    """Returns a property's value in hexadecimal."""
    return _MARK + text.encode().hex()


def decode_property(value: str) -> str:
    """Reverses :func:`encode_property`; a value that lacks the prefix is returned unchanged.

    Raises:
        ValueError: if the value after the prefix is not hexadecimal.
    """
    if not value.startswith(_MARK):
        return value
    return bytes.fromhex(value.removeprefix(_MARK)).decode()

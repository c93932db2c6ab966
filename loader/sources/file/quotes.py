"""Finds CSV lines whose quotes may be meant otherwise than Spark reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from loader.sources.file.options import ReaderOptions


def open_quote(native: ReaderOptions, text: Column) -> Column | None:
    """Returns whether a line ends within a quoted value; None if that is not to be asked.

    It is not to be asked if the option `multiLine` is set, to any value.
    """
    found = pattern(native)
    if native.option("multiline") is not None or found is None:
        return None
    quote, comment = _quote(native), native.option("comment")
    opened = text.contains(quote) & text.rlike(found)
    if _escape(native) == quote:
        # Quicker than the pattern: in such a line, the number of quotes is odd.
        odd = (f.length(text) - f.length(f.replace(text, f.lit(quote)))) % 2 == 1
        opened = odd & text.rlike(found)
    return opened & ~text.startswith(comment) if comment else opened


def has_escaped_quote(native: ReaderOptions, text: Column) -> Column | None:
    r"""Returns whether a line has `\"` within a quoted value; None if that is not to be asked.

    Spark, MySQL and others write a quote so. It is not to be asked if the option `escape` is set.
    """
    found, quote, comment = pattern(native), _quote(native), native.option("comment")
    if "escape" in native.given or native.multiline or found is None:
        return None
    q, s = re.escape(quote), re.escape(_separator(native))
    # As many values as there are before it; then it begins as if it ended at the backslash.
    begin = found.removesuffix(r"\z").replace(f"{s})*+", f"{s})*?", 1)
    escaped = text.contains(f"\\{quote}") & text.rlike(rf"{begin}(?<=\\){q}(?!{s}|\z)")
    return escaped & ~text.startswith(comment) if comment else escaped


def pattern(native: ReaderOptions) -> str | None:
    """Returns the pattern, in Java, of text that ends within a quoted value; None without quotes.

    As Spark's parser does, it takes a quote within a value literally. No part of the pattern
    gives back what it has matched, so a long line takes neither long nor much of the stack.
    """
    quote, escape, separator = _quote(native), _escape(native), _separator(native)
    if not quote:
        return None
    q, e, s = (re.escape(part) for part in (quote, escape, separator))
    blank = r"[ \t]*+" if native.option("ignoreleadingwhitespace") == "true" else ""
    if not escape or escape == quote:
        inside = f"[^{q}]*+(?:{q}{q}[^{q}]*+)*+"
    else:
        inside = rf"[^{q}{e}]*+(?:{e}[\s\S][^{q}{e}]*+)*+"
    rest = f"[^{s}]*+" if len(separator) == 1 else rf"(?:(?!{s})[\s\S])*+"
    value = f"(?:{blank}{q}{inside}{q}{rest}|(?!{blank}{q}){rest})"
    return rf"\A(?:{value}{s})*+{blank}{q}{inside}\z"


def _quote(native: ReaderOptions) -> str:
    given = native.option("quote")
    return '"' if given is None else given.strip("\0")


def _escape(native: ReaderOptions) -> str:
    given = native.option("escape")
    return '"' if given is None else given


def _separator(native: ReaderOptions) -> str:
    given = native.option("sep", "delimiter") or ","
    return {"\\t": "\t", "\\\\": "\\"}.get(given, given)

"""Tests which changes the snapshots of a table's first load have seen, as Spark columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from loader.sources.jdbc.cdc.chunks import Key
from loader.sources.jdbc.cdc.position import VisibleTransactions

_EPOCH = 2**32
_HALF = 2**31


def sees(seen: VisibleTransactions, transaction: Column) -> Column:
    """Returns :meth:`VisibleTransactions.sees` as a Spark column."""
    distance = f.pmod(transaction - f.lit(seen.xmax) + f.lit(_HALF), f.lit(_EPOCH)) - f.lit(_HALF)
    whole = f.lit(seen.xmax) + distance
    ended = whole < f.lit(seen.xmax)
    if seen.open:
        ended = ended & ~whole.isin(*seen.open)
    return (whole < f.lit(seen.xmin)) | ended


def is_seen_by_piece(
    earlier: Sequence[tuple[Key, VisibleTransactions]],
    newest: VisibleTransactions | None,
    transaction: Column,
    key: Mapping[str, DataType],
    row: Column,
) -> Column:
    """Returns whether the piece that a row's key lies in has seen its transaction.

    Args:
        earlier: the last keys of the pieces of runs that were broken off, ascending, and the
            snapshots that these runs read.
        newest: the snapshot of the pieces above; None if all is later than it.
        key: the key's columns and their types.
        row: a struct that has them.
    """
    values = f.struct(*(row.getField(name) for name in key))
    found = f.lit(False) if newest is None else sees(newest, transaction)
    for upto, seen in reversed(earlier):
        texts = zip(upto, key.items(), strict=True)
        last = f.struct(*(f.lit(text).cast(type_).alias(name) for text, (name, type_) in texts))
        found = f.when(values <= last, sees(seen, transaction)).otherwise(found)
    return found

"""Parses the where clause of a deletion into alternatives that each name columns and values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cloudquery.plugin_v3 import plugin_pb2

from .arrow_input import MalformedError, read_record
from .columns import records

Condition = dict[str, Any]
"""Values by column: it means the rows that have all of them."""

_MOST = 100_000
"""Alternatives of one clause: groups multiply."""


def deletion(message: Any) -> dict[str, Any]:
    """Returns a `DeleteRecord` as a message to the loader.

    Dependent tables have a message of their own: their rows cannot be found by these columns.

    Raises:
        MalformedError: if its where clause is damaged or too large.
    """
    try:
        return {"stream": message.table_name, "where": conditions(message.where_clause)}
    except MalformedError as error:
        raise MalformedError(error.what, message.table_name) from None


def dependents(message: Any) -> list[str]:
    """Returns the tables whose rows go with those that are deleted."""
    return [relation.table_name for relation in message.table_relations]


def conditions(groups: Any) -> list[Condition]:
    """Returns the alternatives of a where clause; one without columns means all rows.

    All groups must hold, and of each group all predicates or any, as it says.
    """
    found: list[Condition] = [{}]
    for group in groups:
        if not group.predicates:
            continue
        each = [{p.column: _value(p)} for p in group.predicates]
        if group.grouping_type == plugin_pb2.PredicatesGroup.AND:
            options: list[Condition] = [{}]
            for one in each:
                options = list(_both(options, [one]))
        else:
            options = [one for one in each if None not in one.values()]
        if len(found) * len(options) > _MOST:
            raise MalformedError(f"its where clause has more than {_MOST:,} alternatives")
        found = list(_both(found, options))
    return found


def _both(left: list[Condition], right: list[Condition]) -> Iterator[Condition]:
    """Yields what meets one condition of each side; nothing equals null, as in SQL."""
    for one in left:
        for other in right:
            agree = all(json.dumps(one.get(k, v)) == json.dumps(v) for k, v in other.items())
            if agree and None not in other.values():
                yield {**one, **other}


def _value(predicate: Any) -> Any:
    batch = read_record(predicate.record)
    if batch.num_rows != 1 or batch.num_columns != 1:
        raise MalformedError("a predicate has not exactly one value")
    [row] = records(batch)
    return next(iter(row.values()))

"""A PostgreSQL table whose rows, columns and options change at random.

The options select columns and rows, and mask values. :meth:`ChosenTable.expected` computes from the
source which rows the snapshot must contain.
"""

from __future__ import annotations

import datetime
import hmac
import random
from collections.abc import Callable
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from tests.services import Database

TYPES = {"text": "text", "int": "int", "date": "date", "number": "numeric(10, 2)"}
VALUES: dict[str, tuple[Any, ...]] = {
    "text": (None, "", "open", "paid", "anna@x.org", "Bob <bob@y.org>", "4111111111111111"),
    "int": (None, 0, 1, 2, 3, 4, 5),
    "date": (None, datetime.date(1980, 2, 29), datetime.date(2001, 12, 31)),
    "number": (None, Decimal("0.00"), Decimal("1.50"), Decimal("7.00")),
}
CONDITIONS = {
    "text": ("{} = 'open'", "{} is null", "{} <> 'paid' or {} is null", "{} in ('open', 'paid')"),
    "int": ("{} >= 3", "{} % 2 = 0", "{} < 2 or {} is null"),
    "date": ("{} < '1990-01-01'", "{} is not null"),
    "number": ("{} > 1", "{} is null"),
}
MASKS: dict[str, tuple[Any, ...]] = {
    "text": ("hash", "redact", None, "domain", {"last": 4}),
    "int": ("hash", "redact", None),
    "date": ("hash", "redact", None, "year"),
    "number": ("redact", None),
}
NAMES = ("state", "amount", "email", "born", "n1", "n2", "n3")
KEYS = ("the first key of these tests", "the second key of these tests")


class ChosenTable:
    """A table that changes at random, and its options in the spec.

    Args:
        chance: makes all random choices.
        follows_log: whether the table has `sync_mode: cdc`.

    Attributes:
        columns: the kind of each column except the key and the cursor.
        deleted: keys of deleted rows; syncs with a cursor do not detect deletes.
        loaded: the raw table's columns, each with the mask and the `mask_key` of its values.
        log: all statements and options, for the message of a failed test.
    """

    def __init__(
        self, database: Database, name: str, chance: random.Random, follows_log: bool = False
    ) -> None:
        self.database, self.name, self.chance = database, name, chance
        self.follows_log = follows_log
        self.columns = {"state": "text", "amount": "int", "email": "text", "born": "date"}
        self.deleted: set[int] = set()
        self.loaded: dict[str, Any] = {}
        self.log: list[str] = []
        self.where: str | None = None
        self.selection: Any = None
        self.masks: dict[str, Any] = {}
        listed = ", ".join(f"{column} {TYPES[kind]}" for column, kind in self.columns.items())
        self._execute(
            f"create table {name} (id int primary key, at timestamptz, {listed})",
            f"alter table {name} replica identity full",
        )

    def _execute(self, *statements: str) -> None:
        self.log += statements
        self.database.execute(*statements)

    def history(self) -> str:
        """Returns all statements and options so far, one per line."""
        return "\n".join(self.log)

    def write(self) -> bool:
        """Writes rows, and sometimes alters the table. Returns whether the table was altered."""
        is_altered = self.chance.random() < 0.3
        for _ in range(self.chance.randrange(5)):
            self._write_row()
        if is_altered:
            self._alter()
            for _ in range(self.chance.randrange(3)):
                self._write_row()
        return is_altered

    def _write_row(self) -> None:
        chance, key = self.chance, self.chance.randrange(1, 13)
        exists = bool(self.database.query(f"select 1 from {self.name} where id = {key}"))
        action = chance.choice(["update", "update", "unmoved", "unmoved", "delete", "key", "none"])
        if not exists:
            self._insert(key)
        elif action == "delete":
            self._execute(f"delete from {self.name} where id = {key}")
            self.deleted.add(key)
        elif action == "key":
            other = chance.randrange(13, 19)
            self._execute(
                f"delete from {self.name} where id = {other}",
                f"update {self.name} set id = {other} where id = {key}",
            )
            self.deleted.add(key)
            self.deleted.discard(other)
        else:
            changed = chance.sample(list(self.columns), min(2, len(self.columns)))
            assigned = [f"{name} = {self._literal(self.columns[name])}" for name in changed]
            if action == "update":
                assigned.append(f"at = {self._time()}")
            elif action == "none":
                assigned = ["at = at"]
            self._execute(f"update {self.name} set {', '.join(assigned)} where id = {key}")

    def _insert(self, key: int) -> None:
        values = [self._literal(kind) for kind in self.columns.values()]
        self._execute(
            f"insert into {self.name} (id, at, {', '.join(self.columns)}) "
            f"values ({key}, {self._time()}, {', '.join(values)})"
        )
        self.deleted.discard(key)

    def _time(self) -> str:
        behind = self.chance.choice(["0 s", "0 s", "0 s", "3 days"])
        return f"clock_timestamp() - interval '{behind}'"

    def _literal(self, kind: str) -> str:
        value = self.chance.choice(VALUES[kind])
        return "null" if value is None else f"'{value}'"

    def _alter(self) -> None:
        chance = self.chance
        unused = [name for name in NAMES if name not in self.columns]
        # PostgreSQL refuses to drop a column of a publication's row filter.
        filtered = self.where if self.follows_log and self.where else ""
        droppable = [name for name in self.columns if name not in filtered]
        action = chance.choice(["add", "add", "default", "drop", "rename"])
        if action in ("add", "default") and unused:
            name, kind = chance.choice(unused), chance.choice(list(TYPES))
            default = f" default {self._literal(kind)}" if action == "default" else ""
            self._execute(f"alter table {self.name} add {name} {TYPES[kind]}{default}")
            self.columns[name] = kind
        elif action == "drop" and len(self.columns) > 2 and droppable:
            name = chance.choice(droppable)
            self._execute(f"alter table {self.name} drop {name}")
            del self.columns[name]
        elif action == "rename" and unused:
            name, other = chance.choice(list(self.columns)), chance.choice(unused)
            self._execute(f"alter table {self.name} rename {name} to {other}")
            self.columns[other] = self.columns.pop(name)

    def choose(self) -> dict[str, Any]:
        """Changes some of the options at random; returns all options."""
        if self.chance.random() < 0.4 or not self._fits(self.selection):
            self.selection = self._choose_columns()
        if self.chance.random() < 0.4 or any(
            name in (self.where or "") and name not in self.columns for name in NAMES
        ):
            self.where = self._choose_condition()
        self._choose_masks()
        options: dict[str, Any] = {"cursor_field": "at"}
        if self.follows_log:
            options = {"sync_mode": "cdc"}
        if self.selection is not None:
            options["columns"] = self.selection
        if self.where is not None:
            options["where"] = self.where
        if self.masks:
            options["mask"] = dict(self.masks)
        self.log.append(f"options: {options}")
        return options

    def _fits(self, selection: Any) -> bool:
        """Returns whether each name and wildcard matches a column, as the loader requires."""
        patterns = selection["exclude"] if isinstance(selection, dict) else selection or ()
        return all(any(fnmatchcase(name, each) for name in self.columns) for each in patterns)

    def _choose_columns(self) -> Any:
        chance = self.chance
        some = chance.sample(list(self.columns), chance.randrange(1, len(self.columns) + 1))
        if any(name.startswith("n") for name in self.columns) and chance.random() < 0.3:
            some.append("n*")
        return chance.choice([None, some, {"exclude": some}])

    def _choose_condition(self) -> str | None:
        chance = self.chance

        def one() -> str:
            name = chance.choice(list(self.columns))
            return chance.choice(CONDITIONS[self.columns[name]]).replace("{}", name)

        return chance.choice([None, one(), one(), f"not ({one()})", f"id > 6 or ({one()})"])

    def _choose_masks(self) -> None:
        chance = self.chance
        for name, mask in list(self.masks.items()):
            if name != "id" and mask not in MASKS.get(self.columns.get(name, ""), ()):
                del self.masks[name]
        if chance.random() < 0.3:
            name = chance.choice([*self.columns, *self.columns, "id"])
            kinds = ("hash",) if name == "id" else MASKS[self.columns[name]]
            if name in self.masks:
                del self.masks[name]
            else:
                self.masks[name] = chance.choice(kinds)

    def selected(self) -> list[str]:
        """Returns the columns that the options select, except the key and the cursor."""

        def is_in(name: str, patterns: list[str]) -> bool:
            return any(fnmatchcase(name, each) for each in patterns)

        if isinstance(self.selection, dict):
            return [name for name in self.columns if not is_in(name, self.selection["exclude"])]
        return [n for n in self.columns if self.selection is None or is_in(n, self.selection)]

    def expected(self, key: str) -> dict[Any, tuple[Any, ...]]:
        """Returns the source's rows with the options applied, by their keys in the raw table."""
        names = ["id", *self.selected()]
        rows = self.database.query(
            f"select {', '.join(names)} from {self.name} where {self.where or 'true'}"
        )
        masks = [self._mask(name, key) for name in names]
        masked = [tuple(m(v) for m, v in zip(masks, row, strict=True)) for row in rows]
        return {row[0]: row for row in masked}

    def undetected(self, key: str) -> set[Any]:
        """Returns the keys, as in the raw table, of deleted rows that may still be in it."""
        return {self._mask("id", key)(each) for each in self.deleted}

    def _mask(self, name: str, key: str) -> Callable[[Any], Any]:
        if name not in self.masks:
            return lambda value: value
        mask = self.masks[name]
        return lambda value: None if value is None else mask_value(value, mask, key)

    def changed_masks(self, key: str) -> set[str]:
        """Returns the columns that were loaded with a different mask or `mask_key`."""
        current = self._current_masks(key)
        return {name for name in current if self.loaded.get(name, current[name]) != current[name]}

    def note_load(self, key: str) -> None:
        """Records the masks with which the current columns have been loaded."""
        self.loaded |= self._current_masks(key)

    def _current_masks(self, key: str) -> dict[str, Any]:
        masks = {name: self.masks.get(name, "none") for name in ["id", *self.selected()]}
        return {name: (mask, key if mask == "hash" else "") for name, mask in masks.items()}


def mask_value(value: Any, mask: Any, key: str) -> Any:
    """Returns the masked value according to docs/masking.md."""
    text = str(value)
    if mask == "hash":
        return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()
    if mask is None:
        return None
    if mask == "domain":
        return text.partition("@")[2] if text == "anna@x.org" else "***"
    if mask == "year":
        return value.year
    if isinstance(mask, dict):
        return f"***{text[-mask['last'] :]}" if len(text) > mask["last"] else "***"
    return "***"

"""Generates a schedule of operations from a seed, with pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

SESSIONS = (1, 2, 3)
AUTOCOMMIT = 0


@dataclass(frozen=True)
class Op:
    """One operation of a schedule.

    Attributes:
        does: the operation's name, which is a method of the arena, the writers or the commands.
        given: the arguments, which can be stored as JSON.
        during: operations to carry out during this one, at the protocol step that `given` names.
    """

    does: str
    given: Mapping[str, Any] = field(default_factory=dict)
    during: tuple[Op, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.given.items())
        inner = f" {{{'; '.join(map(str, self.during))}}}" if self.during else ""
        return f"{self.does}({shown}){inner}"


@dataclass(frozen=True)
class Schedule:
    """The schedule for one seed.

    Attributes:
        tables: the arena's tables that the schedule uses.
        ops: the operations. Any of them can be left out, so that a schedule can be reduced.
    """

    seed: int
    tables: tuple[str, ...]
    ops: tuple[Op, ...]

    def to_json(self) -> str:
        """Formats the schedule as JSON, for `--replay`."""
        reported = {"seed": self.seed, "tables": self.tables, "ops": [_told(op) for op in self.ops]}
        return json.dumps(reported)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Parses the result of :meth:`to_json`."""
        reported = json.loads(text)
        return cls(reported["seed"], tuple(reported["tables"]), tuple(map(_op, reported["ops"])))

    def with_ops(self, ops: Iterable[Op]) -> Schedule:
        """Returns a schedule with the same tables and other operations."""
        return Schedule(self.seed, self.tables, tuple(ops))


def _told(op: Op) -> list[Any]:
    return [op.does, dict(op.given), [_told(inner) for inner in op.during]]


def _op(reported: Sequence[Any]) -> Op:
    does, given, during = reported
    return Op(does, given, tuple(map(_op, during)))


@dataclass(frozen=True)
class Vocabulary:
    """The operations for one kind of source, with their weights.

    Attributes:
        tables: the source's tables, keyed by name.
        writes: what a writer's session can do to a row.
        events: the events that affect the database.
        commands: the commands of the loader and dbt.
        steps: the steps of a sync at which an operation or a kill can happen.
    """

    tables: tuple[str, ...]
    writes: Mapping[str, int]
    events: Mapping[str, int]
    commands: Mapping[str, int]
    steps: tuple[str, ...]


def drawn(seed: int, vocabulary: Vocabulary, length: int) -> Schedule:
    """Returns a seed's schedule: about `length` operations, with two quiet points."""
    rng = Random(f"nemesis/{seed}")
    count = min(len(vocabulary.tables), rng.choice((1, 2, 2, 3)))
    tables = tuple(sorted(rng.sample(vocabulary.tables, count)))
    draw = _Draw(rng, vocabulary, tables)
    half = max(1, length // 2)
    quiet, end = Op("quiet", {"proofs": False}), Op("quiet", {"proofs": True})
    ops = [*draw.many(half), quiet, *draw.many(length - half), end]
    return Schedule(seed, tables, tuple(ops))


class _Draw:
    """Draws operations one by one.

    Remembers which sessions are in a transaction according to the operations drawn so far. Most
    writes are then assigned to one of these sessions, and only these sessions commit. Rows are lost
    if a transaction writes before a run and commits after it, which independent draws rarely
    produce.
    """

    def __init__(self, rng: Random, vocabulary: Vocabulary, tables: Sequence[str]) -> None:
        self.rng = rng
        self.vocabulary = vocabulary
        self.tables = tables
        self.within: list[int] = []

    def many(self, count: int) -> list[Op]:
        return [self._any() for _ in range(count)]

    def _any(self) -> Op:
        kind = self.rng.choices(("write", "event", "command"), weights=(13, 2, 6))[0]
        if kind == "command":
            return self._command()
        return self._write() if kind == "write" else self._event()

    def _write(self) -> Op:
        does = self._weighted(self.vocabulary.writes)
        if does in ("commit", "rollback", "savepoint", "undo", "prepare") and not self.within:
            does = "begin"
        if does == "begin":
            session = self.rng.choice(SESSIONS)
            self.within = [*{*self.within, session}]
            return Op(does, {"session": session})
        session = self.rng.choice((AUTOCOMMIT, AUTOCOMMIT, *self.within, *self.within))
        if does in ("commit", "rollback", "savepoint", "undo", "prepare"):
            session = self.rng.choice(self.within)
            if does not in ("savepoint", "undo"):
                self.within.remove(session)
            return Op(does, {"session": session})
        if does == "finish_prepared":
            return Op(does, {"commits": self.rng.random() < 0.8})
        return Op(does, {"session": session, "table": self._table(), "at": self._share()})

    def _event(self) -> Op:
        return Op(self._weighted(self.vocabulary.events), {"table": self._table()})

    def _command(self) -> Op:
        does = self._weighted(self.vocabulary.commands)
        step = self.rng.choice(self.vocabulary.steps)
        if does == "run_amid":
            inner = [
                self._event() if self.rng.random() < 0.3 else self._write()
                for _ in range(self.rng.randint(1, 4))
            ]
            return Op(does, {"step": step}, tuple(inner))
        if does == "run_killed":
            return Op(does, {"step": step})
        if does == "build_killed":
            return Op(does, {"after": round(self.rng.uniform(0.2, 6.0), 1)})
        if does in ("full_refresh", "backfill", "set_back"):
            return Op(does, {"table": self._table(), "at": self._share()})
        return Op(does)

    def _weighted(self, weights: Mapping[str, int]) -> str:
        return self.rng.choices(list(weights), weights=list(weights.values()))[0]

    def _table(self) -> str:
        return self.rng.choice(list(self.tables))

    def _share(self) -> float:
        return round(self.rng.random(), 3)

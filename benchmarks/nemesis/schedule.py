"""A schedule: what happens, in which order, drawn from a seed. Pure."""

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
    """One thing that happens.

    Attributes:
        does: its name, a method of the arena or of the commands.
        given: its arguments; JSON can hold them.
        during: what happens in its midst, at the step of the protocol that `given` names.
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
    """What one seed draws.

    Attributes:
        tables: which of the arena's tables take part.
        ops: what happens; each op bears that others are left out, so that a schedule can shrink.
    """

    seed: int
    tables: tuple[str, ...]
    ops: tuple[Op, ...]

    def to_json(self) -> str:
        """As a file keeps it, for `--replay`."""
        reported = {"seed": self.seed, "tables": self.tables, "ops": [_told(op) for op in self.ops]}
        return json.dumps(reported)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """As a file kept it."""
        reported = json.loads(text)
        return cls(reported["seed"], tuple(reported["tables"]), tuple(map(_op, reported["ops"])))

    def with_ops(self, ops: Iterable[Op]) -> Schedule:
        """The same tables, and other things that happen."""
        return Schedule(self.seed, self.tables, tuple(ops))


def _told(op: Op) -> list[Any]:
    return [op.does, dict(op.given), [_told(inner) for inner in op.during]]


def _op(reported: Sequence[Any]) -> Op:
    does, given, during = reported
    return Op(does, given, tuple(map(_op, during)))


@dataclass(frozen=True)
class Vocabulary:
    """What can happen to one kind of source, with weights.

    Attributes:
        tables: its tables, by name.
        writes: what a writer's session does to a row.
        events: what befalls the database.
        commands: what we do.
        steps: where in a sync something can happen, or a kill.
    """

    tables: tuple[str, ...]
    writes: Mapping[str, int]
    events: Mapping[str, int]
    commands: Mapping[str, int]
    steps: tuple[str, ...]


def drawn(seed: int, vocabulary: Vocabulary, length: int) -> Schedule:
    """The schedule of a seed: about `length` ops, a quiet point in the middle and at the end."""
    rng = Random(f"nemesis/{seed}")
    count = min(len(vocabulary.tables), rng.choice((1, 2, 2, 3)))
    tables = tuple(sorted(rng.sample(vocabulary.tables, count)))
    draw = _Draw(rng, vocabulary, tables)
    half = max(1, length // 2)
    quiet, end = Op("quiet", {"proofs": False}), Op("quiet", {"proofs": True})
    ops = [*draw.many(half), quiet, *draw.many(length - half), end]
    return Schedule(seed, tables, tuple(ops))


class _Draw:
    """Draws ops one by one.

    It remembers which sessions are in a transaction, as far as it drew that: most writes then
    belong to one of them, and only such a session commits. A transaction that has written before a
    run and commits after it is what loses rows; ops drawn without a memory seldom make one.
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

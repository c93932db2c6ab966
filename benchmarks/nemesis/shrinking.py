"""Reduces a failing schedule to fewer operations that still fail (Zeller's ddmin)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.nemesis.schedule import Op, Schedule


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool], tries: int) -> Schedule:
    """Returns the smallest schedule found that still fails, or the given one if there is none.

    Args:
        fails: runs a schedule from an empty state, and returns whether it fails.
        tries: the maximum number of calls of `fails`.
    """
    left = tries

    def still_fails(ops: Sequence[Op]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(schedule.with_ops(ops))

    ops = list(schedule.ops)
    parts = 2
    while len(ops) > 1 and left > 0:
        for smaller in _without_a_part(ops, parts):
            if still_fails(smaller):
                ops, parts = smaller, max(parts - 1, 2)
                break
        else:
            if parts >= len(ops):
                break
            parts = min(parts * 2, len(ops))
    for index in range(len(ops)):
        for inner in reversed(range(len(ops[index].during))):
            op = ops[index]
            kept = op.during[:inner] + op.during[inner + 1 :]
            smaller = [*ops[:index], Op(op.does, op.given, kept), *ops[index + 1 :]]
            if still_fails(smaller):
                ops = smaller
    return schedule.with_ops(ops)


def _without_a_part(ops: Sequence[Op], parts: int) -> Iterator[list[Op]]:
    size = max(1, -(-len(ops) // parts))
    # Starts at the end, to remove the operations after the failure first.
    for start in reversed(range(0, len(ops), size)):
        kept = [*ops[:start], *ops[start + size :]]
        if kept:
            yield kept

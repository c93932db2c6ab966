"""Reconciles the buckets of a table's keys in rotation, as the `reconcile` option specifies.

All keys are compared once within the time `every`. The buckets of a large table are split into
eight groups, which are compared at equal intervals. A small table has one group. The pauses between
comparisons are long enough for comparisons to take at most the share `budget` of the total time.
The history of comparisons shows which groups are due. A bucket is recorded only after its
differences were appended, so if a run crashes or the history is lost, comparisons are merely
repeated.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from loader.formatting import format_count, format_duration
from loader.lake.ledger import SyncRecord
from loader.reconcile.history import BUCKETS, LastComparison, VerificationHistory
from loader.reconcile.reconciliation import Finding, Reconciliation, explain_skip
from loader.spec.options import ReconcileOptions
from loader.sync.ownership import select_own_rows
from loader.sync.protocol import sync_locked_table
from loader.sync.runner import Work
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import FULL_REFRESH

_GROUPS = 8
"""The number of groups for a large table. Comparisons read all keys, so more groups cost more."""

SMALL_ROWS = 100_000
"""Tables with fewer rows have one group. In a small group, a few deletes could be more than a tenth
of the rows, and :func:`loader.reconcile.repair.has_too_many_deletes` would reject them."""

COMPARING_SINCE = "strandline.comparing-since"
"""The raw table's property that stores when the running comparison began; otherwise empty.

The value remains if the process is killed during a comparison, for example for lack of memory.
"""

_NEGLIGIBLE_SECONDS = 0.5
"""The budget does not limit comparisons that take no longer than this."""


@dataclass(frozen=True)
class Attempt:
    """The last comparison of a table, whether it succeeded or not.

    Attributes:
        ended: the end of the comparison in seconds since 1970; 0 if there was no comparison.
        seconds: the duration of the comparison; 0 if unknown.
    """

    ended: float = 0.0
    seconds: float = 0.0
    buckets: int = BUCKETS

    @classmethod
    def find_last(cls, compared: Mapping[int, LastComparison]) -> Attempt:
        """Returns the latest recorded comparison.

        The history records only when the source was opened, so the returned end is too early if the
        sync before the comparison took a long time.
        """
        at = max((each.at for each in compared.values()), default=0.0)
        newest = [each.seconds for each in compared.values() if each.at == at]
        return cls(at + sum(newest), sum(newest), len(newest) or BUCKETS)

    def seconds_for_all(self) -> float:
        """Estimates how many seconds it takes to compare all keys."""
        return self.seconds * BUCKETS / self.buckets


def choose_due_buckets(
    compared: Mapping[int, LastComparison],
    last: Attempt,
    options: ReconcileOptions,
    clock: float,
    groups: int,
) -> tuple[int, ...]:
    """Returns the buckets to compare now; empty if no bucket is due.

    Groups are due at intervals of `every` / `groups`, so that each group is compared again within
    `every`. A bucket that was never compared is treated as if the first comparison had included it.
    A bucket with unrepaired differences is always due. If the budget does not cover all due
    buckets, buckets with unrepaired differences alternate with the other due buckets, because some
    differences are never repaired.

    After a comparison that takes d seconds, the next comparison starts at least d / budget seconds
    after the start of the first. So comparisons never take more than the share `budget` of the
    time.

    Args:
        compared: the last comparison of each bucket. Times in the future are ignored, because they
            mean that the clock was set back.
        clock: the current time in seconds since 1970.
    """
    size = BUCKETS // groups
    unrepaired = [number for number, each in compared.items() if each.has_unrepaired]
    unrepaired.sort(key=lambda number: (compared[number].at, number))
    times = {
        number: each.at
        for number, each in compared.items()
        if each.at <= clock and not each.has_unrepaired
    }
    first = min(times.values(), default=clock)
    others = sorted(
        set(range(BUCKETS)).difference(unrepaired),
        key=lambda number: (times.get(number, first), number in times, number),
    )
    ages = [clock - times.get(number, first) for number in others[::size]]
    step = options.seconds / groups
    count = next(
        count
        for count in range(groups + 1)
        if all(
            age + (index - count) * step < options.seconds
            for index, age in enumerate(ages)
            if index >= count
        )
    )
    if not times:
        count = 1  # begins a rotation
    due, later = others[: count * size], others[count * size :]
    newest = max((each.at for each in compared.values() if each.at <= clock), default=0.0)
    was_tried = any(compared[number].at == newest for number in unrepaired)
    due = [*due, *unrepaired] if was_tried else [*unrepaired, *due]
    count = math.ceil(len(due) / size)
    share, idle = options.share, clock - last.ended
    was_set_back = idle < -last.seconds
    if share < 1 and last.seconds > _NEGLIGIBLE_SECONDS and not was_set_back:
        paid = idle * share / (1 - share)
        if paid < last.seconds:
            return ()
        count = min(count, max(1, int(paid / (last.seconds_for_all() / groups))))
    return tuple([*due, *later][: count * size])


class Rotation:
    """Decides for which tables a run reconciles some buckets after the sync.

    Keeps the last comparisons in memory, so that only the first run of a process reads the history.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._compared: dict[tuple[str, str, str], dict[int, LastComparison]] = {}
        self._attempts: dict[tuple[str, str, str], Attempt] = {}
        self._schemas: set[str] = set()
        self._loading = threading.Lock()

    def __call__(self, sync: SyncContext) -> Work | None:
        plan, options = sync.plan, sync.plan.options.rotation
        if options is None or plan.mode == FULL_REFRESH or not sync.lake.exists(plan.lake_table):
            return None
        reason = explain_skip(plan)
        if plan.follows_log:
            reason = "sync_mode: cdc reads all changes from the log"
        if reason:
            sync.warn(f"the `reconcile` option has no effect: {reason}")
            return None
        try:
            self._load_history(sync)
        except Exception as error:
            return partial(_sync_and_raise, error=error)
        key = _find_key(sync)
        compared = self._compared.get(key, {})
        numbers = choose_due_buckets(
            compared,
            self._attempts.get(key) or Attempt.find_last(compared),
            options,
            self.clock(),
            1 if _is_small(sync, compared) else _GROUPS,
        )
        if not numbers or self._waits_after_kill(sync, options):
            return None
        return partial(self._sync_and_compare, numbers=numbers)

    def _waits_after_kill(self, sync: SyncContext, options: ReconcileOptions) -> bool:
        """Returns whether to wait. True if a comparison that started only recently was killed.

        Without the wait, a comparison that needs more memory than is available would kill every
        run.
        """
        plan = sync.plan
        began = sync.lake.properties(plan.lake_table).get(COMPARING_SINCE)
        if not began:
            return False
        step = options.seconds / _GROUPS
        waits = 0 <= self.clock() - float(began) < step
        if waits:
            sync.warn(
                "the process was killed during its last comparison, for example for lack of "
                "memory. The comparison is repeated after an eighth of reconcile.every "
                f"({format_duration(step)}), or now by `loader reconcile --repair "
                f"--select {plan.name}`"
            )
        return waits

    def _load_history(self, sync: SyncContext) -> None:
        schema = sync.lake.schema
        with self._loading:
            if schema not in self._schemas:
                found = VerificationHistory(sync.lake).last_comparisons(BUCKETS)
                self._compared |= {(schema, *table): each for table, each in found.items()}
                self._schemas.add(schema)

    def _sync_and_compare(self, sync: SyncContext, numbers: tuple[int, ...]) -> SyncRecord:
        """Syncs a table, then compares and repairs some buckets.

        Returns the sync's ledger row, with the rows of a second sync and of the repair added to it.
        """
        key = _find_key(sync)
        with sync.unlock_at_end():
            record = sync_locked_table(sync)
            began, table = time.monotonic(), sync.plan.lake_table
            sync.lake.set_properties(table, {COMPARING_SINCE: str(self.clock())})
            try:
                finding = Reconciliation(repairs=True).compare(sync, numbers)
            finally:
                with suppress(Exception):  # Spark's JVM may have run out of memory and exited
                    sync.lake.set_properties(table, {COMPARING_SINCE: ""})
                seconds = time.monotonic() - began
                attempt = Attempt(self.clock(), seconds, len(numbers))
                self._attempts[key] = attempt
        self._compared.setdefault(key, {}).update(
            {
                bucket.bucket: LastComparison(
                    bucket.verified_at.timestamp(),
                    bucket.seconds or 0.0,
                    bucket.rows_snapshot,
                    bucket.has_unrepaired,
                )
                for bucket in finding.verified
            }
        )
        _report(sync, finding, attempt)
        return _add_repair(record, finding)


def _find_key(sync: SyncContext) -> tuple[str, str, str]:
    return sync.lake.schema, sync.plan.source, sync.plan.lake_table


def _is_small(sync: SyncContext, compared: Mapping[int, LastComparison]) -> bool:
    """Returns whether the table has few rows, estimated from the last comparisons if possible."""
    if compared:
        rows = sum(each.rows for each in compared.values()) * BUCKETS // len(compared)
    else:
        rows = select_own_rows(sync.plan, sync.lake.frame(sync.plan.lake_table)).count()
    return rows < SMALL_ROWS


def _sync_and_raise(sync: SyncContext, error: Exception) -> SyncRecord:
    with sync.unlock_at_end():
        sync_locked_table(sync)
        raise error


def _report(sync: SyncContext, finding: Finding, attempt: Attempt) -> None:
    found = f"{len(finding.verified)} of {finding.buckets} buckets of its keys were compared"
    if finding.distrusted:
        sync.warn(
            f"{found}: {finding.total('missed_deletes')} of {finding.total('rows_snapshot')} rows "
            "(more than a tenth) are missing from the source, so no deletes were appended, and the "
            f"next comparison repeats this one.{_describe_repaired(finding)} Check the source; if "
            "the rows were deleted, run `loader reconcile --repair --allow-deletes --select "
            f"{sync.plan.name}`"
        )
    elif finding.total("all_missed"):
        sync.warn(
            f"{found} with the source, and {_describe_missed(finding)} and "
            f"{format_count(finding.total('missed_deletes'), 'missed delete')} were appended"
        )
    options = sync.plan.options.rotation
    assert options is not None
    needed = attempt.seconds_for_all() / options.share
    is_limited = options.share < 1 and attempt.seconds > _NEGLIGIBLE_SECONDS
    if is_limited and needed > options.seconds:
        sync.warn(
            f"{found} in {attempt.seconds:.0f} s: with reconcile.budget {options.budget}, all keys "
            f"are compared in {format_duration(needed)}, not in reconcile.every "
            f"{options.every}. Set a larger budget or a longer interval"
        )


def _describe_repaired(finding: Finding) -> str:
    if not finding.total("all_repaired"):
        return ""
    return f" {_describe_missed(finding, ' and ')} were appended."


def _describe_missed(finding: Finding, separator: str = ", ") -> str:
    updates = format_count(finding.total("missed_updates"), "missed update")
    return f"{updates}{separator}{format_count(finding.total('missed_rows'), 'missed row')}"


def _add_repair(record: SyncRecord, finding: Finding) -> SyncRecord:
    total = record
    for later in finding.records:
        total = replace(total.plus(later), complete_until=record.complete_until)
    return total.finish()

"""Each invariant passes on correct data and otherwise names the violation."""

from __future__ import annotations

import pytest

from benchmarks.nemesis import findings
from benchmarks.nemesis.findings import Version, Violation


def _version(key: int, note: str, batch: int, cursor: int, **more: int | bool) -> Version:
    given = {"deleted": False, "generation": 1, "seq": 0, "hash": hash(note), **more}
    return Version((key,), note, cursor=cursor, batch=batch, **given)  # type: ignore[arg-type]


RAW = [_version(1, "a", 1, 10), _version(2, "b", 1, 11, seq=1), _version(1, "c", 2, 12)]


def test_the_newest_version_is_by_generation_cursor_batch_and_place() -> None:
    late = _version(1, "late", 3, 5)
    overruling = _version(1, "overruling", 4, 1, generation=2)
    assert findings.newest([*RAW, late])[(1,)].note == "c"
    assert findings.newest([*RAW, late, overruling])[(1,)].note == "overruling"


def test_a_source_that_equals_the_raw_table_passes() -> None:
    findings.same_as_source("t", {(1,): "c", (2,): "b"}, RAW, ())


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ({(1,): "c", (2,): "b", (3,): "x"}, "lost"),
        ({(1,): "d", (2,): "b"}, "stale"),
        ({(1,): "c"}, "left over"),
    ],
)
def test_a_difference_from_the_source_is_named(source: dict[tuple[int], str], what: str) -> None:
    with pytest.raises(Violation, match=rf"{what} \[\(+[123]"):
        findings.same_as_source("t", source, RAW, ())
    findings.same_as_source("t", source, RAW, [(1,), (2,), (3,)])


def test_a_version_that_was_there_before_the_sync_is_missed() -> None:
    findings.nothing_seen_is_missing("t", {(1,): "a"}, RAW, ())
    with pytest.raises(Violation, match="not in raw"):
        findings.nothing_seen_is_missing("t", {(1,): "z"}, RAW, ())


def test_a_duplicate_is_named() -> None:
    findings.nothing_twice("t", [*RAW, _version(1, "a", 3, 10, generation=2)])
    with pytest.raises(Violation, match="twice"):
        findings.nothing_twice("t", [*RAW, _version(1, "a", 3, 10)])


def test_batches_have_no_gap_and_positions_are_unique() -> None:
    findings.whole_batches("t", RAW, compacted=False)
    with pytest.raises(Violation, match="batches"):
        findings.whole_batches("t", [_version(1, "a", 2, 1)], compacted=False)
    findings.whole_batches("t", [_version(1, "a", 2, 1)], compacted=True)
    with pytest.raises(Violation, match="taken twice"):
        findings.whole_batches("t", [*RAW, _version(5, "e", 1, 10)], compacted=False)


def test_tables_that_differ_are_named() -> None:
    findings.same_rows("t", ["a", "a", "b"], ["a", "b", "a"])
    with pytest.raises(Violation, match=r"lacks \['a'\], has beside \['c'\]"):
        findings.same_rows("t", ["a", "c"], ["a", "a"])

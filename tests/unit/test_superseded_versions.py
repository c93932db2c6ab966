"""Which superseded versions compaction may remove: the rules that need no Spark."""

from __future__ import annotations

import pytest

from loader.maintenance.dependents import Dependent
from loader.maintenance.superseded_versions import RemovalAccount, build_lowest_sql, explain_refusal
from loader.property_codec import decode_property, encode_property


def dependent(
    history: bool = False,
    key: tuple[str, ...] = ("id",),
    cursor: str | None = "at",
    raw: frozenset[str] = frozenset({"raw.orders"}),
) -> Dependent:
    return Dependent("mart.orders", history, raw, {"raw.orders": 7}, key, cursor)


def test_a_watermark_is_read_in_both_forms() -> None:
    text = '{"primary_key": ["naïve_url"]}'
    assert decode_property(text) == decode_property(encode_property(text)) == text


class TestRefusal:
    def test_without_a_key_nothing_is_removed(self) -> None:
        assert "no primary key" in explain_refusal((), "at", [])

    @pytest.mark.parametrize(
        ("one", "agrees"),
        [
            (dependent(), True),
            (dependent(key=("ID",), cursor="AT"), True),
            (dependent(key=("email",)), False),
            (dependent(cursor=None), False),
            (dependent(cursor="created_at"), False),
            (dependent(history=True), True),
            (dependent(history=True, key=("email",)), False),
        ],
    )
    def test_a_dependent_table_that_needs_other_versions(
        self, one: Dependent, agrees: bool
    ) -> None:
        assert (explain_refusal(("id",), "at", [one]) == "") is agrees

    def test_a_dependent_table_with_a_coarser_key(self) -> None:
        finer = ("id", "line")
        assert explain_refusal(finer, "at", [dependent()]) == ""
        reported = explain_refusal(finer, "at", [dependent(history=True)])
        assert reported == "mart.orders needs other versions: its key is id, ordered by at"


def test_a_dependent_table_reads_the_raw_tables_of_its_watermark() -> None:
    assert dependent().reads("RAW.Orders")
    assert not dependent().reads("raw.items")


def test_the_lowest_value_of_the_last_windows() -> None:
    assert build_lowest_sql([None, None], "int") == "cast(null as int)"
    assert build_lowest_sql(["it's", None], "string") == "cast('it\\'s' as string)"
    assert (
        build_lowest_sql(["1", "2"], "bigint") == "least(cast('1' as bigint), cast('2' as bigint))"
    )


class TestRemoved:
    @pytest.mark.parametrize(
        "removed",
        [
            RemovalAccount(),
            RemovalAccount(4, 100),
            RemovalAccount(9, 100, 5, "8123456789012345678"),
        ],
    )
    def test_is_read_back_unchanged(self, removed: RemovalAccount) -> None:
        assert RemovalAccount.of(removed.properties()) == removed

    def test_of_a_table_that_was_never_compacted(self) -> None:
        assert RemovalAccount.of({}) == RemovalAccount()

    def test_another_format_is_refused(self) -> None:
        with pytest.raises((ValueError, KeyError, TypeError)):
            RemovalAccount.of({"strandline.compacted": '{"rows": 1}'})

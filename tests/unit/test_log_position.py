"""Log positions, the transactions that a snapshot sees, and the contents of a table's mark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loader.cdc.catalog_changes import describe_reverted_change, has_rewritten_columns
from loader.cdc.position import (
    Mark,
    VisibleTransactions,
    format_position,
    is_visible,
    parse_position,
)
from loader.cdc.table_definition import LoggedColumn, describe_alteration, list_by_number


@pytest.mark.parametrize("text", ["0/0", "0/1AFD350", "16/B374D848", "FFFFFFFF/FFFFFFFF"])
def test_positions_are_read_back_unchanged(text: str) -> None:
    assert format_position(parse_position(text)) == text


@pytest.mark.parametrize("text", ["", "1AFD350", "0/", "x/1", "0/1AFD35000"])
def test_invalid_positions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a position"):
        parse_position(text)


def test_positions_are_ordered() -> None:
    assert parse_position("1/0") > parse_position("0/FFFFFFFF")


def _list_visible(spark: SparkSession, snapshot: VisibleTransactions, *numbers: int) -> list[int]:
    """Returns the transactions that a snapshot sees."""
    ids = f.lit([*numbers]).cast("array<bigint>")
    rows = spark.range(1).select(f.explode(ids).alias("number"))
    return [number for (number,) in rows.where(is_visible(snapshot, f.col("number"))).collect()]


def test_a_snapshot_sees_what_had_committed(spark: SparkSession) -> None:
    seen = VisibleTransactions.parse("100:110:100,105", until=7)
    assert _list_visible(spark, seen, *range(98, 113)) == [
        *(98, 99, 101, 102, 103, 104, 106, 107, 108, 109)
    ]
    assert seen.text == "100:110:100,105"
    assert VisibleTransactions.parse("100:100:", until=7).open == ()


def test_transaction_ids_of_32_bits_are_compared_with_those_of_64(spark: SparkSession) -> None:
    beyond = 3 * 2**32
    seen = VisibleTransactions.parse(f"{beyond + 10}:{beyond + 20}:{beyond + 12}", until=7)
    before = 2**32 - 5  # just before the ids wrapped around
    assert _list_visible(spark, seen, 5, 11, 12, 19, 20, 25, before) == [5, 11, 19, before]
    low = VisibleTransactions.parse(f"{beyond - 3}:{beyond + 2}:", until=7)
    assert _list_visible(spark, low, 2**32 - 4, 2) == [2**32 - 4]


def test_a_mark_is_read_back_unchanged() -> None:
    mark = Mark(
        parse_position("0/10"),
        "slot",
        "7/1",
        VisibleTransactions(1, 5, (3,), parse_position("0/30")),
        {"1": "id int"},
    )
    assert Mark.from_dict(mark.to_dict()) == mark
    parted = replace(mark, published="7/800/9/801")
    parted = parted.move_to(parse_position("0/20"), {"1": "id int"}, ["16400", "9"])
    assert Mark.from_dict(parted.to_dict()) == parted
    assert parted.to_dict()["partitions"] == ["9", "16400"]
    assert Mark.from_dict(None) is None
    assert Mark.from_dict({"since": None, "xmin": "7"}) is None  # the mark of a cursor


def test_the_snapshot_is_dropped_once_the_log_was_read_past_it() -> None:
    mark = Mark(
        parse_position("0/10"), "slot", "", VisibleTransactions(1, 5, (3,), parse_position("0/30"))
    )
    assert mark.move_to(parse_position("0/20"), {}).snapshot == mark.snapshot
    assert mark.move_to(parse_position("0/30"), {}).snapshot is None
    assert mark.move_to(parse_position("0/5"), {}).position == mark.position


def test_table_changes_that_the_log_lacks_are_detected() -> None:
    key = LoggedColumn(1, "id", "int4", declared="integer")
    name = LoggedColumn(2, "name", "text", declared="text")
    before = list_by_number([key, name])
    assert describe_alteration(before, [key, name]) == ""
    assert describe_alteration(before, [key]) == ""  # dropped
    assert (
        describe_alteration(before, [key, name, LoggedColumn(3, "note", "text", declared="text")])
        == ""
    )
    added = LoggedColumn(3, "note", "text", declared="text", has_default=True)
    assert (
        describe_alteration(before, [key, name, added])
        == "the column note was added with a default"
    )
    renamed = LoggedColumn(2, "title", "text", declared="text")
    assert describe_alteration(before, [key, renamed]) == "the column name text was altered"
    assert describe_alteration(before, [LoggedColumn(1, "id", "int8", declared="bigint"), name])
    assert describe_alteration({}, [key, name]) == ""  # a mark that does not record columns


def test_changes_that_were_reverted_are_detected() -> None:
    kinds = ("column 1", "column 2", "index 7", "partition 8", "table 9")
    before = {**dict.fromkeys(kinds, "7 aa"), "files": "f aa", "identity 9": "d aa"}
    assert (
        describe_reverted_change(before, before)
        == describe_reverted_change({}, before)
        == describe_reverted_change(before, {})
        == ""
    )
    assert describe_reverted_change(before, {**before, "column 1": "8 bb"}) == ""  # a new default
    assert describe_reverted_change(before, {**before, "partition 10": "8 aa"}) == ""
    for name in ("index 7", "partition 8", "table 9"):
        assert describe_reverted_change(before, {**before, name: "8 aa"}), name
    one = {**before, "column 1": "8 aa"}  # same DDL twice, or renamed and back
    assert describe_reverted_change(before, one) == ""
    assert has_rewritten_columns(before, one)
    assert not has_rewritten_columns(before, {**before, "column 1": "8 bb"})
    assert describe_reverted_change(
        before, {**one, "column 2": "8 aa"}
    )  # two columns may have swapped their names for a while
    assert describe_reverted_change(before, {**one, "files": "g aa"})  # the table was rewritten
    assert describe_reverted_change(before, {**before, "files": "g aa"}) == ""  # `vacuum full`
    assert (
        describe_reverted_change(before, {**before, "identity 9": "f aa"})
        == "its replica identity was changed"
    )
    mark = Mark(parse_position("0/10"), "slot", catalog=before)
    assert Mark.from_dict(mark.to_dict()) == mark

"""A table's plan: its options are checked against its columns, without a source."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as t

from loader.errors import TableError
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import Bounds
from loader.sources.interface import SourceTable, TableRef
from loader.spec.options import TableOptions
from loader.state import TableState
from loader.sync.plan_window import advance_state
from loader.sync.recover import PriorState
from loader.sync.table_plan import FULL_REFRESH, INCREMENTAL, TablePlan, plan_table

COLUMNS = {
    "id": t.IntegerType(),
    "Updated": t.TimestampType(),
    "amount": t.DecimalType(10, 2),
    "note": t.StringType(),
    "gone": t.BooleanType(),
    "body": t.BinaryType(),
}


def _table(**more: Any) -> SourceTable:
    fields = [t.StructField(name, kind) for name, kind in COLUMNS.items()]
    return SourceTable(TableRef("orders"), t.StructType(fields), **{"primary_key": ("id",), **more})


def _plan(
    full_refresh: bool = False, table: SourceTable | None = None, **options: Any
) -> TablePlan:
    return plan_table("shop", table or _table(), TableOptions(**options), full_refresh)


def test_options_name_columns_in_any_case() -> None:
    planned = _plan(cursor_field="UPDATED", primary_key=["ID"], deleted_field="Gone")
    assert planned.cursor is not None
    assert (planned.cursor.name, planned.cursor.type) == ("Updated", CursorType.TIMESTAMPTZ)
    assert (planned.key, planned.deleted) == (("id",), "gone")
    assert planned.mode == INCREMENTAL


def test_a_misspelt_system_column_gets_a_suggestion() -> None:
    table = _table(system_cursors=("xmin",))
    with pytest.raises(TableError, match=r"'xmn'.*Did you mean `xmin`\?.*, and the cursor xmin"):
        _plan(table=table, cursor_field="xmn")


@pytest.mark.parametrize(
    ("declared", "configured", "key", "authoritative"),
    [
        (("id",), None, ("id",), True),
        (("id",), ["id", "note"], ("id", "note"), True),
        (("id", "note"), ["id"], ("id",), False),
        ((), ["id"], ("id",), False),
        ((), None, (), False),
    ],
)
def test_a_key_is_authoritative_if_it_is_unique_in_the_source(
    declared: tuple[str, ...],
    configured: list[str] | None,
    key: tuple[str, ...],
    authoritative: bool,
) -> None:
    options = {} if configured is None else {"primary_key": configured}
    planned = _plan(table=_table(primary_key=declared), cursor_field="id", **options)
    assert (planned.key, planned.is_authoritative) == (key, authoritative)


def test_a_full_refresh_needs_no_cursor() -> None:
    for planned in (_plan(full_refresh=True), _plan(sync_mode=FULL_REFRESH)):
        assert (planned.mode, planned.cursor) == (FULL_REFRESH, None)
    assert _plan(full_refresh=True, cursor_field="id").cursor is not None


def test_the_connectors_cursor_is_the_default() -> None:
    own = _table(cursor_field="id")
    assert _plan(table=own).cursor == _plan(cursor_field="id").cursor
    assert _plan(table=own, cursor_field="note").cursor == _plan(cursor_field="note").cursor


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, r"needs a cursor.*\(candidates: Updated\), or sync_mode: full_refresh"),
    ({"cursor_field": "updatd"}, r"no column 'updatd'. Did you mean `Updated`\?"),
    ({"cursor_field": "body"}, "of type binary cannot be a cursor"),
    ({"cursor_field": "id", "primary_key": ["no"]}, "primary_key: there is no column 'no'"),
    ({"cursor_field": "id", "deleted_field": "note"}, "of type string cannot mark deleted rows"),
    ({"cursor_field": "id", "lookback": "1 day"}, "Use a whole number"),
    ({"cursor_field": "Updated", "lookback": 5}, "Use a duration"),
    ({"cursor_field": "note", "lookback": 5}, "string cursors do not support a lookback"),
    ({"cursor_field": "id", "initial_cursor": "x"}, "not a value of the column's type, integer"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_options_that_do_not_fit_the_columns_are_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(TableError, match=said):
        _plan(**options)


def test_a_collated_text_cursor_needs_an_authoritative_key() -> None:
    collated = frozenset({"note"})
    with pytest.raises(TableError, match="cannot tell which of a key's versions is the newest"):
        _plan(
            table=_table(primary_key=(), collated=collated), primary_key=["id"], cursor_field="note"
        )
    assert _plan(table=_table(collated=collated), cursor_field="note").is_authoritative


@pytest.mark.parametrize("name", ["_cq_batch", "_CQ_SEQ", "_cq_mine"])
def test_reserved_column_names_are_refused(name: str) -> None:
    schema = t.StructType([t.StructField(name, t.IntegerType())])
    with pytest.raises(TableError, match=f"the source has a column '{name}'"):
        plan_table("shop", SourceTable(TableRef("orders"), schema), TableOptions(cursor_field=name))


def _create_prior_state(batch: int, cursor: int | None) -> PriorState:
    at = None if cursor is None else Cursor(str(cursor), CursorType.INTEGER)
    return PriorState(
        TableState(batch=batch, cursor=at, cursor_field="id", mark={"at": 1}), batch + 1
    )


@pytest.mark.parametrize(
    ("known", "after", "future", "settled", "cursor", "mark"),
    [
        (_create_prior_state(3, 5), 5, 0, False, 5, 1),
        (
            _create_prior_state(3, 5),
            7,
            0,
            False,
            7,
            2,
        ),  # set back before: the raw table has the rows in between
        (
            _create_prior_state(3, 5),
            7,
            1,
            False,
            5,
            1,
        ),  # 7 is the clock's time, not the cursor of a row
        (_create_prior_state(3, 5), 5, 0, True, 5, 2),  # late rows have arrived
        (
            _create_prior_state(0, None),
            7,
            0,
            False,
            None,
            1,
        ),  # before the first batch nothing is stored
    ],
)
def test_without_new_rows_the_cursor_follows_the_raw_table(
    known: PriorState, after: int, future: int, settled: bool, cursor: int | None, mark: int
) -> None:
    wanted = TableState(
        batch=known.next_batch, cursor=Cursor(str(after), CursorType.INTEGER), cursor_field="id"
    )
    bounds = Bounds(0, future=future, must_store_mark=settled, mark={"at": 2})
    state = advance_state(known, wanted, bounds)
    assert state.batch == known.state.batch
    assert (state.cursor.order if state.cursor else None, state.mark) == (cursor, {"at": mark})

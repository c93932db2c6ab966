"""The test suite that every state backend must pass.

Subclass :class:`StateBackendContract` and define four fixtures::

    class TestMine(StateBackendContract):
        @pytest.fixture
        def reopened(self, tmp_path): return lambda: MyState(MyOptions(path=tmp_path), location)
        @pytest.fixture
        def backend(self, reopened): …              # prepared, empty
        @pytest.fixture
        def plant(self, backend): …                 # stores a row without checks
        @pytest.fixture(params=["down", "read-only"])
        def broken(self, request): …                # a backend whose store is down or read-only
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from loader.errors import StateError
from loader.rows.cursor import Cursor, CursorType
from loader.state import StateBackend, StateRow, TableState

KEY = "shop.orders"

CURSORS = [
    (CursorType.INTEGER, "9007199254740993"),
    (CursorType.INTEGER, "-170141183460469231731687303715884105728"),
    (CursorType.DECIMAL, "12345678901234567890.01234567890"),
    (CursorType.DOUBLE, "0.30000000000000004"),
    (CursorType.DATE, "2024-02-29"),
    (CursorType.TIMESTAMP, "2025-01-01 00:00:00"),
    (CursorType.TIMESTAMP, "2024-11-03 01:30:00.000001"),
    (CursorType.TIMESTAMPTZ, "9999-12-31 23:59:59.999999"),
    (CursorType.STRING, 'it\'s \\ "é" 😀 \t%s :name ${x} `{}`'),
    (CursorType.STRING, " padded "),
    (CursorType.STRING, "\x00\n\r\x7f"),
    (CursorType.STRING, ""),
]
KEYS = [
    "shop.Orders",
    "SHOP.orders",
    "shop.dbo.orders",
    "shop.a/b\\c",
    "shop.../etc/passwd",
    'shop.it\'s "q" `b` %s :k *?[x]',
    "shop.заказы-é-e\u0301-😀",
    "shop." + "long" * 100,
    "shop." + "long" * 100 + "er",
    "shop.orders.json",
    "shop.orders_",
    "shopXorders",
]
FOREIGN = [
    "2025-01-01T00:00:00Z",
    "",
    "null",
    "[]",
    '"text"',
    "42",
    "{}",
    '{"cursor": "2025-01-01"}',
    '{"batch": "3"}',
    '{"batch": 3.5}',
    '{"batch": -1}',
    '{"batch": true}',
    '{"batch": 3, "cursor": "x"}',
    '{"batch": 3, "cursor": 5, "cursor_type": "integer"}',
    '{"batch": 3, "cursor": "x", "cursor_type": "integer"}',
    '{"batch": 3, "cursor": "5", "cursor_type": "uuid"}',
    '{"batch": 3, "generation": 0}',
    '{"batch": 3, "mark": "x"}',
    '{"batch": 3',
]


class Plant(Protocol):
    """Stores a row without checks, as another tool could. If `version` is None, it is null."""

    def __call__(self, key: str, value: str, version: int | None) -> None: ...


def at(batch: int, cursor: str | None = None, **changes: Any) -> TableState:
    """Returns a state with an integer cursor."""
    parsed = Cursor.parse(cursor, CursorType.INTEGER) if cursor is not None else None
    return TableState(batch=batch, cursor=parsed, cursor_field="id" if parsed else None, **changes)


class StateBackendContract:
    """The tests for a state backend. The module's docstring describes how to use them.

    Attributes:
        rounds: the number of repetitions of the test with concurrent writers.
    """

    rounds = 10

    def test_an_empty_backend_returns_nothing(self, backend: StateBackend) -> None:
        assert backend.rows() == []
        assert backend.rows(KEY) == []
        assert backend.newest(KEY) is None
        assert backend.read(KEY) is None

    def test_a_backend_that_was_never_prepared_is_empty(
        self, reopened: Callable[[], StateBackend]
    ) -> None:
        assert reopened().rows() == []
        assert reopened().read(KEY) is None

    def test_preparing_again_keeps_existing_rows(
        self, backend: StateBackend, reopened: Callable[[], StateBackend]
    ) -> None:
        backend.write(KEY, at(1, "1"))
        reopened_backend = reopened()
        reopened_backend.prepare()
        reopened_backend.prepare()
        assert reopened_backend.read(KEY) == at(1, "1")

    def test_each_change_is_a_version_and_the_newest_wins(self, backend: StateBackend) -> None:
        for batch in (1, 2, 3):
            written = backend.write(KEY, at(batch, str(batch)))
            assert written is not None
            assert written.version == batch
        assert backend.write(KEY, at(3, "3")) is None  # an equal value is not a change
        assert [row.version for row in backend.rows(KEY)] == [3, 2, 1]
        assert [row.value for row in backend.rows(KEY)] == [
            at(n, str(n)).to_json() for n in (3, 2, 1)
        ]
        assert backend.read(KEY) == at(3, "3")
        assert backend.newest(KEY) == backend.rows(KEY)[0]
        assert all(row.updated_at for row in backend.rows())

    def test_no_version_follows_the_highest_possible_version(
        self, backend: StateBackend, plant: Plant
    ) -> None:
        plant(KEY, at(1).to_json(), 2**63 - 1)
        with pytest.raises(StateError, match="leaves no room"):
            backend.write(KEY, at(2))

    def test_versions_are_numbers_not_texts(self, backend: StateBackend) -> None:
        for batch in range(1, 12):
            backend.write(KEY, at(batch))
        assert [row.version for row in backend.rows(KEY)] == list(range(11, 0, -1))
        assert backend.read(KEY) == at(11)

    def test_keys_are_exact(self, backend: StateBackend) -> None:
        for number, key in enumerate(KEYS, start=1):
            backend.write(key, at(number))
        assert {key: backend.read(key) for key in KEYS} == {
            key: at(number) for number, key in enumerate(KEYS, start=1)
        }
        assert [row.key for row in backend.rows()] == sorted(KEYS)
        assert backend.read("shop.%") is None
        assert backend.read("shop.*") is None

    def test_a_cursor_is_read_as_it_was_written(
        self, backend: StateBackend, reopened: Callable[[], StateBackend]
    ) -> None:
        states = {
            f"shop.t{n}": TableState(
                7, 2, Cursor(text, kind), 'the "cursor"', {"since": text, "xmin": n}
            )
            for n, (kind, text) in enumerate(CURSORS)
        }
        for key, state in states.items():
            backend.write(key, state)
        reopened_backend = reopened()
        assert {key: reopened_backend.read(key) for key in states} == states
        assert {row.key: row.value for row in reopened_backend.rows()} == {
            key: state.to_json() for key, state in states.items()
        }

    def test_long_values(self, backend: StateBackend) -> None:
        state = TableState(1, 1, Cursor("é'\\" * 50_000, CursorType.STRING), "c")
        backend.write(KEY, state)
        assert backend.read(KEY) == state

    def test_a_null_version_is_treated_as_0(self, backend: StateBackend, plant: Plant) -> None:
        plant(KEY, at(1, "1").to_json(), None)
        assert [(row.version, row.value) for row in backend.rows()] == [(0, at(1, "1").to_json())]
        assert backend.read(KEY) == at(1, "1")
        written = backend.write(KEY, at(2, "2"))
        assert written is not None
        assert written.version == 1
        assert backend.read(KEY) == at(2, "2")

    @pytest.mark.parametrize(
        ("one", "other", "safe"),
        [
            (at(3, "9"), at(4, "10"), at(3, "9")),
            (at(3, "9"), at(3, "10"), at(3, "9")),
            (at(3, "9"), at(3), at(3)),
            (at(3, "9"), at(4), at(3, "9")),
        ],
    )
    def test_the_safer_of_two_values_of_a_version_is_used(
        self,
        backend: StateBackend,
        plant: Plant,
        one: TableState,
        other: TableState,
        safe: TableState,
    ) -> None:
        for values in ((one, other), (other, one)):
            key = f"shop.t{values[0].batch}{values[0].cursor}"
            plant(key, at(1, "1").to_json(), 1)
            for value in values:
                plant(key, value.to_json(), 2)
            warnings: list[str] = []
            assert backend.read(key, warnings.append) == safe
            assert len(warnings) == 1
            assert "2 different values of version 2" in warnings[0]
            written = backend.write(key, at(5, "11"))
            assert written is not None
            assert written.version == 3
            assert backend.read(key, warnings.append) == at(5, "11")
            assert len(warnings) == 1

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (at(3, "9", mark={"xmin": 1}), at(3, "9", mark={"xmin": 2})),
            (
                TableState(3, 1, Cursor("a", CursorType.STRING), "c"),
                TableState(3, 1, Cursor("B", CursorType.STRING), "c"),
            ),
            (at(3, "9"), TableState(3, 1, Cursor("9", CursorType.INTEGER), "other")),
        ],
    )
    def test_conflicting_values_without_a_safer_value_are_refused(
        self, backend: StateBackend, plant: Plant, one: TableState, other: TableState
    ) -> None:
        plant(KEY, one.to_json(), 2)
        plant(KEY, other.to_json(), 2)
        with pytest.raises(StateError, match="cannot be ordered"):
            backend.read(KEY)

    def test_values_of_other_tools_are_refused(self, backend: StateBackend, plant: Plant) -> None:
        for number, value in enumerate(FOREIGN):
            plant(f"shop.t{number}", value, 1)
        for number, value in enumerate(FOREIGN):
            with pytest.raises(StateError, match=r"not written by this loader|cannot be read"):
                raise AssertionError(value, backend.read(f"shop.t{number}"))
        # Such values can still be displayed and exported.
        assert sorted(row.value for row in backend.rows()) == sorted(FOREIGN)
        backend.write("shop.t0", at(2, "2"))  # a user may overwrite an unreadable value
        assert backend.read("shop.t0") == at(2, "2")

    def test_rows_keep_their_version_and_time(
        self, backend: StateBackend, reopened: Callable[[], StateBackend]
    ) -> None:
        rows = [
            StateRow("shop.a", at(5).to_json(), 6, "2024-02-29 23:59:59.25"),
            StateRow("shop.a", at(4).to_json(), 5, "2024-02-28 00:00:00"),
            StateRow("shop.b", at(1).to_json(), 1, "2024-02-28 00:00:00"),
        ]
        backend.append(rows)
        assert reopened().rows() == rows

    def test_a_version_is_written_once(self, backend: StateBackend) -> None:
        backend.append([StateRow(KEY, at(1).to_json(), 1)])
        with pytest.raises(StateError, match=r"version 1 of shop.orders already exists"):
            backend.append([StateRow(KEY, at(2).to_json(), 1)])
        with pytest.raises(StateError, match=r"version 1 of shop.orders already exists"):
            backend.append([StateRow(KEY, at(1).to_json(), 1)])
        assert backend.read(KEY) == at(1)

    def test_a_batch_with_a_refused_row_adds_nothing(self, backend: StateBackend) -> None:
        backend.write(KEY, at(1))
        new_row = StateRow("shop.a", at(1).to_json(), 1)
        with pytest.raises(StateError, match="already exists"):
            backend.append([new_row, StateRow(KEY, at(2).to_json(), 1)])
        assert [row.key for row in backend.rows()] == [KEY]

    def test_the_second_writer_of_a_version_is_refused(
        self, backend: StateBackend, reopened: Callable[[], StateBackend]
    ) -> None:
        for race in range(1, self.rounds + 1):
            barrier = threading.Barrier(2)
            errors: list[StateError | None] = []

            def write(
                cursor: str,
                version: int = race,
                barrier: threading.Barrier = barrier,
                errors: list[StateError | None] = errors,
            ) -> None:
                writer_backend = reopened()
                row = StateRow(KEY, at(version, cursor).to_json(), version)
                barrier.wait(timeout=60)
                errors.append(_refusal(writer_backend, row))

            writers = [threading.Thread(target=write, args=(c,)) for c in "12"]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join(timeout=120)
            assert len(errors) == 2
            [error] = filter(None, errors)
            assert "already exists" in str(error)
        assert [row.version for row in backend.rows(KEY)] == list(range(self.rounds, 0, -1))

    def test_writers_of_different_keys_do_not_disturb_each_other(
        self, backend: StateBackend, reopened: Callable[[], StateBackend]
    ) -> None:
        failed: list[BaseException] = []

        def write(key: str) -> None:
            try:
                writer_backend = reopened()
                for batch in range(1, self.rounds + 1):
                    writer_backend.write(key, at(batch))
            except BaseException as error:
                failed.append(error)

        keys = [f"shop.t{n}" for n in range(4)]
        writers = [threading.Thread(target=write, args=(key,)) for key in keys]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(timeout=300)
        assert failed == []
        assert {key: backend.read(key) for key in keys} == dict.fromkeys(keys, at(self.rounds))
        assert len(backend.rows()) == 4 * self.rounds

    def test_pruning_keeps_the_newest_versions(
        self, backend: StateBackend, plant: Plant, reopened: Callable[[], StateBackend]
    ) -> None:
        other_key = 'shop."it\'s"'
        plant(KEY, at(1).to_json(), None)
        for batch in range(2, 6):
            backend.write(KEY, at(batch))
        for batch in (1, 2, 3):
            backend.write(other_key, at(batch))
        assert backend.floors(3) == {KEY: 2}
        assert backend.floors(10) == {}
        backend.prune(backend.floors(2))
        versions = [(row.key, row.version) for row in reopened().rows()]
        assert versions == [(other_key, 3), (other_key, 2), (KEY, 4), (KEY, 3)]
        backend.prune(backend.floors(1))
        assert reopened().read(KEY) == at(5)
        assert reopened().read(other_key) == at(3)
        backend.prune({})
        assert len(backend.rows()) == 2
        written = backend.write(KEY, at(6))
        assert written is not None
        assert written.version == 5

    def test_pruning_keeps_duplicate_rows_of_the_newest_version(
        self, backend: StateBackend, plant: Plant
    ) -> None:
        for cursor, version in (("1", 1), ("3", 2), ("2", 2)):
            plant(KEY, at(1, cursor).to_json(), version)
        backend.prune(backend.floors(1))
        assert [row.version for row in backend.rows(KEY)] == [2, 2]
        assert backend.read(KEY) == at(1, "2")

    def test_an_error_of_the_store_has_problem_location_and_remedy(
        self, broken: StateBackend
    ) -> None:
        def use() -> None:
            broken.prepare()
            broken.write(KEY, at(1))

        with pytest.raises(StateError) as raised:
            use()
        error = raised.value
        assert error.what
        assert error.where
        assert error.remedy
        assert "hunter22" not in "".join(traceback.format_exception(error))


def _refusal(backend: StateBackend, row: StateRow) -> StateError | None:
    try:
        backend.append([row])
    except StateError as error:
        return error
    return None

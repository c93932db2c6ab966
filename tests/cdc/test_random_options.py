"""`sync_mode: cdc`: random changes of `columns`, `where` and `mask` between random writes.

Longer: STRANDLINE_EXAMPLES=50.
"""

from __future__ import annotations

import random

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.services import Database
from tests.sync.chosen_table import KEYS
from tests.sync.project import Project
from tests.sync.test_random_options import (
    EXAMPLES,
    check_equal,
    create,
    examples,
    load_again,
    refuse,
    spec,
)


@pytest.mark.slow
def test_random_options_between_random_writes(
    project: Project, postgres_database: Database
) -> None:
    """After each run the tables are equal: the log has all deletes and rows that stop matching."""

    @hypothesis.settings(examples, max_examples=max(1, EXAMPLES // 2))
    @hypothesis.given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        chance, key = random.Random(seed), KEYS[0]
        tables = create(postgres_database, chance, follows_log=True)
        for _ in range(5):
            key = chance.choice(KEYS) if chance.random() < 0.1 else key
            for table in tables:
                table.write()
                table.deleted.clear()  # the log has them
            spec(project, postgres_database, tables, key)
            for table in refuse(project, tables, key):
                load_again(project, table, key)
            for table in tables:
                table.note_load(key)
                check_equal(project, table, key)
        for table in tables:
            postgres_database.execute(f"drop table {table.name}")

    check()

"""Columns and conditions that change between writes: the log leads to the chosen source's rows.

Longer: STRANDLINE_EXAMPLES=50.
"""

from __future__ import annotations

import random

import hypothesis
from hypothesis import strategies as st

from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_any_choice import EXAMPLES, check_equal, create, examples, spec


def test_any_choice(project: Project, postgres_database: Database) -> None:
    """Each run leaves nothing: the log has each delete, and each row that leaves the filter."""

    @hypothesis.settings(examples, max_examples=max(1, EXAMPLES // 2))
    @hypothesis.given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        chance = random.Random(seed)
        tables = create(postgres_database, chance, follows_log=True)
        for _ in range(5):
            for table in tables:
                table.write()
                table.deleted.clear()  # the log has them
            spec(project, postgres_database, tables, "")
            ran = project.loader("run")
            assert ran.code == 0, "\n".join([ran.text, *(table.history() for table in tables)])
            for table in tables:
                check_equal(project, table, "")
        for table in tables:
            postgres_database.execute(f"drop table {table.name}")

    check()

"""On PostgreSQL, no row is missed while several sessions write random transactions."""

from __future__ import annotations

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_sweep import CUTS, _appended

KINDS = {"keyed": "timestamptz", "numbered": "int", "plain": "timestamp"}
STEP = st.tuples(
    st.sampled_from([*KINDS] * 4 + ["commit", "commit", "rollback", "sync"]),
    st.integers(0, 3),  # the session; the last one is in autocommit mode
    st.sampled_from(["insert", "insert", "update", "unmoved", "copy", "undone"]),
    st.sampled_from(["0", "50 seconds", "3 minutes", "2 hours", "900 days", "-90 seconds"]),
    st.sampled_from(["microseconds", *CUTS]),
    st.integers(0, 30),
)


class Writers:
    """Sessions that write to three tables as applications do.

    Args:
        suffix: distinguishes the tables from those of other examples.
    """

    def __init__(self, database: Database, suffix: str) -> None:
        self.tables = {f"{kind}_{suffix}": kind for kind in KINDS}
        self.ids = itertools.count(1)
        for table, kind in self.tables.items():
            key = "" if kind == "plain" else " primary key"
            database.execute(
                f"create table {table} (id int{key}, note text, at {KINDS[kind]})",
                f"insert into {table} values (0, '0', {self.cursor(kind, '0', 'day')})",
            )
        self.sessions = [database.connect() for _ in range(4)]
        for session in self.sessions[:3]:
            session.autocommit = False

    @staticmethod
    def cursor(kind: str, behind: str, cut: str) -> str:
        """Returns SQL for a cursor that an application computes from its own clock."""
        clock = "clock_timestamp()" + (" at time zone 'UTC'" if kind == "plain" else "")
        if kind == "numbered":
            clock = f"(extract(epoch from {clock} - interval '{behind}') * 10)::bigint % 2000000000"
            return f"({clock})::int"
        return f"date_trunc('{cut}', {clock} - interval '{behind}')"

    def write(self, kind: str, number: int, what: str, behind: str, cut: str, row: int) -> None:
        table = next(table for table, each in self.tables.items() if each == kind)
        session, at = self.sessions[number], self.cursor(kind, behind, cut)
        id_ = next(self.ids) * 4 + number
        if what == "undone" and number < 3:
            session.execute("savepoint s")
            session.execute(f"insert into {table} values ({id_}, 'undone', {at})")
            session.execute("rollback to savepoint s")
        elif kind == "plain" and what == "copy":
            session.execute(f"insert into {table} select * from {table} where id <= {row} limit 1")
        elif kind == "plain" or what not in ("update", "unmoved"):
            if number < 3:
                session.execute("savepoint s")
            session.execute(f"insert into {table} values ({id_}, '{number}', {at})")
        else:  # updates only its own rows, so that no session waits for another
            moved = f", at = {at}" if what == "update" else ""
            session.execute(
                f"update {table} set note = note || '!'{moved} "
                f"where id % 4 = {number} and id % 5 = {row % 5}"
            )


def _check_equal(project: Project, database: Database, writers: Writers) -> None:
    for table, kind in writers.tables.items():
        query = f"select id, note from {{}}{table} order by id, note"
        if kind != "plain":
            order = "struct(_cq_generation, at, _cq_batch, _cq_seq)"
            newest = f"select id, max_by(note, {order}) from raw.{table} group by id order by id"
            assert project.rows(newest) == database.query(query.format(""))
        else:
            assert project.rows(query.format("raw.")) == database.query(query.format(""))


@pytest.mark.slow
def test_random_writers(project: Project, postgres_database: Database) -> None:
    numbers = itertools.count()

    @hypothesis.settings(max_examples=3, phases=[hypothesis.Phase.generate], derandomize=True)
    @hypothesis.given(st.lists(STEP, min_size=60, max_size=90))
    def check(steps: list[tuple[str, int, str, str, str, int]]) -> None:
        writers = Writers(postgres_database, str(next(numbers)))
        options = {table: {"cursor_field": "at"} for table in writers.tables}
        project.jdbc(postgres_database, list(options), table_options=options, time_zone="UTC")
        project.run()
        for step, number, *how in steps:
            if step == "sync":
                project.run()
            elif step in KINDS:
                writers.write(step, number, *how)
            elif step == "commit":
                writers.sessions[number].commit()
            else:
                writers.sessions[number].rollback()
        for session in writers.sessions:
            session.commit()
            session.close()
        project.run()
        _check_equal(project, postgres_database, writers)
        assert _appended(project, writers.tables) == dict.fromkeys(writers.tables, 0)

    check()

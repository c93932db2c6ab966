"""No gaps or duplicates: first loads in chunks that are interrupted while others write.

`test_crash.py` kills them.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg
import pytest

from loader.errors import TableError
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.cdc.test_changes import follow
from tests.services import Database
from tests.sync.project import Project

KEYS = {
    "numbers": ("a int8", "(n - 12) * 300000000000"),
    "small": ("a int2", "n - 12"),
    "codes": ('a text collate "C"', "case n when 5 then '' when 6 then E'it''s \\\\ \\n ü' "
              "when 7 then 'B' when 8 then chr(128512) else 'b' || n end"),
    "uuids": ("a uuid", "md5(n::text)::uuid"),
    "days": ("a date", "date '1969-12-20' + n"),
    "times": ("a timestamptz", "timestamptz '1969-12-31 23:59:59.999990+00' "
              "+ n * interval '1 microsecond'"),
    "walls": ("a timestamp", "timestamp '1891-10-01' + n * interval '31 hours'"),
    "pairs": ('a int, b varchar(9) collate "C"', "n % 3, 'b' || n"),
    "bounded": ("a date", "case when n > 20 then date 'infinity' else date '2020-01-01' + n end"),
}  # fmt: skip
WHOLE = {
    "padded": ('a char(9) collate "C"', "case when n % 2 = 0 then 'B' else 'b' end || n"),
    "amounts": ("a numeric", "n"),
}
ALL = KEYS | WHOLE


@pytest.fixture
def shop(postgres_database: Database) -> Database:
    """A database with a table for each type of key; none is loaded yet."""
    for table, (columns, values) in ALL.items():
        last = 21 if table == "bounded" else 24
        postgres_database.execute(
            f"create table {table} ({columns}, v text, primary key ({_names(columns)}))",
            f"insert into {table} select {values}, 'row ' || n from generate_series(1, {last}) n",
        )
    return postgres_database


def _names(columns: str) -> str:
    return ", ".join(part.split()[0] for part in columns.split(", "))


def _interrupt_run(project: Project, at: int, between: Callable[[], None] = lambda: None) -> bool:
    """Runs, and lets each table fail after a number of batches; returns whether one did.

    Args:
        at: the number of batches.
        between: called after each batch.
    """
    alone, counts = threading.Lock(), Counter[str]()

    class Steps:
        def report_step(self, step: str, table: str) -> None:
            if step != "state-recorded":
                return
            with alone:
                counts[table] += 1
                between()
                if counts[table] == at:
                    raise TableError("broken off", where=table, remedy="Run again")

    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    errors = [outcome.error for outcome in run_tables(pipeline, Watch(steps=Steps()), (), False, 2)]
    assert all(error is None or "broken off" in str(error) for error in errors), errors
    return any(errors)


def _read_newest(
    project: Project, table: str, names: str, wanted: str = "v"
) -> list[tuple[Any, ...]]:
    return project.rows(
        f"""
        select newest.{wanted}
        from (
            select max_by(struct(*), struct(_cq_generation, _cq_batch, _cq_seq)) as newest
            from raw.{table}
            group by {names}
        )
        where not newest._cq_deleted
        order by 1
        """
    )


def _find_duplicates(project: Project, table: str) -> list[tuple[Any, ...]]:
    """Returns versions that the raw table has twice; each write sets a different `v`."""
    return project.rows(
        f"select v from raw.{table} where not _cq_deleted group by v having count(*) > 1"
    )


def test_each_kind_of_key_is_loaded_in_chunks(project: Project, shop: Database) -> None:
    """The key of a changed row decides whether a later chunk reads the change."""
    follow(project, shop, *ALL, batch_rows=7)
    _interrupt_run(project, 2)
    for table in ALL:
        pieces = [7, 7] if table in KEYS else [21 if table == "bounded" else 24]
        counts = f"select count(*) from raw.{table} group by _cq_batch order by _cq_batch"
        assert project.rows(counts) == [(count,) for count in pieces], table
        shop.execute(
            f"update {table} set v = v || ', changed' where v ~ '[05]$'",
            f"delete from {table} where v ~ '[36]$'",
            f"begin; update {table} set v = v || '!'; update {table} set v = v || '?'; commit",
        )
    ran = project.run()
    resumed = {
        w.partition(":")[0]
        for w in ran.warnings
        if "continues a first load that was interrupted" in w
    }
    assert resumed == {f"shop.{table}" for table in KEYS}
    project.run()
    for table, (columns, _) in ALL.items():
        living = shop.query(f'select v from {table} order by v collate "C"')
        assert _read_newest(project, table, _names(columns)) == living, table
        assert _find_duplicates(project, table) == [], table
    again = project.run()
    assert {again.table(f"shop.{table}")["appended"] for table in ALL} == {0}


def test_interrupted_anywhere_while_others_write(
    project: Project, postgres_database: Database
) -> None:
    """Long transactions insert, update, move and delete rows; none is lost or duplicated."""
    dice, numbers = random.Random(0), count(1)
    tables = ("busy", "busier")
    for table in tables:
        postgres_database.execute(
            f"create table {table} "
            '(a int, b text collate "C", v text, note text, primary key (a, b))',
            f"alter table {table} alter column note set storage external",
            f"insert into {table} select n / 4, 'b' || n % 4, 'row ' || n, repeat('x', 4000) "
            "from generate_series(0, 59) n",
            f"alter table {table} replica identity full",
        )
    writers = [postgres_database.connect() for _ in range(3)]

    def write(writer: psycopg.Connection[Any], table: str) -> None:
        v, key = f"write {next(numbers)}", (dice.randrange(16), f"b{dice.randrange(4)}")
        where = "where a = {} and b = '{}'".format(*key)
        statement = dice.choice(
            (
                f"update {table} set v = '{v}' {where}",
                f"update {table} set v = '{v}', note = repeat('{v[-1]}', 5000) {where}",
                f"delete from {table} {where}",
                f"insert into {table} values ({key[0]}, '{key[1]}', '{v}', '') "
                "on conflict do nothing",
                f"update {table} set a = (a + {dice.randrange(1, 16)}) % 16, v = '{v}' {where}",
            )
        )
        idle = writer.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        with contextlib.suppress(psycopg.Error):
            if idle and dice.random() < 0.4:
                writer.execute("begin; set local lock_timeout = '20ms'")
            elif not idle and dice.random() < 0.4:
                writer.execute(dice.choice(("commit", "commit", "rollback")))
            writer.execute("savepoint a; " * (not idle) + statement)

    def write_much() -> None:
        for _ in range(12):
            write(dice.choice(writers), dice.choice(tables))

    follow(project, postgres_database, *tables, batch_rows=9)
    for writer in writers:
        writer.execute("set lock_timeout = '20ms'")
    while _interrupt_run(project, dice.randrange(1, 4), write_much):
        pass
    for writer in writers:
        writer.execute("commit")
        writer.close()
    project.run()
    for table in tables:
        living = postgres_database.query(f'select v from {table} order by v collate "C"')
        assert _read_newest(project, table, "a, b") == living, table
        assert _find_duplicates(project, table) == [], table


def test_changes_that_restart_a_first_load(project: Project, postgres_database: Database) -> None:
    """Another key or type, a TRUNCATE, a large value of a row that has moved to another chunk."""
    large = ("turned", "moved", "away")
    for table in large:
        postgres_database.execute(
            f"create table {table} (a int, b int, v text, note text, primary key (a, b))",
            f"alter table {table} alter note set storage external",
            f"insert into {table} select n / 5, n % 5, 'row ' || n, repeat(chr(65 + n), 5000) "
            "from generate_series(0, 24) n",
        )
    for table in ("emptied", "altered"):
        postgres_database.execute(
            f"create table {table} (id int primary key, v text, note text)",
            f"insert into {table} select n, 'a ' || n from generate_series(1, 6) n",
        )
    tables = (*large, "emptied", "altered")
    follow(project, postgres_database, *tables, batch_rows=4)
    _interrupt_run(project, 1)
    postgres_database.execute(
        "alter table turned drop constraint turned_pkey, add primary key (b, a)",
        "delete from moved where (a, b) = (0, 1)",
        "update moved set a = 0, v = 'moved' where (a, b) = (2, 1)",
        "update away set a = -1, v = 'moved' where (a, b) = (2, 1)",
        "begin; truncate emptied; insert into emptied values (1, 'b 1'), (5, 'b 5'); commit",
        "alter table altered alter column v type varchar(9) using 'c ' || id",
    )
    texts = " ".join(project.run().warnings + project.run().warnings)
    assert (
        "shop.turned: its key was changed during its first load: all rows are read again" in texts
    )
    for table in ("moved", "away"):
        assert f"shop.{table}: a row with a large value got another key during its first" in texts
    assert "shop.emptied: it was truncated during its first load: all rows are read again" in texts
    assert "shop.altered: the column v text was altered: all rows are read again" in texts
    for table in tables:
        living = postgres_database.query(f'select v, note from {table} order by v collate "C"')
        names = "a, b" if table in large else "id"
        assert _read_newest(project, table, names, "v, newest.note") == living, table
    again = project.run()
    assert {again.table(f"shop.{table}")["appended"] for table in tables} == {0}


def test_unusual_settings_names_and_collations(
    project: Project, postgres_database: Database
) -> None:
    """A table whose text key is not ordered by bytes is loaded in one batch."""
    postgres_database.execute(
        f"alter database {postgres_database.name} set standard_conforming_strings = off",
        'create table odd (n text collate "C", total int, v text, primary key (n, total))',
        r"insert into odd select E'a\\' || i, i, 'row ' || i from generate_series(1, 6) i",
        "create table words (a text primary key)",
        "insert into words select 'w' || n from generate_series(1, 6) n",
    )
    [(by_bytes,)] = postgres_database.query(
        "select datcollate in ('C', 'POSIX') from pg_database where datname = current_database()"
    )
    follow(project, postgres_database, "odd", "words", batch_rows=2)
    project.run()
    assert project.rows("select count(distinct _cq_batch), count(*) from raw.odd") == [(3, 6)]
    keys = project.rows("select n from raw.odd order by n")
    assert keys == postgres_database.query('select n from odd order by n collate "C"')
    [(batches,)] = project.rows("select count(distinct _cq_batch) from raw.words")
    assert batches == (3 if by_bytes else 1)


def test_unsupported_values_are_refused_when_a_load_resumes(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table papers (id int primary key, day date)",
        "insert into papers select n, date '2025-01-01' from generate_series(1, 10) n",
    )
    follow(project, postgres_database, "papers", batch_rows=7)
    assert _interrupt_run(project, 1)
    postgres_database.execute("insert into papers values (20, '0100-02-28')")
    ran = project.loader("run")
    assert ran.code == 1
    assert "1 values of day are among the days" in ran.text
    assert project.rows("select count(*) from raw.papers") == [(7,)]
    postgres_database.execute("update papers set day = '2025-01-02' where id = 20")
    project.run()
    days = "select count(distinct id), cast(max(day) as string) from raw.papers"
    assert project.rows(days) == [(11, "2025-01-02")]

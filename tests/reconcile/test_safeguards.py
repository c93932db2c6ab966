"""`loader reconcile` distrusts many deletes, an emptied source, and rows it cannot compare."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest

from loader.cli.console import Output
from loader.cli.reconcile import report_findings
from loader.reconcile.reconciliation import Reconciliation
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.reconcile.shop import Shop, line, missed, nothing, reconcile
from tests.services import Database, Postgres
from tests.sync.project import Project


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_many_deletes_are_not_repaired(project: Project, shop: Shop) -> None:
    shop.execute("create table notes (id int primary key, note varchar(20), c int)")
    rows = ", ".join(f"({i}, 'a', {i})" for i in range(1, 21))
    shop.execute(f"insert into notes values {rows}")
    # With an explicit lookback, a sync finds late rows only within it.
    shop.configure(project, ["notes"], cursor_field="c", lookback=0)
    project.run()
    shop.execute("delete from notes where id < 4", "update notes set note = 'b' where id = 9")
    wanted = {"missed_updates": 1, "missed_rows": 0, "missed_deletes": 3}
    ran = reconcile(project, "--repair", code=1)
    assert (missed(ran, "shop.notes"), line(ran, "shop.notes")["status"]) == (wanted, "differs")
    assert project.rows("select id, note from raw.notes where _cq_batch > 1") == [(9, "b")]
    assert line(ran, "shop.notes")["repaired"] == 1
    assert any(
        "no deletes were appended, because 3 of its 20 rows (more than a tenth)" in text
        and "--allow-deletes" in text
        for text in ran.warnings
    )
    ran = reconcile(project, "--repair", "--allow-deletes")
    assert line(ran, "shop.notes")["repaired"] == 3
    # a tenth of the rows, which is not too many; then all of them
    shop.execute("delete from notes where id = 4")
    assert line(reconcile(project, "--repair"), "shop.notes")["repaired"] == 1
    shop.execute("delete from notes")
    ran = reconcile(project, "--repair", code=1)
    assert missed(ran, "shop.notes") == {**nothing(), "missed_deletes": 16}
    assert project.rows("select count_if(_cq_deleted) from raw.notes") == [(4,)]


def test_a_repair_refuses_what_a_sync_refuses(
    project: Project, postgres_database: Database
) -> None:
    """PostgreSQL's driver reads the day as the next one. No cursor shows that it was written."""
    postgres_database.execute(
        "create table papers (id int primary key, day date, c int)",
        "insert into papers select n, date '1400-03-05', n from generate_series(1, 20) n",
    )
    options = {"papers": {"cursor_field": "c", "sweep": "never"}}
    project.jdbc(postgres_database, ["papers"], table_options=options)
    project.run()
    postgres_database.execute("update papers set day = date '1400-02-28' where id in (3, 4)")
    ran = reconcile(project, "--repair", code=1)
    assert "2 values of day" in ran.text, ran.text
    assert "binaryTransfer" in ran.text
    assert project.rows("select count(*) from raw.papers") == [(20,)]

    project.jdbc(
        postgres_database,
        ["papers"],
        table_options=options,
        properties={"binaryTransfer": "false"},
    )
    assert line(reconcile(project, "--repair"), "shop.papers")["repaired"] == 2
    days = "select day, count(*) from raw.papers where _cq_batch > 1 group by 1"
    assert [(str(day), rows) for day, rows in project.rows(days)] == [("1400-02-28", 2)]


@pytest.mark.parametrize("shop", ["postgresql", "derby"], indirect=True)
def test_values_changed_in_the_raw_table_are_repaired(project: Project, shop: Shop) -> None:
    """The stored hashes of such rows still equal those of the source's rows."""
    shop.execute("create table notes (id int primary key, note varchar(20), c int)")
    rows = ", ".join(f"({i}, 'a', {i})" for i in range(1, 31))
    shop.execute(f"insert into notes values {rows}")
    shop.configure(project, ["notes"], cursor_field="c", lookback=0)
    project.run()

    def assert_repaired(updates: int) -> None:
        found = {**nothing(), "missed_updates": updates}
        assert missed(reconcile(project, code=1), "shop.notes") == found
        ran = reconcile(project, "--repair")
        assert (missed(ran, "shop.notes"), line(ran, "shop.notes")["repaired"]) == (found, updates)
        equal = reconcile(project)
        assert (missed(equal, "shop.notes"), line(equal, "shop.notes")["status"]) == (
            nothing(),
            "equal",
        )
        assert project.run().table("shop.notes")["appended"] == 0
        newest = "max_by(note, struct(_cq_generation, c, _cq_batch, _cq_seq)) as note"
        assert project.rows(
            f"select distinct note from (select {newest} from raw.notes group by id)"
        ) == [("a",)]

    project.spark.sql(f"update {project.schema}.notes set note = 'tampered' where id = 5")
    assert_repaired(1)
    project.spark.sql(f"alter table {project.schema}.notes drop column note")
    shop.execute("insert into notes values (31, 'a', 31)")
    ran = project.run()
    assert ran.table("shop.notes")["appended"] == 1
    assert any("earlier batches: note. " in text for text in ran.warnings), ran.warnings
    assert_repaired(30)


def test_rows_below_the_initial_cursor_are_not_compared(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table papers (id int primary key, day date, n numeric, c int)",
        "insert into papers select n, date '2020-03-05', 1, n from generate_series(1, 20) n",
        "update papers set day = '0100-02-28' where id = 2",
        "create view seen as select * from papers",
    )
    options = {"cursor_field": "c", "lookback": 0, "initial_cursor": "10", "primary_key": ["id"]}
    project.jdbc(postgres_database, ["seen"], table_options={"seen": options})
    project.run()
    postgres_database.execute("update papers set n = 5 where id = 15")
    ran = reconcile(project, "--repair")
    assert line(ran, "shop.seen")["repaired"] == 1
    postgres_database.execute("update papers set day = '0100-02-28' where id = 15")
    assert "1 values of day" in reconcile(project, "--repair", code=1).text


def test_a_view_whose_cursor_is_a_text(project: Project, postgres_database: Database) -> None:
    """Only the database knows which texts are above `initial_cursor`."""
    postgres_database.execute(
        'create table papers (id int primary key, note text, c text collate "C")',
        "insert into papers select n, 'a', 'c' || lpad(n::text, 3, '0') "
        "from generate_series(1, 40) n",
        "create view seen as select * from papers",
    )
    options = {"cursor_field": "c", "initial_cursor": "c010", "primary_key": ["id"]}
    project.jdbc(postgres_database, ["seen"], table_options={"seen": options})
    project.run()
    postgres_database.execute("update papers set note = 'b' where id in (3, 15)")
    ran = reconcile(project, "--repair")
    assert missed(ran, "shop.seen") == {**nothing(), "missed_updates": 1}
    assert line(ran, "shop.seen")["repaired"] == 1


@dataclass(frozen=True)
class Phase:
    """Calls a function when a table enters a phase."""

    name: str
    act: Callable[[], None]

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        if phase == self.name:
            self.act()

    def warn(self, table: str, text: str) -> None: ...


def test_a_table_that_is_rewritten_during_the_comparison(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, note text, at timestamptz)",
        "insert into t select i, 'n', now() - i * interval '1 day' from generate_series(1, 50) i",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    project.run()

    def repaired(note: str) -> tuple[Reconciliation, bool]:
        """Repairs while all rows are rewritten. Returns the result and whether this succeeded."""
        done = []

        def rewrite() -> None:
            # This fails if the snapshot holds a lock on the table.
            with contextlib.suppress(psycopg.errors.LockNotAvailable):
                postgres_database.execute(
                    "set lock_timeout = '300ms'",
                    "create temp table kept as select * from t",
                    f"truncate t; insert into t select id, {note}, at from kept",
                )
                done.append(True)

        work = Reconciliation(repairs=True)
        pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
        watch = Watch(listener=Phase("comparing", rewrite))
        assert [one.error for one in run_tables(pipeline, watch, (), False, None, work)] == [None]
        return work, bool(done)

    [same] = repaired("note")[0].findings
    assert (same.changed, same.has_unrepaired, len(same.verified)) == (0, False, 64)
    assert project.rows("select count(*) from raw.t") == [(50,)]

    work, rewritten = repaired("'new'")
    [other] = work.findings
    if rewritten:
        assert other.changed == 50
        assert len(other.verified) < 64
        assert report_findings(Output(quiet=True), [], work) == 1
    assert project.rows("select count_if(_cq_deleted) from raw.t") == [(0,)]
    assert line(reconcile(project, "--repair"), "shop.t")["missed_deletes"] == 0
    assert project.rows("select max_by(note, _cq_generation) from raw.t where id = 9") == [
        ("new" if rewritten else "n",)
    ]


@pytest.fixture
def ascii_database(postgres: Postgres) -> Iterator[Database]:
    """A database without an encoding (SQL_ASCII)."""
    name = "shop_ascii"
    maker = Database(postgres, "postgres")
    maker.execute(
        f"create database {name} encoding 'SQL_ASCII' locale 'C' template template0",
    )
    yield Database(postgres, name)
    maker.execute(f"drop database {name} with (force)")


def _execute_in_utf8(database: Database, *statements: str) -> None:
    with contextlib.closing(database.connect()) as connection:
        connection.execute("set client_encoding = 'UTF8'")
        for statement in statements:
            connection.execute(statement)


def test_keys_of_a_database_without_an_encoding(project: Project, ascii_database: Database) -> None:
    keys = ["Zürich", "Köln", "Genève", *(f"town {i}" for i in range(37))]
    values = ", ".join(f"('{key}', 'n', {i})" for i, key in enumerate(keys))
    _execute_in_utf8(
        ascii_database,
        "create table towns (name text primary key, note text, c int)",
        f"insert into towns values {values}",
    )
    # few buckets per run, so that the two hashes of a key are compared in different runs
    turns = ("--buckets", "8", "--per-run", "3")
    _assert_compared_by_value(project, ascii_database, "'Zürich'", "'Köln'", turns)


def test_keys_that_are_dates_in_the_gap_between_calendars(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table towns (name date primary key, note text, c int)",
        "insert into towns select date '1582-10-01' + i * 4, 'n', i from generate_series(0, 39) i",
    )
    _assert_compared_by_value(project, postgres_database, "date '1582-10-05'", "date '1582-10-09'")


def _assert_compared_by_value(
    project: Project,
    database: Database,
    updated: str,
    deleted: str,
    per_run: tuple[str, ...] = (),
) -> None:
    options = {"towns": {"cursor_field": "c", "lookback": 0, "sweep": "never"}}
    project.jdbc(database, ["towns"], table_options=options)
    project.run()
    ran = reconcile(project, "--repair", *per_run)
    assert (missed(ran, "shop.towns"), line(ran, "shop.towns")["status"]) == (nothing(), "equal")
    assert project.rows("select count(*) from raw.towns") == [(40,)]
    _execute_in_utf8(
        database,
        f"update towns set note = 'm' where name = {updated}",
        f"delete from towns where name = {deleted}",
    )
    found = nothing()
    for _ in range(3 if per_run else 1):
        for kind, count in missed(reconcile(project, "--repair", *per_run), "shop.towns").items():
            found[kind] += count
    assert found == {"missed_updates": 1, "missed_rows": 0, "missed_deletes": 1}
    assert missed(reconcile(project), "shop.towns") == nothing()
    assert project.rows(
        "select count(*), count_if(_cq_deleted), count_if(note = 'm') from raw.towns"
    ) == [(42, 1, 1)]

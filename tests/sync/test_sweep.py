"""PostgreSQL: a sweep finds every new row by its transaction, regardless of its cursor."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.services import Database, Postgres
from tests.sync.project import Project
from tests.sync.test_late_commits import _transaction

CUTS = ("second", "minute", "hour", "day")
CLOCKS = {"minutes": "3 minutes", "hours": "2 hours"}
CASES = {
    f"{operation}_{clock}_{cut}": (operation, f"date_trunc('{cut}', now() - interval '{behind}')")
    for operation, (clock, behind), cut in itertools.product(
        ("insert", "update"), CLOCKS.items(), CUTS
    )
}
"""By table: what a transaction that is open during a sync does, and the cursor that it writes."""


def _create_sql(table: str, cursor: str = "timestamptz") -> list[str]:
    """Returns SQL that creates a table with four old rows and one with the current time."""
    return [
        f"create table {table} (id int primary key, note text, at {cursor})",
        f"create index on {table} (at)",
        f"insert into {table} select n, 'old', now() - interval '3 days' from "
        "generate_series(1, 4) as n",
        f"insert into {table} values (9, 'now', now())",
    ]


def _load(
    project: Project,
    database: Database,
    tables: Iterable[str],
    account: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    tables = list(tables)
    own = {"cursor_field": "at", **options}
    table_options = {table: {**own} for table in tables}
    project.jdbc(database, tables, table_options=table_options, **(account or {}))
    project.run()


def _read_newest(project: Project, table: str) -> list[tuple[Any, ...]]:
    """Returns the newest version of each key, by the version order that all models use."""
    return project.rows(
        "select id, row.note, date_format(row.at, 'yyyy-MM-dd HH:mm:ss.SSSSSS') from ("
        "select id, max_by(struct(note, at), struct(_cq_generation, at, _cq_batch, _cq_seq)) "
        f"as row from raw.{table} group by id) order by id"
    )


def _read_source(database: Database, table: str) -> list[tuple[Any, ...]]:
    return database.query(
        "select id, note::text, to_char(at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') "
        f"from {table} order by id"
    )


def _appended(project: Project, tables: Iterable[str]) -> dict[str, int]:
    ran = project.run()
    return {table: ran.table(f"shop.{table}")["appended"] for table in tables}


def test_late_commits_with_old_cursors_are_found(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(*(sql for table in CASES for sql in _create_sql(table)))
    _load(project, postgres_database, CASES)
    with _transaction(postgres_database) as late:
        for number, (table, (operation, at)) in enumerate(CASES.items()):
            late.execute("savepoint s")
            late.execute(
                f"insert into {table} values (5, 'late', {at})"
                if operation == "insert"
                else f"update {table} set note = 'late', at = {at} where id = 1"
            )
            if number % 2:  # its rows have the id of a subtransaction
                late.execute("release savepoint s")
            late.execute("savepoint t")
            late.execute(f"insert into {table} values (6, 'never', {at})")
            late.execute("rollback to savepoint t")
        for table in CASES:
            postgres_database.execute(f"insert into {table} values (20, 'between', now())")
        assert _appended(project, CASES) == dict.fromkeys(CASES, 1)
        late.commit()
    assert _appended(project, CASES) == dict.fromkeys(CASES, 1)
    for table in CASES:
        assert _read_newest(project, table) == _read_source(postgres_database, table)
    assert _appended(project, CASES) == dict.fromkeys(CASES, 0)


def test_imports_of_old_dates_and_updates_with_the_same_cursor_are_found(
    project: Project, postgres_database: Database
) -> None:
    tables = ("imported", "unmoved", "moved_back", "in_lookback", "numbered")
    for table in tables[:4]:
        postgres_database.execute(*_create_sql(table))
    postgres_database.execute(
        "create table numbered (id int primary key, note text, at int)",
        "insert into numbered select n, 'old', n from generate_series(1, 9) n",
    )
    options: dict[str, Any] = {table: {"cursor_field": "at"} for table in tables}
    options["in_lookback"]["lookback"] = "1 hour"
    options["numbered"] |= {"lookback": 2}
    project.jdbc(postgres_database, list(tables), table_options=options)
    project.run()
    for table in tables[:4]:
        postgres_database.execute(f"insert into {table} values (20, 'between', now())")
    project.run()
    postgres_database.execute(
        "insert into imported select n, 'imported', '2019-05-01Z'::timestamptz + n * interval "
        "'1 day' from generate_series(101, 150) n",
        "update unmoved set note = 'changed' where id <= 2",
        "update moved_back set note = 'back', at = '2001-01-01Z' where id in (3, 20)",
        "update in_lookback set note = 'changed' where id = 1",
        "update numbered set note = 'changed' where id = 3",
    )
    expected = {"imported": 50, "unmoved": 2, "moved_back": 2, "in_lookback": 1, "numbered": 1}
    assert _appended(project, tables) == expected
    # In a new generation, a version is newer regardless of its cursor.
    generations = {table: project.state(f"shop.{table}")["generation"] for table in tables}
    assert generations == {**dict.fromkeys(tables, 2), "imported": 1}
    for table in tables[:4]:
        assert _read_newest(project, table) == _read_source(postgres_database, table)
    notes = "max_by(note, struct(_cq_generation, at, _cq_batch, _cq_seq))"
    assert project.rows(f"select id, {notes} from raw.numbered group by id order by id") == (
        postgres_database.query("select id, note from numbered order by id")
    )
    assert _appended(project, tables) == dict.fromkeys(tables, 0)


def test_a_key_that_changes_without_its_cursor(
    project: Project, postgres_database: Database
) -> None:
    """Rows with new keys are found. Rows whose keys the source no longer has are not deleted."""
    postgres_database.execute(*_create_sql("events"), "update events set note = note || ' ' || id")
    _load(project, postgres_database, ["events"])
    postgres_database.execute(
        "update events set id = 50 where id = 1",
        # the raw table has this key with a later cursor
        "begin; delete from events where id = 9; update events set id = 9 where id = 2; commit",
        # two rows exchange their keys
        "begin; savepoint s; update events set id = -3 where id = 3; release s; "
        "update events set id = 3 where id = 4; update events set id = 4 where id = -3; commit",
    )
    assert _appended(project, ["events"]) == {"events": 4}
    newest = _read_newest(project, "events")
    gone = [row for row in newest if row[0] in (1, 2)]
    assert [row[1] for row in gone] == ["old 1", "old 2"]
    assert [row for row in newest if row not in gone] == _read_source(postgres_database, "events")
    assert _appended(project, ["events"]) == {"events": 0}


def test_rows_that_the_spec_excludes_are_not_loaded(
    project: Project, postgres_database: Database
) -> None:
    tables = ("without_nulls", "begun_later")
    postgres_database.execute(*(sql for table in tables for sql in _create_sql(table)))
    options = {
        "without_nulls": {"cursor_field": "at", "null_cursor": "exclude"},
        "begun_later": {"cursor_field": "at", "initial_cursor": "2025-01-01 00:00:00Z"},
    }
    project.jdbc(postgres_database, list(tables), table_options=options)
    project.run()
    for table in tables:
        postgres_database.execute(
            f"insert into {table} values (11, 'none', null), (12, 'old', '2020-01-01Z'), "
            "(13, 'later', '2025-06-01Z')"
        )
    assert _appended(project, tables) == {"without_nulls": 2, "begun_later": 2}
    added = "select id from raw.{} where id between 11 and 13 order by id"
    assert project.rows(added.format("without_nulls")) == [(12,), (13,)]
    assert project.rows(added.format("begun_later")) == [(11,), (13,)]


def test_a_late_copy_in_a_table_without_a_key_is_counted(
    project: Project, postgres_database: Database
) -> None:
    tables = {"dates": "date", "days": "timestamptz", "numbers": "int"}
    day = {"dates": "date '2026-01-05'", "days": "'2026-01-05Z'", "numbers": "5"}
    later = {"dates": "date '2026-01-06'", "days": "'2026-01-06Z'", "numbers": "6"}
    for table, type_ in tables.items():
        postgres_database.execute(
            f"create table {table} (page text, at {type_})",
            f"insert into {table} select 'home', {day[table]} from generate_series(1, 3)",
        )
    _load(project, postgres_database, tables)
    with _transaction(postgres_database) as late:
        for table in tables:
            late.execute(f"insert into {table} values ('home', {day[table]})")
            postgres_database.execute(f"insert into {table} values ('home', {later[table]})")
        assert _appended(project, tables) == dict.fromkeys(tables, 1)
        late.commit()
    assert _appended(project, tables) == dict.fromkeys(tables, 1)
    assert _appended(project, tables) == dict.fromkeys(tables, 0)
    for table in tables:
        counts = f"select count(*) from {{}}{table} group by at order by at"
        assert project.rows(counts.format("raw.")) == [(4,), (1,)]
        assert postgres_database.query(counts.format("")) == [(4,), (1,)]


def test_attached_partitions_and_other_types(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create type mood as enum ('calm', 'rough')",
        "create table parts (id int, note mood, at timestamptz, primary key (id, at)) "
        "partition by range (at)",
        "create table parts_1 partition of parts for values from ('2026-01-01Z') to (maxvalue)",
        "create table other (like parts including all)",
        "insert into parts values (1, 'calm', '2026-01-01Z'), (2, 'calm', now())",
        "insert into other values (3, 'rough', '2025-05-01Z')",
    )
    _load(project, postgres_database, ["parts"], primary_key="id")
    postgres_database.execute(
        "alter table parts attach partition other for values from (minvalue) to ('2026-01-01Z')",
        "update parts set note = 'rough' where id = 1",
        "insert into parts values (4, 'calm', '2024-05-01Z')",
    )
    assert _appended(project, ["parts"]) == {"parts": 3}
    assert _read_newest(project, "parts") == _read_source(postgres_database, "parts")
    assert _appended(project, ["parts"]) == {"parts": 0}


def _change_record(project: Project, table: str, **entries: float | str | None) -> None:
    """Overwrites entries of the last sweep's record in the stored state; None removes one."""
    state = project.state(f"shop.{table}")
    record = state["mark"]["sweep"] | entries
    state["mark"]["sweep"] = {name: value for name, value in record.items() if value is not None}
    project.spark.sql(
        f"insert into {project.schema}._cq_state select key, '{json.dumps(state)}', version + 1, "
        f"updated_at from {project.schema}._cq_state where key = 'shop.{table}' "
        "order by version desc limit 1"
    )


def test_how_often_a_table_is_swept(project: Project, postgres_database: Database) -> None:
    tables = {"never": "never", "hourly": "1 hour", "large": "auto", "always": "always"}
    postgres_database.execute(*(sql for table in tables for sql in _create_sql(table)))

    def plan() -> None:
        options = {t: {"cursor_field": "at", "sweep": sweep} for t, sweep in tables.items()}
        project.jdbc(postgres_database, list(tables), table_options=options)

    plan()
    project.run()
    hour, now = 3600.0, project.state("shop.never")["mark"]["sweep"]["at"]
    for table in ("large", "always"):  # as if a sweep took 30 seconds per page of 8 KB
        _change_record(project, table, bytes=1_000_000, seconds=3662, at=now - 300)
    for table in tables:
        postgres_database.execute(
            f"update {table} set note = 'unmoved' where id = 1",
            f"insert into {table} values (20, 'between', now())",
        )
    # `never` misses the update. The others find it when their sweep is due.
    assert _appended(project, tables) == {"never": 1, "hourly": 1, "large": 1, "always": 2}
    _change_record(project, "hourly", at=now - hour - 60)
    _change_record(project, "large", at=now - 660)
    assert _appended(project, tables) == {"never": 0, "hourly": 1, "large": 1, "always": 0}
    tables["never"] = "auto"
    plan()
    assert _appended(project, tables) == {"never": 1, "hourly": 0, "large": 0, "always": 0}
    for table in tables:
        assert _read_newest(project, table) == _read_source(postgres_database, table)


@pytest.mark.parametrize("early", ["2500-01-01 BC", "-infinity"])
def test_a_time_before_year_1_hides_no_other_row(
    project: Project, postgres_database: Database, early: str
) -> None:
    postgres_database.execute(*_create_sql("events"))
    _load(project, postgres_database, ["events"])
    postgres_database.execute(
        f"insert into events values (10, 'early', '{early}')",
        "update events set note = 'unmoved' where id = 1",
    )
    failed = project.loader("run")
    assert failed.code == 1
    assert "1 new or changed rows have a cursor (at) before year 1" in failed.text
    postgres_database.execute("delete from events where id = 10")
    assert _appended(project, ["events"]) == {"events": 1}
    assert _read_newest(project, "events") == _read_source(postgres_database, "events")


def test_a_table_and_a_view_that_replace_each_other_are_read_anew(
    project: Project, postgres_database: Database
) -> None:
    for name in ("was_view", "was_table", "other"):
        postgres_database.execute(*_create_sql(name))
    postgres_database.execute(
        "alter table was_view rename to base",
        "create view was_view as select * from base where id > 2",
        "update other set id = id + 100",
    )
    _load(project, postgres_database, ["was_view", "was_table"], primary_key="id")
    postgres_database.execute(
        "drop view was_view",
        "alter table base rename to was_view",
        "alter table was_table rename to base",
        "create view was_table as select * from base union all select * from other",
    )
    assert _appended(project, ["was_view", "was_table"]) == {"was_view": 2, "was_table": 5}
    for table in ("was_view", "was_table"):
        assert _read_newest(project, table) == _read_source(postgres_database, table)


def test_a_late_row_is_appended_if_redelivered_rows_are_kept(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table pages (page text, at timestamptz)",
        "insert into pages select 'home', now() - interval '1 day' * n "
        "from generate_series(0, 5) as n",
    )
    _load(project, postgres_database, ["pages"], redelivered_rows="append")
    postgres_database.execute("insert into pages values ('late', '2019-01-01Z')")
    assert _appended(project, ["pages"]) == {"pages": 2}  # and the row at the cursor


def test_an_idle_sync_scans_once_and_writes_no_state(
    project: Project, postgres_database: Database, request: pytest.FixtureRequest
) -> None:
    postgres_database.execute(
        *_create_sql("events"), f"alter database {postgres_database.name} set log_statement = 'all'"
    )
    # Autovacuum writes statistics, in any database, which would cause a scan.
    postgres_database.execute("alter system set autovacuum = off", "select pg_reload_conf()")
    request.addfinalizer(
        lambda: postgres_database.execute(
            "alter system reset autovacuum", "select pg_reload_conf()"
        )
    )
    _load(project, postgres_database, ["events"])
    server = postgres_database.server
    assert isinstance(server, Postgres)

    def count_scans() -> int:
        log = (server._data / "log").read_text(errors="replace")
        return sum(
            log.count(f"where {form}") for form in ("xmin = any", "pg_catalog.xidsend(xmin)")
        )

    postgres_database.execute("create table elsewhere (id int)")
    before, states = count_scans(), project.snapshots("_cq_state")
    assert _appended(project, ["events"]) == {"events": 0}
    assert (count_scans() - before, project.snapshots("_cq_state") - states) == (1, 0)
    postgres_database.execute("insert into events values (21, 'new', now())")
    assert _appended(project, ["events"]) == {"events": 1}
    assert count_scans() - before == 2
    assert _appended(project, ["events"]) == {"events": 0}
    assert count_scans() - before == 2  # nothing was written since


def test_a_sweep_is_not_limited_by_the_roles_statement_timeout(
    project: Project, postgres_database: Database
) -> None:
    role = f"hasty_{postgres_database.name}"
    postgres_database.execute(
        *_create_sql("events"),
        # A policy is evaluated for each row; here it is slow in the query of a sweep only.
        "create function slowed(id int) returns boolean language plpgsql as $$ begin "
        "if id = 1 and current_query() like '%count(*) filter%' then perform pg_sleep(6); end if; "
        "return true; end $$",
        "alter table events enable row level security",
        "create policy slow on events using (slowed(id))",
        f"create role {role} login password 'tide' in role pg_read_all_stats",
        f"alter role {role} set statement_timeout = '5s'",
        f"grant select on events to {role}",
    )
    try:
        account = {"user": role, "password": "tide"}
        _load(project, postgres_database, ["events"], account)
        postgres_database.execute("update events set note = 'unmoved' where id = 1")
        assert _appended(project, ["events"]) == {"events": 1}
        seconds = project.state("shop.events")["mark"]["sweep"]["seconds"]
        assert seconds > 6
    finally:
        postgres_database.execute(f"drop owned by {role}", f"drop role {role}")


def test_check_reports_sweeps_without_effect_and_lost_rows(
    project: Project, postgres_database: Database
) -> None:
    tables = ["swept", "never_swept", "reconciled", "by_xmin", "a_view"]
    postgres_database.execute(
        *itertools.chain.from_iterable(_create_sql(table) for table in tables[:-1]),
        "create view a_view as select * from swept",
    )
    own: dict[str, dict[str, Any]] = {table: {} for table in tables}
    own["swept"] = {"sweep": None}
    own["reconciled"] = {"reconcile": {"every": "1 day"}}
    own["by_xmin"] = {"cursor_field": "xmin"}
    own["a_view"] = {"sweep": "1 hour", "primary_key": "id"}
    options = {"*": {"cursor_field": "at", "sweep": "never"}, **own}
    project.jdbc(postgres_database, tables, table_options=options)
    notes = {e["table"]: e["notes"] for e in project.loader("check").events if "notes" in e}
    assert {name for name in notes if "with sweep: never, rows" in notes[name]} == {
        "shop.never_swept"
    }
    assert {name for name in notes if "`sweep` option has no effect" in notes[name]} == {
        "shop.a_view"
    }
    assert "at most 5 minutes below the stored cursor" in notes["shop.a_view"]

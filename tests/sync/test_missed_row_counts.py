"""The ledger counts the rows that `cursor > stored cursor` misses; a trigger checks the counts."""

from __future__ import annotations

import random
from contextlib import closing

from click.testing import CliRunner

from loader.cli import main
from tests.services import Database
from tests.sync.project import Project

Counts = tuple[int | None, int | None, int | None]
"""Rows below the stored cursor, at the stored cursor, and updates that did not move the cursor."""

POSTGRES_AUDIT = (
    "create table audit (n serial, tab text, id int, old_at text)",
    """
    create function note() returns trigger language plpgsql as $$
    begin
        insert into audit (tab, id, old_at)
        values (tg_table_name, new.id, case when tg_op = 'UPDATE' then old.at::text end);
        return new;
    end $$
    """,
)


def _audit_postgres(table: str) -> str:
    return (
        f"create trigger note after insert or update on {table} for each row execute procedure "
        "note()"
    )


def _count_by_audit(
    database: Database, table: str, stored: str, seen: set[int], keyed: bool
) -> Counts:
    """Counts the keys whose changes are not in `seen`, and adds the changes to it.

    Args:
        stored: SQL of the cursor that was stored before these changes.
    """
    changes = database.query(f"select n, id, old_at from audit where tab = '{table}' order by n")
    before: dict[int, str | None] = {}  # the cursor at the previous call
    for number, key, old in changes:
        if number not in seen:
            before.setdefault(key, old)
    seen |= {number for number, _, _ in changes}
    text = "at::text" if "postgresql" in database.url else "cast(at as char)"
    rows = database.query(f"select id, {text}, at < {stored}, at = {stored} from {table}")
    changed = [row for row in rows if row[0] in before]
    unmoved = [row for row in changed if row[1] == before[row[0]] and (row[2] or row[3])]
    return (
        sum(bool(row[2]) for row in changed),
        sum(bool(row[3]) for row in changed),
        len(unmoved) if keyed else None,
    )


def _read_recorded_counts(project: Project, table: str) -> Counts:
    """Returns the counts in the newest ledger row of a table."""
    [counts] = project.rows(
        "select newest.* from (select max_by(struct(rows_below_cursor, rows_at_cursor, "
        "rows_cursor_unmoved), started_at) as newest from raw._cq_syncs "
        f"where table_name = '{table}')"
    )
    return counts[0], counts[1], counts[2]


def test_postgresql_counts_equal_those_of_an_audit_trigger(
    project: Project, postgres_database: Database
) -> None:
    database = postgres_database
    types = {"keyed": "timestamptz", "keyless": "timestamptz", "numbered": "int"}
    first = {table: "1" if at == "int" else "now()" for table, at in types.items()}
    database.execute(
        *POSTGRES_AUDIT,
        *(
            f"create table {table} (id int {'' if table == 'keyless' else 'primary key'}, at {at}, "
            "note serial)"
            for table, at in types.items()
        ),
        *map(_audit_postgres, types),
        *(
            f"insert into {table} select n, {at} from generate_series(1, 5) n"
            for table, at in first.items()
        ),
    )
    options = {table: {"cursor_field": "at"} for table in types}
    project.jdbc(database, [*types], table_options=options)
    project.run()
    seen: dict[str, set[int]] = {table: set() for table in types}
    for table in types:
        assert _read_recorded_counts(project, table) == (None, None, None)  # the first load
        _count_by_audit(database, table, "null", seen[table], True)
    generator = random.Random(53)
    total = dict.fromkeys(types, 0)
    key = 100
    for _ in range(6):
        stored = {
            table: f"'{project.state(f'shop.{table}')['cursor']}"
            + ("'::int" if at == "int" else "+00'::timestamptz")
            for table, at in types.items()
        }
        with closing(database.connect()) as late:
            late.autocommit = False
            for table, at in types.items():
                top = f"(select max(at) from {table})"
                newer = f"{top} + 1" if at == "int" else "clock_timestamp()"
                older = f"{top} - 3" if at == "int" else "now() - interval '3 days'"
                changes = [f"{stored[table]}", newer, newer, older]
                for value in generator.choices(changes, k=generator.randint(0, 4)):
                    key += 1
                    database.execute(f"insert into {table} values ({key}, {value})")
                key += 1
                late.execute(f"insert into {table} values ({key}, {newer})")
                if table == "keyless":
                    continue
                for change in generator.sample(["", "", f", at = {newer}", f", at = {older}"], 2):
                    database.execute(
                        f"update {table} set note = default{change} where id in (select id from "
                        f"{table} order by random() limit 2)"
                    )
            project.run()
            for table in types:
                counts = _count_by_audit(
                    database, table, stored[table], seen[table], table != "keyless"
                )
                assert _read_recorded_counts(project, table) == counts, table
                total[table] += (counts[0] or 0) + (counts[1] or 0)
            late.commit()
    assert min(total.values()) > 3
    assert project.run().table("shop.keyed")["rows_below_cursor"] is not None
    status = project.loader("status").events
    for table in types:
        [row] = [event for event in status if event["table"] == f"shop.{table}"]
        assert row["rows_below_cursor"] + row["rows_at_cursor"] >= total[table]
    folder = str(project.folder / "loader.yml")
    shown = CliRunner().invoke(main, ["-c", folder, "status"]).output
    assert "rows below cursor" in shown.splitlines()[0]
    project.run("--full-refresh")
    assert {_read_recorded_counts(project, table) for table in types} == {(None, None, None)}


def test_mariadb_counts_equal_those_of_an_audit_trigger(
    project: Project, mariadb_database: Database
) -> None:
    database = mariadb_database
    database.execute(
        "create table audit (n int auto_increment primary key, tab text, id int, old_at text)",
        "create table events (id int primary key, at datetime(6), note int)",
        "create trigger note_insert after insert on events for each row "
        "insert into audit (tab, id) values ('events', new.id)",
        "create trigger note_update after update on events for each row "
        "insert into audit (tab, id, old_at) values ('events', new.id, cast(old.at as char))",
        "insert into events select 1, now(6), 0",
    )
    project.jdbc(database, ["events"], table_options={"events": {"cursor_field": "at"}})
    project.run()
    assert _read_recorded_counts(project, "events") == (None, None, None)
    seen: set[int] = set()
    _count_by_audit(database, "events", "null", seen, True)
    found: list[Counts] = []
    with closing(database.connect()) as late:
        late.autocommit(False)
        for number in range(10, 40, 10):
            stored = f"'{project.state('shop.events')['cursor']}'"
            database.execute(
                f"insert into events values ({number}, {stored}, 0)",  # an equal cursor
                f"update events set note = note + 1 where at = {stored}",
            )
            late.cursor().execute(f"insert into events values ({number + 1}, now(6), 0)")
            database.execute(f"insert into events values ({number + 2}, now(6), 0)")
            project.run()
            counts = _count_by_audit(database, "events", stored, seen, True)
            assert _read_recorded_counts(project, "events") == counts
            found.append(counts)
            late.commit()
    assert all(counts[1] for counts in found)
    assert [bool(counts[0]) for counts in found] == [False, True, True]
    assert all(counts[2] for counts in found)


def test_the_run_summary_names_the_tables(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table t (id int primary key, at timestamptz)",
        "insert into t values (1, now())",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    project.run()
    config = str(project.folder / "loader.yml")

    def run() -> str:
        return CliRunner().invoke(main, ["-c", config, "run"]).output

    postgres_database.execute("insert into t values (2, now())")
    assert "stored cursor" not in run()
    postgres_database.execute("insert into t values (3, now() - interval '1 day')")
    assert "1 of the appended rows (shop.t) are not above the stored cursor" in run()

"""`loader reconcile` with views, files, added columns, and tables without a key or cursor."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from tests.reconcile.shop import line, missed, nothing, reconcile
from tests.services import Database
from tests.sync.project import Project


def _is_equal(project: Project, table: str) -> bool:
    """Returns whether the sync at the start appends nothing, and nothing differs after it."""
    ran = reconcile(project)
    return line(ran, table)["synced"] == 0 and missed(ran, table) == nothing()


def test_a_column_that_was_added_with_a_default(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, at timestamptz)",
        "insert into t select i, now() - i * interval '1 day' from generate_series(1, 20) as i",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})
    project.run()
    postgres_database.execute("alter table t add column kind text not null default 'plain'")
    ran = reconcile(project, "--repair")
    # the sync before the comparison reads them again
    assert line(ran, "shop.t")["synced"] == 20
    assert missed(ran, "shop.t") == nothing()
    assert _is_equal(project, "shop.t")
    # a dropped column is no difference: the raw table keeps its values
    postgres_database.execute("alter table t drop column kind")
    assert missed(reconcile(project), "shop.t") == nothing()


def test_a_cursor_that_is_the_writing_transaction(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, note text)",
        "insert into t select i, 'n' from generate_series(1, 20) as i",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "xmin"}})
    project.run()
    postgres_database.execute("delete from t where id < 4", "update t set note = 'm' where id = 9")
    ran = reconcile(project, "--repair", "--allow-deletes")
    assert line(ran, "shop.t")["synced"] == 1
    assert missed(ran, "shop.t") == {**nothing(), "missed_deletes": 3}
    assert line(ran, "shop.t")["not_compared"] == []
    assert _is_equal(project, "shop.t")


def test_a_view_whose_key_the_spec_declares(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table t (id int primary key, note text, at timestamptz)",
        "insert into t select i, 'n', now() - i * interval '1 day' from generate_series(1, 20) i",
        "create view v as select * from t",
    )
    options = {"v": {"cursor_field": "at", "primary_key": "id"}}
    project.jdbc(postgres_database, ["v"], table_options=options)
    project.run()
    postgres_database.execute("delete from t where id = 4", "update t set note = 'm' where id = 9")
    wanted = {"missed_updates": 1, "missed_rows": 0, "missed_deletes": 1}
    assert missed(reconcile(project, "--repair"), "shop.v") == wanted
    assert _is_equal(project, "shop.v")


def test_columns_and_tables_that_cannot_be_compared_are_named(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table keyless (note text, at timestamptz)",
        "insert into keyless values ('a', now())",
        "create table floats (id int primary key, f float8, arr int[], at timestamptz)",
        "insert into floats select i, 0.1, '{1}', now() - i * interval '1 day' "
        "from generate_series(1, 5) as i",
        "create table whole (id int primary key)",
        "insert into whole values (1)",
        "create table empty (id int primary key, at timestamptz)",
    )
    options: dict[str, dict[str, str]] = {
        name: {"cursor_field": "at"} for name in ("keyless", "floats", "empty")
    }
    options["whole"] = {"sync_mode": "full_refresh"}
    project.jdbc(postgres_database, list(options), table_options=options)
    project.run()
    postgres_database.execute("update floats set f = 0.2 where id = 4")
    ran = reconcile(project)
    assert line(ran, "shop.floats")["not_compared"] == ["f (double precision)", "arr (integer[])"]
    assert missed(ran, "shop.floats") == nothing()
    assert (line(ran, "shop.empty")["status"], line(ran, "shop.empty")["rows"]) == ("equal", 0)
    assert line(ran, "shop.keyless")["status"] == line(ran, "shop.whole")["status"] == "skipped"
    reported = " ".join(ran.warnings)
    assert "table_options.keyless.primary_key" in reported
    assert "full_refresh reads all rows" in reported


def test_selected_tables_and_a_table_that_fails(
    project: Project, postgres_database: Database
) -> None:
    for name in ("a", "b"):
        postgres_database.execute(
            f"create table {name} (id int primary key, at timestamptz)",
            f"insert into {name} select i, now() - i * interval '1 day' "
            "from generate_series(1, 10) as i",
        )
    options = {name: {"cursor_field": "at"} for name in ("a", "b")}
    project.jdbc(postgres_database, ["a", "b"], table_options=options)
    project.run()
    postgres_database.execute("delete from a where id = 4", "drop table b")
    ran = reconcile(project, "--repair", code=1)
    assert missed(ran, "shop.a") == {**nothing(), "missed_deletes": 1}
    assert len(ran.errors) == 1
    assert "'b'" in ran.errors[0]
    ran = reconcile(project, "--select", "shop.a")
    assert [e["table"] for e in ran.events if e["event"] == "reconciled"] == ["shop.a"]


def test_files_that_are_gone_are_not_deletes(project: Project) -> None:
    def write(name: str, text: str, day: int) -> Path:
        file = project.folder / "data" / "orders" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        stamp = dt.datetime(2025, 1, day, tzinfo=dt.timezone.utc).timestamp()
        os.utime(file, (stamp, stamp))
        return file

    first = write("a.csv", "id,note\n1,a\n2,a\n2,b\n", 1)
    write("b.csv", "id,note\n2,c\n3,c\n", 2)
    table = {"primary_key": "id", "column_types": "id int, note string"}
    own = {"path": "data", "format": "csv", "table_options": {"orders": table}}
    project.add("drop", "file", ["orders"], own)
    project.run()
    assert missed(reconcile(project), "drop.orders") == nothing()
    # both rewritten with their old times; b.csv, which is at the cursor, also with its old size
    write("a.csv", "id,note\n1,A\n", 1)
    write("b.csv", "id,note\n2,c\n3,C\n", 2)
    ran = reconcile(project, "--repair")
    assert line(ran, "drop.orders")["synced"] == 0
    assert missed(ran, "drop.orders") == {**nothing(), "missed_updates": 2}
    first.unlink()
    assert _is_equal(project, "drop.orders")


def test_rows_that_the_source_marks_deleted(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table t (id int primary key, note text, gone boolean, at timestamptz)",
        "insert into t select i, 'n', i = 2, now() - i * interval '1 day' "
        "from generate_series(1, 10) as i",
    )
    options = {"t": {"cursor_field": "at", "deleted_field": "gone", "sweep": "never"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    project.run()
    # rows are marked without moving the cursor; deleting a row marked before changes nothing
    postgres_database.execute(
        "update t set gone = true where id in (4, 5)", "delete from t where id = 2"
    )
    wanted = {**nothing(), "missed_updates": 2}
    assert missed(reconcile(project, "--repair"), "shop.t") == wanted
    assert project.rows(
        "select id, note, _cq_deleted from raw.t where _cq_batch = 2 order by id"
    ) == [(4, "n", True), (5, "n", True)]
    assert _is_equal(project, "shop.t")
    # without `deleted_field`, the mark does not count
    options = {"t": {"cursor_field": "at", "sweep": "never"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    assert missed(reconcile(project, "--repair"), "shop.t") == {**wanted, "missed_deletes": 0}
    assert project.rows("select count_if(_cq_deleted) from raw.t where _cq_batch = 3") == [(0,)]
    assert missed(reconcile(project), "shop.t") == nothing()


def test_a_column_whose_type_changed(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table t (id int primary key, n int, wide int, at timestamptz)",
        "insert into t select i, i, i, now() - i * interval '1 day' from generate_series(1, 9) i",
    )
    options = {"t": {"cursor_field": "at", "sweep": "never"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    project.run()
    postgres_database.execute(
        "alter table t alter column wide type bigint", "alter table t alter column n type text"
    )
    # widened values are equal; texts go into another column, which is null in older rows
    ran = reconcile(project, "--repair")
    assert line(ran, "shop.t")["synced"] == 1
    assert missed(ran, "shop.t") == {**nothing(), "missed_updates": 8}
    assert project.rows("select count(distinct n__string) from raw.t") == [(9,)]
    assert _is_equal(project, "shop.t")

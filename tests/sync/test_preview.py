"""`loader preview` shows the rows that the first load would append, and writes nothing."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loader.cli import main
from tests.services import Database
from tests.sync.project import Project


def _run_as_text(project: Project, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["-c", str(project.folder / "loader.yml"), *arguments])


def _create_orders(project: Project, database: Database, **options: object) -> None:
    database.execute(
        "create table orders (id int primary key, note text, price numeric(9, 2), "
        "paid_at timestamptz, raw bytea, tags text[], updated_at timestamptz)",
        "insert into orders values "
        "(1, 'first', 1.50, '2025-01-01 10:00+02', '\\x00ff', '{a,b}', '2025-01-01 10:00+00'), "
        "(2, null, null, null, null, null, '2025-01-02 10:00+00')",
    )
    table_options = {"orders": {"cursor_field": "updated_at", **options}}
    project.jdbc(database, ["orders"], table_options=table_options)


def _list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_the_rows_are_those_of_the_first_load(
    project: Project, postgres_database: Database, warehouse: Path
) -> None:
    _create_orders(project, postgres_database, column_types={"note": "string"})
    before = _list_files(warehouse), _list_files(project.folder)
    shown = project.loader("preview", "shop.orders")
    text = _run_as_text(project, "preview", "orders")
    assert (_list_files(warehouse), _list_files(project.folder)) == before
    assert shown.code == text.exit_code == 0
    rows = [event["row"] for event in shown.events]
    assert [list(row) for row in rows] == [
        ["id", "note", "price", "paid_at", "raw", "tags", "updated_at"]
    ] * 2
    assert rows[0]["price"] == "1.50"  # a string, so that no digit is lost
    assert rows[0]["paid_at"] == "2025-01-01T08:00:00.000Z"
    assert [re.split("  +", line.strip()) for line in text.stdout.splitlines()] == [
        ["shop.orders"],
        ["id", "note", "price", "paid_at", "raw", "tags", "updated_at"],
        ["int", "string", "decimal(9,2)", "timestamp", "binary", "array<string>", "timestamp"],
        ["1", "first", "1.50", "2025-01-01 08:00:00", "00FF", "[a, b]", "2025-01-01 10:00:00"],
        ["2", "null", "null", "null", "null", "null", "2025-01-02 10:00:00"],
    ]

    project.run()
    columns = ", ".join(rows[0])
    loaded = project.rows(f"select to_json(struct({columns})) from raw.orders order by id")
    assert [json.loads(text, parse_float=str) for (text,) in loaded] == [
        {key: value for key, value in row.items() if value is not None} for row in rows
    ]
    stored = project.state("shop.orders")
    project.loader("preview", "shop.orders")
    assert project.state("shop.orders") == stored
    assert project.run().table("shop.orders")["status"] == "nothing new"


def test_the_first_load_begins_at_the_initial_cursor(
    project: Project, postgres_database: Database
) -> None:
    _create_orders(project, postgres_database, initial_cursor="2025-01-02")
    [row] = [event["row"] for event in project.loader("preview", "shop.orders").events]
    assert row["id"] == 2
    limited = project.loader("preview", "shop.orders", "--limit", "1").events
    assert len(limited) == 1


def test_a_wide_table_is_shown_row_by_row(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create_orders(project, postgres_database)
    from loader.cli import preview as command

    monkeypatch.setattr(command, "_fits", lambda *_: False)
    lines = _run_as_text(project, "preview", "shop.orders").stdout.splitlines()
    assert lines[:3] == [
        "shop.orders, row 1",
        "column      type           value",
        "id          int            1",
    ]
    assert "shop.orders, row 2" in lines


def test_errors_are_reported_once(project: Project, postgres_database: Database) -> None:
    _create_orders(project, postgres_database)
    typo = project.loader("preview", "shop.order")
    assert (typo.code, typo.errors) == (
        2,
        [
            "loader preview: no table of the spec matches 'shop.order'. "
            "Did you mean `shop.orders`? Choose from: shop.orders"
        ],
    )
    postgres_database.execute("create view broken as select id / 0 as id, updated_at from orders")
    options = {"broken": {"cursor_field": "updated_at", "primary_key": "id"}}
    project.jdbc(postgres_database, ["broken"], table_options=options)
    broken = project.loader("preview", "shop.broken")
    [error] = broken.errors
    assert broken.code == 1
    assert error.startswith("table shop.broken: division by zero")


def test_an_empty_table(project: Project, postgres_database: Database) -> None:
    _create_orders(project, postgres_database)
    postgres_database.execute("delete from orders")
    shown = _run_as_text(project, "preview", "shop.orders")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1].startswith("int  string")
    assert "shop.orders has no rows." in shown.stdout


@pytest.mark.slow
def test_a_large_table_is_shown_in_seconds(
    project: Project, postgres_database: Database, mariadb_database: Database
) -> None:
    size = int(os.environ.get("PREVIEW_ROWS", "400000"))
    postgres_database.execute(
        "create table orders (id int primary key, note text, updated_at timestamptz)",
        f"insert into orders select i, repeat('x', 100), now() from generate_series(1, {size}) i",
    )
    mariadb_database.execute(
        "create table orders (id int primary key, note text, updated_at datetime)",
        f"insert into orders select seq, repeat('x', 100), now() from seq_1_to_{size}",
    )
    options = {"orders": {"cursor_field": "updated_at"}}
    for name, database in (("shop", postgres_database), ("other", mariadb_database)):
        project.jdbc(database, ["orders"], name, table_options=options)
        project.sources = project.sources[-1:]
        project.write()
        began = time.monotonic()
        shown = project.loader("preview", f"{name}.orders")
        assert len(shown.events) == 10, shown.text
        seconds = time.monotonic() - began
        print(f"{name}: {seconds:.1f} s")
        assert seconds < 20


def test_a_table_with_log_based_capture_is_read_by_a_query(
    project: Project, postgres_database: Database
) -> None:
    """It creates no replication slot, no publication and no raw table."""
    _create_orders(project, postgres_database, cursor_field="updated_at", sync_mode="cdc")
    before = postgres_database.query("select count(*) from pg_publication")
    shown = project.loader("preview", "shop.orders")
    assert (shown.code, [event["row"]["id"] for event in shown.events]) == (0, [1, 2])
    assert postgres_database.query(
        "select count(*) from pg_replication_slots where database = current_database()"
    ) == [(0,)]
    assert postgres_database.query("select count(*) from pg_publication") == before
    assert not project.lake().exists("orders")


def test_files(project: Project) -> None:
    folder = project.folder / "landing" / "prices"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,price\n1,2.50\n2,3.00\n3,1.00\n")
    project.add("files", "file", ["prices"], {"path": "landing", "format": "csv"})
    shown = project.loader("preview", "files.prices", "--limit", "2")
    assert [event["row"]["id"] for event in shown.events] == ["1", "2"]


def test_a_connector_is_refused(project: Project) -> None:
    catalog = project.folder / "catalog.json"
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    stream = {"stream": "things", "tap_stream_id": "things", "schema": schema, "metadata": []}
    catalog.write_text(json.dumps({"streams": [stream]}))
    options = {"command": "no-such-tap", "catalog": "catalog.json"}
    project.add("tap", "singer", ["things"], options)
    refused = project.loader("preview", "tap.things")
    [error] = refused.errors
    assert refused.code == 1
    assert error.startswith("table tap.things: a connector sends its records only to a sync")

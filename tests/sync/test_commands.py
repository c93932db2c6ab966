"""Commands print tables and messages for people, or JSON events for programs."""

from __future__ import annotations

import json

from click.testing import CliRunner

from loader.cli import main
from loader.lake.locks import lock_table
from tests.services import Database
from tests.sync.project import Project


def _create_shop(project: Project, database: Database) -> None:
    database.execute(
        "create table orders (id int primary key, note text, updated_at timestamptz)",
        "insert into orders values (1, 'a', '2025-01-01 10:00+00'), "
        "(2, 'b', '2025-01-02 10:00+00')",
        "create table log (line text, at date)",
        "insert into log values ('x', '2025-01-01')",
        "create view orders_view as select * from orders",
    )
    options = {"orders": {"cursor_field": "updated_at"}, "log": {"cursor_field": "at"}}
    project.jdbc(database, ["*"], table_options=options)


def _invoke(project: Project, *arguments: str) -> tuple[int, str, str]:
    """Returns exit code, stdout and stderr without `--log-format json`."""
    config = str(project.folder / "loader.yml")
    result = CliRunner().invoke(main, ["-c", config, *arguments])
    return result.exit_code, result.stdout, result.stderr


def _split_cells(text: str) -> list[list[str]]:
    """Splits a printed table into cells; columns are at least two spaces apart."""
    return [[c.strip() for c in line.split("  ") if c.strip()] for line in text.splitlines()]


def test_before_the_first_run(project: Project, postgres_database: Database) -> None:
    _create_shop(project, postgres_database)
    code, out, err = _invoke(project, "check")
    assert (code, err) == (0, "")
    [log, orders] = _split_cells(out)[1:3]
    assert log == ["shop.log", "incremental", "at (date)"]
    assert "\nshop.log: no primary key: rows are appended, but a deduped_latest model needs" in out
    assert orders[:4] == ["shop.orders", "incremental", "updated_at (timestamptz)", "id"]
    assert "updated_at has no index: every sync scans the whole table" in out
    assert out.endswith("All tables can be synced.\n")

    code, out, err = _invoke(project, "discover")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "source  table        kind   primary key  cursor candidates",
        "shop    log          table               at",
        "shop    orders       table  id           updated_at",
        "shop    orders_view  view                updated_at",
    ]
    columns = project.loader("discover", "shop", "--columns").events
    assert [(e["column"], e["type"], e["key"]) for e in columns if e["table"] == "orders"] == [
        ("id", "int", True),
        ("note", "string", False),
        ("updated_at", "timestamp", False),
    ]
    unknown = project.loader("discover", "shopp")
    assert (unknown.code, unknown.errors) == (
        2,
        [": there is no source 'shopp'. Did you mean `shop`?"],
    )

    nothing = "Nothing has been synced yet: run `loader run`.\n"
    assert _invoke(project, "status", "--fail-if-failing") == (0, nothing, "")
    assert _invoke(project, "status", "--fail-if-stale", "2h") == (1, nothing, "")
    as_json = ("--log-format", "json", "status", "--fail-if-stale", "2h")
    assert _invoke(project, *as_json) == (1, "", "")
    assert _invoke(project, "state", "list") == (
        0,
        "No cursor is stored yet: run `loader run`.\n",
        "",
    )

    code, out, err = _invoke(project, "run", "--dry-run")
    assert (code, err) == (0, "")
    assert _split_cells(out)[1:] == [
        ["shop.log", "incremental", "at", "2025-01-01", "1"],
        ["shop.orders", "incremental", "updated_at", "2025-01-02 10:00:00", "2"],
    ]
    # The dry run wrote nothing, not even the tables of the loader.
    assert not project.rows("show namespaces") or project.schema not in {
        name for (name,) in project.rows("show namespaces")
    }


def test_the_output_of_run_and_status(project: Project, postgres_database: Database) -> None:
    _create_shop(project, postgres_database)
    code, out, err = _invoke(project, "run")
    assert code == 0
    head, *rows, total = out.splitlines()
    assert total == "2 tables: 2 synced; 3 rows appended."
    assert head.split() == [
        *("table", "status", "batch", "read", "appended", "redelivered", "cursor", "seconds")
    ]
    assert [row.split()[:6] for row in rows] == [
        ["shop.log", "synced", "1", "1", "1", "0"],
        ["shop.orders", "synced", "1", "2", "2", "0"],
    ]
    assert all(row == row.rstrip() for row in (head, *rows))
    lines = err.splitlines()
    assert "warning: shop.log: no primary key: a deduped_latest model needs a key" in lines
    # Progress is printed only for slow tables.
    assert not [line for line in lines if line.startswith("shop.")]

    again = project.run()
    kinds = {event["event"] for event in again.events}
    assert kinds == {"phase", "warning", "table"}
    assert all(json.loads(line) for line in again.text.splitlines())
    assert again.table("shop.orders")["cursor"] == "2025-01-02 10:00:00"

    assert _invoke(project, "--quiet", "run") == (0, "", "")

    code, out, err = _invoke(project, "status")
    assert (code, err) == (0, "")
    shown = {cells[0]: cells[1:] for cells in _split_cells(out)[1:]}
    assert shown["shop.orders"][:4] == ["nothing new", "2025-01-02 10:00:00", "1", "2"]
    assert shown["shop.orders"][4].endswith("ago")

    postgres_database.execute("drop table log")
    project.jdbc(postgres_database, ["orders", "log"], table_options=_options("orders", "log"))
    quiet_code, quiet_out, quiet_err = _invoke(project, "--quiet", "run")
    assert (quiet_code, quiet_out) == (1, "")
    assert quiet_err.startswith("error: source shop, tables: the source has no table 'log'.")
    code, out, err = _invoke(project, "status")
    assert "shop.log: source shop, tables: the source has no table 'log'." in out


def _options(*names: str) -> dict[str, dict[str, str]]:
    known = {"orders": "updated_at", "log": "at"}
    return {name: {"cursor_field": known[name]} for name in names}


def test_state_commands(project: Project, postgres_database: Database) -> None:
    _create_shop(project, postgres_database)
    project.jdbc(postgres_database, ["orders"], table_options=_options("orders"))
    project.run()
    listed = project.loader("state", "list").events
    assert [(e["table"], e["cursor"], e["field"], e["batch"], e["version"]) for e in listed] == [
        ("shop.orders", "2025-01-02 10:00:00", "updated_at", 1, 1)
    ]
    name = "shop.orders"
    assert _invoke(project, "state", "set", name, "2025-01-01T11:00:00+01:00") == (
        0,
        "shop.orders: cursor 2025-01-01 10:00:00 (version 2)\n",
        "",
    )
    assert _invoke(project, "state", "set", name, "2025-01-01")[1] == (
        "shop.orders: cursor 2025-01-01 00:00:00 (version 3)\n"
    )
    # The rows are read again, but not appended again, and the cursor advances.
    ran = project.run().table(name)
    assert (ran["status"], ran["redelivered"]) == ("nothing new", 2)
    assert project.state(name)["cursor"] == "2025-01-02 10:00:00"
    code, out, _ = _invoke(project, "state", "reset", name)
    assert (code, out) == (
        0,
        "shop.orders: cursor none: the next sync reads from the beginning (version 5)\n",
    )
    shown = project.loader("state", "show", name).events
    assert [e["version"] for e in shown] == [5, 4, 3, 2, 1]
    assert [e["version"] for e in project.loader("state", "show", "ORDERS").events] == [
        5,
        4,
        3,
        2,
        1,
    ]
    assert json.loads(shown[0]["value"])["cursor"] is None
    ran = project.run().table(name)
    assert (ran["status"], ran["redelivered"]) == ("nothing new", 2)

    for arguments, code, reported in (
        (("show", "shop.ordrs"), 2, "for 'shop.ordrs'. Did you mean `shop.orders`?"),
        (("show", "ordrs"), 2, "there is no state for 'ordrs'. Did you mean `shop.orders`?"),
        (("show", "foo"), 2, "there is no state for 'foo'. `loader state list` shows"),
        (("reset", "ordrs"), 2, "there is no state for 'ordrs'. Did you mean `shop.orders`?"),
        (("reset", "shop.ordrs"), 2, "there is no state for 'shop.ordrs'"),
        (("set", "shop.ordrs", "1"), 2, "shop.ordrs has no cursor yet"),
        (("set", name, "yesterday"), 2, "'yesterday' is not a value of the column's type"),
    ):
        ran_ = project.loader("state", *arguments)
        assert (ran_.code, len(ran_.errors)) == (code, 1)
        assert reported in ran_.errors[0]
    with lock_table(project.lake(), "orders", timeout=0):
        held = project.loader("state", "set", name, "2025-01-01")
        assert held.code == 1
        assert held.errors[0].startswith("table shop.orders: a run is syncing this table.")
        locked = project.loader("run")
        assert (locked.code, locked.table(name)["status"]) == (1, "locked")
        assert locked.errors == [
            "table shop.orders: another run holds this table. "
            "It was skipped; run again after the other run has finished"
        ]
        [seen] = project.loader("status").events  # the cursor is the one of the last sync
        assert (seen["last_attempt"], seen["cursor"]) == ("locked", "2025-01-02 10:00:00")
        for asked, code in (("--fail-if-failing", 0), ("--fail-if-stale=1h", 0)):
            assert project.loader("status", asked).code == code  # another run is syncing the table
        assert project.loader("status", "--fail-if-stale", "1ms").code == 2

"""Codegen for a database with many tables: the build passes, and later runs keep edits.

STRANDLINE_LOOKUPS=15 creates thirty tables; the suite uses fewer, because each takes some seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from loader.cli import main
from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project, Ran

PLAIN = [f"plain_{number}" for number in range(1, 7)]
LOOKUPS = [f"lookup_{n}" for n in range(int(os.environ.get("STRANDLINE_LOOKUPS", "2")))]
ALIKE = [*PLAIN[1:5], *LOOKUPS[1:]]
"""Tables that are not built, because they are generated like another table of their kind."""
ODD = ["Order Items", "we.ird", "order_items", "select", "naïve", "2024"]
READ = ODD[2:]
"""Tables that are built but not tested: tests quote their names like those of the first two."""
CURSORS = {"by_day": "date", "by_number": "int", "by_clock": "timestamp", "empty": "int"}


def _create(database: Database) -> dict[str, dict[str, Any]]:
    """Creates the tables with two rows each, except `empty`; returns their options."""
    statements = []
    for name in [*PLAIN, *ODD, *LOOKUPS]:
        statements += [
            f'create table "{name}" (id int primary key, "a b" text, updated_at timestamptz)',
            f"""insert into "{name}" values (1, 'x', '2025-01-01'), (2, null, '2025-01-02')""",
        ]
    for name, type_ in CURSORS.items():
        literal = "1" if type_ == "int" else "'2025-01-01'"
        statements += [
            f"create table {name} (id int, line int, updated_at {type_}, primary key (id, line))",
            f"insert into {name} values (1, 1, {literal}), (1, 2, {literal})",
        ]
    database.execute(
        *statements,
        "delete from empty",
        "create table log (line text, updated_at timestamptz)",
        "insert into log values ('x', '2025-01-01')",
        "comment on table plain_1 is 'Our customers; {{ not jinja }}'",
        "comment on column plain_1.id is 'It''s the customer'",
    )
    options: dict[str, dict[str, Any]] = {
        name: {"cursor_field": "updated_at"} for name in [*PLAIN, *ODD, *CURSORS, "log"]
    }
    return {**options, **{name: {"sync_mode": "full_refresh"} for name in LOOKUPS}}


def _files(ran: Ran) -> dict[str, str]:
    return {Path(e["file"]).name: e["what"] for e in ran.events if e["event"] == "file"}


@pytest.mark.slow
def test_many_tables(project: Project, dbt: DbtProject, postgres_database: Database) -> None:
    options = _create(postgres_database)
    assert len(options) == 17 + len(LOOKUPS)
    del options["plain_6"]
    project.jdbc(postgres_database, list(options), table_options=options)
    project.run()

    both = ("--history", "shop.plain_1", "--history", "shop.empty")
    written = project.loader("codegen", *both)
    assert written.code == 0, written.text
    folder = project.folder / "models" / "strandline"
    files = _files(written)
    assert set(files.values()) == {"written"}
    models = {name for name in files if name.endswith(".sql")}
    assert len(models) == 17 + len(LOOKUPS)  # one has no key, two have two models
    assert {"shop_order_items_latest.sql", "shop_order_items_2_latest.sql"} < models
    assert not [name for name in models if name != name.lower() or " " in name or "ï" in name]
    assert [w for w in written.warnings if not w.startswith("shop.log: no primary key")] == []

    manifest = dbt.parse()
    named = {s.identifier: s.name for s in manifest.sources.values() if s.source_name == "shop"}
    alike = [f"source:shop.{name}+" for name in ALIKE]
    untested = [f"source:shop.{named[name]}+,resource_type:test" for name in READ]
    built = dbt.run("build", "--exclude", *alike, *untested, manifest=manifest)
    fine = ("success", "pass", "no-op")  # no-op is for exposures
    assert {n: (r.status, r.message) for n, r in built.items() if r.status not in fine} == {}
    tests = [name for name in built if name.startswith("strandline_")]
    # for each model, and for the ledger and state; full refreshes have no test for ties
    assert len(tests) >= 2 * (len(models) - len(ALIKE) - len(READ)) - len(LOOKUPS)
    whole = {name.removesuffix(".sql") for name in models} & set(built)
    assert len(whole) == len(models) - len(ALIKE)
    rows = {name: 0 if "empty" in name else 2 for name in whole}
    assert {name: len(dbt.rows(name)) for name in whole} == rows
    customers = manifest.nodes["model.probe.shop_plain_1_latest"]
    assert customers.description.startswith("Our customers; {{ not jinja }}. The newest version")
    assert customers.columns["id"].description == "It's the customer"
    chosen = "source:shop.plain_1 source:shop.we_ird"
    fresh = dbt.run("source", "freshness", "--select", chosen, manifest=manifest)
    assert {result.status for result in fresh.values()} == {"pass"}

    test = "      - strandline.no_cursor_ties"
    lenient = f"{test}: {{config: {{severity: warn}}}}  # some expected"
    _edit(folder / "models.yml", test, lenient)
    _edit(folder / "models.yml", "Our customers", "Those who buy")
    _edit(folder / "shop_plain_2_latest.sql", "select *", "select * -- all of it")
    (folder / "shop_plain_3_latest.sql").unlink()
    mine = {path.name: path.read_text() for path in folder.iterdir()}
    postgres_database.execute(
        "alter table plain_4 drop constraint plain_4_pkey, add primary key (id, updated_at)"
    )
    options["plain_6"] = {"cursor_field": "updated_at"}
    project.jdbc(postgres_database, list(options), table_options=options)

    looked = project.loader("codegen", "--dry-run")
    assert {path.name: path.read_text() for path in folder.iterdir()} == mine
    again = project.loader("codegen")
    assert again.code == 0, again.text
    assert _files(again) == _files(looked)
    assert {name: what for name, what in _files(again).items() if what != "unchanged"} == {
        "sources.yml": "updated",
        "models.yml": "updated",
        "codegen.json": "updated",
        "shop_plain_2_latest.sql": "kept",
        "shop_plain_3_latest.sql": "left out",
        "shop_plain_4_latest.sql": "updated",
    }
    assert any(
        w.startswith("shop.plain_6: skipped, because it has not been") for w in again.warnings
    )
    assert lenient in (folder / "models.yml").read_text()
    assert "Those who buy" in (folder / "models.yml").read_text()
    assert (folder / "shop_plain_2_latest.sql").read_text() == mine["shop_plain_2_latest.sql"]
    assert "shop_plain_3_latest" not in (folder / "models.yml").read_text()
    project.run("--select", "shop.plain_6")
    last = _files(project.loader("codegen"))
    assert last.pop("shop_plain_6_latest.sql") == "written"
    assert set(last.values()) == {"unchanged", "updated", "kept", "left out"}
    sources = [one for one in dbt.parse().sources.values() if one.source_name == "shop"]
    assert len(sources) == 17 + len(LOOKUPS)


def _edit(file: Path, wrong: str, right: str) -> None:
    text = file.read_text()
    assert wrong in text
    file.write_text(text.replace(wrong, right, 1))


def test_comments_of_mariadb(project: Project, dbt: DbtProject, mariadb_database: Database) -> None:
    mariadb_database.execute(
        "create table orders (id int primary key comment 'The order', at datetime) comment 'Ours'",
        "create view orders_view as select * from orders",
    )
    options = {name: {"cursor_field": "at"} for name in ("orders", "orders_view")}
    project.jdbc(mariadb_database, list(options), table_options=options)
    project.run()
    written = project.loader("codegen")
    assert written.code == 0, written.text
    sources = yaml.safe_load((project.folder / "models/strandline/sources.yml").read_text())
    orders, view = sources["sources"][0]["tables"]
    assert orders["description"] == "Ours."
    assert orders["columns"][0]["description"] == "The order"
    assert view["description"].startswith("Every version of each row of orders_view")


def test_errors_are_reported_and_nothing_is_written(
    project: Project, dbt: DbtProject, postgres_database: Database
) -> None:
    made = "(id int primary key, at date)"
    postgres_database.execute(f"create table orders {made}", f"create table later {made}")
    options = {name: {"cursor_field": "at"} for name in ("orders", "later", "missing")}
    project.jdbc(postgres_database, list(options), table_options=options)
    folder = project.folder / "models" / "strandline"
    folder.mkdir(parents=True)
    (folder / "models.yml").write_text("models: [")
    broken = project.loader("codegen")
    assert (broken.code, [path.name for path in folder.iterdir()]) == (2, ["models.yml"])
    [reported] = broken.errors
    assert "models.yml:2:1: not valid YAML" in reported
    assert reported.endswith("nothing was changed")

    (folder / "models.yml").unlink()
    early = project.loader("codegen", "--select", "shop.orders")
    assert (early.code, list(folder.iterdir())) == (2, [])
    assert early.errors[0].startswith("loader codegen: no table has been synced yet. Run `loader ")
    project.run("--select", "shop.orders")
    unknown = project.loader("codegen", "--select", "shop.orders", "--history", "shop.order")
    assert (unknown.code, list(folder.iterdir())) == (2, [])
    [reported] = unknown.errors
    assert "no selected table matches 'shop.order'. Did you mean `shop.orders`?" in reported

    config = str(project.folder / "loader.yml")
    shown = CliRunner().invoke(main, ["-c", config, "codegen", "-s", "shop.orders", "--dry-run"])
    assert (shown.exit_code, list(folder.iterdir())) == (0, [])
    assert "+++ models/strandline/shop_orders_latest.sql" in shown.stdout.splitlines()
    assert "+        unique_key=['id']," in shown.stdout.splitlines()
    assert shown.stdout.endswith("Nothing was written: this was a dry run.\n")

    partly = project.loader("codegen")
    assert partly.code == 1
    assert [error.split(". ")[0] for error in partly.errors] == [
        "source shop, tables: the source has no table 'missing'"
    ]
    assert partly.warnings == [
        "shop.later: skipped, because it has not been synced yet: run `loader run`, then codegen"
    ]
    assert set(_files(partly)) == {
        "sources.yml",
        "models.yml",
        "shop_orders_latest.sql",
        "codegen.json",
    }

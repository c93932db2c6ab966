"""Repeated runs of codegen on a folder that users edit: which files are written or kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml

from loader.codegen.dbt_project import Elsewhere
from loader.codegen.files import Manifest
from loader.codegen.generate import Folder, Generated, generate
from loader.codegen.table import Column, Table
from loader.errors import SpecError
from loader.rows.cursor import CursorType
from loader.rows.window import CursorField
from tests.dbt.dbtproject import PACKAGE

AT = CursorField("updated_at", CursorType.TIMESTAMPTZ)


def table(name: str, *columns: str, **facts: Any) -> Table:
    listed = tuple(Column(column, "string") for column in ("id", *columns))
    known: dict[str, Any] = {"source": "shop", "schema": "raw", "key": ("id",), "cursor": AT}
    return Table(spec_name=name, name=name, columns=listed, **{**known, **facts})


@dataclass
class Project:
    """An in-memory folder on which codegen runs."""

    files: dict[str, str] = field(default_factory=dict)
    memory: Manifest = field(default_factory=Manifest)
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    raw_schema: str = "raw"

    def codegen(
        self, *tables: Table, history: Sequence[str] = (), select: bool = False
    ) -> Generated:
        folder = Folder(self.files.get, str, self.elsewhere, self.raw_schema)
        complete = () if select else {"shop", "crm"}
        made = generate(tables, folder, self.memory, history, complete)
        for file in made.files:
            if file.text is not None:
                self.files[file.name] = file.text
        self.memory = Manifest.from_json(made.manifest.to_json(), "codegen.json")
        assert self.memory == made.manifest
        return made

    def edit(self, file: str, wrong: str, right: str) -> None:
        assert self.files[file].count(wrong) >= 1
        self.files[file] = self.files[file].replace(wrong, right, 1)

    def tables(self, source: str = "shop") -> dict[str, dict[str, Any]]:
        listed = yaml.safe_load(self.files["sources.yml"])["sources"]
        [found] = [one for one in listed if one["name"] == source]
        return {one["name"]: one for one in found["tables"]}

    def models(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in yaml.safe_load(self.files["models.yml"])["models"]}


def get_statuses(made: Generated) -> dict[str, str]:
    return {file.name: file.status for file in made.files}


@pytest.fixture
def project() -> Project:
    made = Project()
    made.codegen(table("orders", "total"), table("log", key=()))
    return made


def test_the_first_run_writes_all(project: Project) -> None:
    assert set(project.files) == {"sources.yml", "models.yml", "shop_orders_latest.sql"}
    assert set(project.tables()) == {"orders", "log"}
    assert set(project.models()) == {"shop_orders_latest"}
    [source] = yaml.safe_load(project.files["sources.yml"])["sources"]
    assert source["schema"] == "{{ var('strandline__raw_schema', 'raw') }}"


def test_a_new_file_of_models_lists_the_other_tests(project: Project) -> None:
    listed = set(re.findall(r"^#   - strandline\.(\w+)  # \w", project.files["models.yml"], re.M))
    written = {
        test.partition(".")[2] for one in project.models().values() for test in one["data_tests"]
    }
    of_package = {"batches_complete", "inclusive_cursor", "state_consistent"}
    assert all(name in project.files["models.yml"] for name in of_package)
    known = {path.stem for path in (PACKAGE / "macros" / "generic_tests").glob("*.sql")}
    assert listed | written | of_package == known
    assert len(listed) + len(written) + len(of_package) == len(known)
    assert "strandline." not in project.files["sources.yml"]


def test_a_second_run_changes_nothing(project: Project) -> None:
    before = dict(project.files)
    made = project.codegen(table("orders", "total"), table("log", key=()))
    assert set(get_statuses(made).values()) == {"unchanged"}
    assert project.files == before
    assert [about for about, _ in made.notes] == ["shop.log"]  # it still has no key


def test_edits_stay_while_columns_and_tables_come(project: Project) -> None:
    test = "- strandline.no_cursor_ties"
    warn = f"{test}:  # some expected\n          config: {{severity: warn}}"
    project.edit("models.yml", f"      {test}", f"      {warn}")
    project.edit("models.yml", "      - strandline.matches_raw\n", "")
    project.edit("sources.yml", "Every version of each row of orders that was delivered.", "Ours.")
    tables = (table("orders", "total", "note"), table("log", key=()), table("items"))
    made = project.codegen(*tables)

    orders = project.tables()["orders"]
    assert orders["description"] == "Ours."
    assert [column["name"] for column in orders["columns"]] == ["id", "total", "note"]
    models = project.models()
    assert models["shop_orders_latest"]["data_tests"] == [
        {"strandline.no_cursor_ties": {"config": {"severity": "warn"}}}
    ]
    assert "# some expected\n" in project.files["models.yml"]
    assert "strandline.matches_raw" in models["shop_items_latest"]["data_tests"]
    assert get_statuses(made) == {
        "sources.yml": "updated",
        "models.yml": "updated",
        "shop_orders_latest.sql": "unchanged",
        "shop_items_latest.sql": "written",
    }
    assert get_statuses(project.codegen(*tables))["sources.yml"] == "kept"


def test_a_model_follows_while_nobody_touches_it(project: Project) -> None:
    made = project.codegen(replace(table("orders", "total"), key=("id", "total")), select=True)
    assert get_statuses(made)["shop_orders_latest.sql"] == "updated"
    assert "unique_key=['id', 'total']" in project.files["shop_orders_latest.sql"]


def test_a_model_with_an_edit_is_never_written_again(project: Project) -> None:
    project.edit("shop_orders_latest.sql", "select *", "select id, total")
    mine = project.files["shop_orders_latest.sql"]
    changed = replace(table("orders", "total"), key=("id", "total"))
    made = project.codegen(changed, select=True)
    assert get_statuses(made)["shop_orders_latest.sql"] == "kept"
    assert project.files["shop_orders_latest.sql"] == mine
    [(about, note)] = [one for one in made.notes if one[0].endswith(".sql")]
    assert about == "shop_orders_latest.sql"
    assert "codegen would now write:" in note
    assert "unique_key=['id', 'total']" in note

    again = project.codegen(changed, select=True)
    assert [note for about, note in again.notes if about.endswith(".sql")] == []  # reported once


def test_a_deleted_model_stays_deleted_with_its_entry(project: Project) -> None:
    del project.files["shop_orders_latest.sql"]
    made = project.codegen(table("orders", "total"), table("items"), select=True)
    assert get_statuses(made)["shop_orders_latest.sql"] == "left out"
    assert "shop_orders_latest.sql" not in project.files
    assert set(project.models()) == {"shop_items_latest"}
    assert set(project.tables()) == {"orders", "log", "items"}


def test_a_deleted_table_stays_deleted(project: Project) -> None:
    text = project.files["sources.yml"]
    project.files["sources.yml"] = text[: text.index("\n      - name: log")]
    project.codegen(table("orders", "total"), table("log", key=()))
    assert set(project.tables()) == {"orders"}


def test_no_model_is_written_that_reads_an_undeclared_table(project: Project) -> None:
    project.files["sources.yml"] = "sources: []  # those of shop are elsewhere\n"
    made = project.codegen(table("orders", "total"), table("items"), select=True)
    assert project.files["sources.yml"] == "sources: []  # those of shop are elsewhere\n"
    assert get_statuses(made)["shop_orders_latest.sql"] == "unchanged"
    assert "shop_items_latest.sql" not in project.files
    assert ("shop.items", "sources.yml does not declare it: no latest model") in made.notes


def test_a_deleted_properties_file_is_written_again(project: Project) -> None:
    before = project.files.pop("sources.yml")
    made = project.codegen(table("items"), select=True)
    assert get_statuses(made)["sources.yml"] == "written"
    assert set(project.tables()) == {"orders", "log", "items"}
    assert before.split("- name: orders")[1] in project.files["sources.yml"]


def test_tables_that_are_not_selected_are_left_alone(project: Project) -> None:
    before = dict(project.files)
    project.codegen(table("items"), select=True)
    assert set(project.tables()) == {"orders", "log", "items"}
    made = project.codegen(table("orders", "total"), select=True)
    assert not made.notes
    for line in before["sources.yml"].splitlines():
        assert line in project.files["sources.yml"]


def test_a_table_that_left_the_spec_is_reported_and_kept(project: Project) -> None:
    before = dict(project.files)
    made = project.codegen(table("log", key=()))
    assert project.files == before
    [stale] = [note for about, note in made.notes if about == "shop.orders"]
    assert stale.startswith("no longer a table of the spec")


def test_the_history_option_is_needed_only_once(project: Project) -> None:
    made = project.codegen(table("orders", "total"), history=["shop.ord*"], select=True)
    assert get_statuses(made)["shop_orders_history.sql"] == "written"
    assert "materialized='deduped_history'" in project.files["shop_orders_history.sql"]
    assert set(project.models()) == {"shop_orders_latest", "shop_orders_history"}

    made = project.codegen(replace(table("orders", "total"), key=("total",)), select=True)
    assert get_statuses(made)["shop_orders_history.sql"] == "updated"


def test_tables_of_similar_names_get_models_of_their_own() -> None:
    project = Project()
    names = ["Order Items", "order_items", "order.items"]
    tables = [table(name.replace(".", "_") if "." in name else name) for name in names[:2]]
    project.codegen(
        *tables, table("we ird"), table("a_b", source="crm"), table("b", source="crm_a")
    )
    assert set(project.files) == {
        "sources.yml",
        "models.yml",
        "shop_order_items_latest.sql",
        "shop_order_items_2_latest.sql",
        "shop_we_ird_latest.sql",
        "crm_a_b_latest.sql",
        "crm_a_b_2_latest.sql",
    }
    assert project.tables()["order_items_2"]["identifier"] == "Order Items"
    assert project.tables()["we_ird"]["quoting"] == {"identifier": True}
    assert "identifier" not in project.tables()["order_items"]


def test_what_the_project_declares_itself_is_not_generated() -> None:
    project = Project(
        elsewhere=Elsewhere(
            tables={("shop", "orders"): "models/shop.yml"},
            models={"shop_items_latest": "models/items.sql"},
            snapshots={("shop", "orders"): "models/orders.sql"},
        )
    )
    made = project.codegen(table("orders"), table("items"))
    assert set(project.files) == {"sources.yml"}
    assert set(project.tables()) == {"items"}
    assert made.notes == [
        ("shop.orders", "already declared in models/shop.yml, so not declared again"),
        ("shop.orders", "models/orders.sql already builds it: no latest model"),
        ("shop.items", "models/items.sql already builds it: no latest model"),
    ]


def test_a_model_that_was_moved_keeps_its_entry(project: Project) -> None:
    del project.files["shop_orders_latest.sql"]
    project.elsewhere = Elsewhere(models={"shop_orders_latest": "models/marts/x.sql"})
    made = project.codegen(table("orders", "total"), table("log", key=()))
    assert get_statuses(made)["shop_orders_latest.sql"] == "moved"
    assert set(project.models()) == {"shop_orders_latest"}


def test_a_schema_that_differs_from_the_variable_is_written_as_it_is() -> None:
    project = Project(raw_schema="landing")
    project.codegen(table("orders"))
    assert yaml.safe_load(project.files["sources.yml"])["sources"][0]["schema"] == "raw"


def test_without_tables_nothing_is_written() -> None:
    made = Project().codegen()
    assert (made.files, made.notes, made.manifest) == ([], [], Manifest())


@pytest.mark.parametrize("text", ["sources: [", "- a", "a: b: c", "just a text", "\t- x: 1"])
def test_a_file_that_is_no_yaml_is_one_clear_error(project: Project, text: str) -> None:
    project.files["sources.yml"] = text
    before = dict(project.files)
    with pytest.raises(SpecError, match=r"sources\.yml.*nothing was changed"):
        project.codegen(table("orders"), table("items"))
    assert project.files == before


def test_a_column_that_cannot_be_added_safely_is_reported(project: Project) -> None:
    project.files["sources.yml"] = yaml.safe_dump(
        {"sources": [{"name": "shop", "tables": [{"name": "orders", "columns": []}]}]}
    ).replace("columns: []", "columns: [{name: id}, # a comment\n      {name: total}]")
    project.memory = replace(
        project.memory,
        data={"sources.yml": yaml.safe_load(project.files["sources.yml"])},
    )
    mine = project.files["sources.yml"]
    made = project.codegen(table("orders"), select=True)
    assert project.files["sources.yml"] == mine
    assert get_statuses(made)["sources.yml"] == "kept"
    assert any("cannot be added safely" in note for _, note in made.notes)


def test_without_a_manifest_nothing_is_overwritten(project: Project) -> None:
    project.edit("sources.yml", "data_type: string", "data_type: text")
    project.edit("shop_orders_latest.sql", "select *", "select id")
    before = dict(project.files)
    project.memory = Manifest()
    project.codegen(table("orders", "total"), table("log", key=()))
    assert project.files == before


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"version": 1}', "<<<<<<< ours", '{"version": 2}']
)
def test_an_invalid_manifest_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"codegen\.json"):
        Manifest.from_json(text, "codegen.json")

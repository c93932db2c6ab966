"""Codegen finds the dbt project next to the spec, and what the project already declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader.codegen.dbt_project import DbtProject
from loader.errors import SpecError
from loader.spark import setup


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_default_is_a_folder_of_its_own_among_the_models(tmp_path: Path) -> None:
    _write(tmp_path / "dbt_project.yml", "name: shop\nmodel-paths: [transform, more]\n")
    found = DbtProject.find(tmp_path, None)
    assert (found.root, found.output) == (tmp_path, tmp_path / "transform" / "strandline")
    assert found.raw_schema == "raw"
    assert found.relative_path(found.output / "sources.yml") == "transform/strandline/sources.yml"


def test_a_folder_that_was_moved_is_found_again(tmp_path: Path) -> None:
    _write(tmp_path / "dbt_project.yml", "name: shop\n")
    _write(tmp_path / "models" / "staging" / "shop" / "codegen.json", "{}")
    assert DbtProject.find(tmp_path, None).output == tmp_path / "models" / "staging" / "shop"


def test_an_output_belongs_to_the_project_above_it(tmp_path: Path) -> None:
    _write(tmp_path / "dbt" / "dbt_project.yml", "name: shop\n")
    spec_folder = tmp_path / "loader"
    output = tmp_path / "dbt" / "models" / "x"
    assert DbtProject.find(spec_folder, output).root == tmp_path / "dbt"
    nowhere = DbtProject.find(spec_folder, tmp_path / "x")
    assert (nowhere.root, nowhere.elsewhere().models) == (None, {})


def test_a_missing_or_invalid_project_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no dbt project next to the spec.*--output"):
        DbtProject.find(tmp_path, None)
    _write(tmp_path / "dbt_project.yml", "name: [")
    with pytest.raises(SpecError, match="not valid YAML"):
        DbtProject.find(tmp_path, None)


@pytest.mark.parametrize(
    ("said", "schema"),
    [
        ("", "raw"),
        ("vars: {strandline__raw_schema: landing}", "landing"),
        ("vars: {shop: {strandline__raw_schema: a}, strandline__raw_schema: b}", "a"),
        ("vars: {strandline: {strandline__raw_schema: a}, strandline__raw_schema: b}", "a"),
    ],
)
def test_the_variable_is_read_where_dbt_finds_it(tmp_path: Path, said: str, schema: str) -> None:
    _write(tmp_path / "dbt_project.yml", f"name: shop\n{said}\n")
    assert DbtProject.find(tmp_path, None).raw_schema == schema


def test_tables_and_models_that_the_project_already_declares(tmp_path: Path) -> None:
    _write(tmp_path / "dbt_project.yml", "name: shop\n")
    models = tmp_path / "models"
    _write(models / "shop.yml", "sources: [{name: shop, tables: [{name: orders}, null]}, null]\n")
    _write(models / "broken.yml", "sources: [\n")
    _write(models / "null.yml", "sources:\n")
    _write(models / "list.yml", "- sources\n")
    _write(
        models / "marts" / "orders.sql",
        "{{ config(materialized = 'deduped_latest') }}\n"
        "select * from {{ source('shop', \"orders\") }}",
    )
    _write(models / "plain.sql", "select * from {{ source('shop', 'items') }}")
    _write(models / "strandline" / "shop_x_latest.sql", "select 1")
    _write(models / "strandline" / "sources.yml", "sources: [{name: shop, tables: [{name: x}]}]\n")
    _write(models / "strandline" / "more.yml", "sources: [{name: shop, tables: [{name: y}]}]\n")

    found = DbtProject.find(tmp_path, None).elsewhere()

    assert found.tables == {
        ("shop", "orders"): "models/shop.yml",
        ("shop", "y"): "models/strandline/more.yml",
    }
    assert found.models == {"orders": "models/marts/orders.sql", "plain": "models/plain.sql"}
    assert found.snapshots == {("shop", "orders"): "models/marts/orders.sql"}


def test_the_starter_project_leaves_everything_to_codegen(tmp_path: Path) -> None:
    setup.create(tmp_path, lambda line: None)
    found = DbtProject.find(tmp_path, None)
    assert found.output == tmp_path / "models" / "strandline"
    assert (found.elsewhere().tables, found.elsewhere().snapshots) == ({}, {})

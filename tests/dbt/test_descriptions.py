"""Every public macro, argument, model, source and column of the package has a description."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import Environment, nodes

from tests.dbt.dbtproject import DbtProject

DBT_OWN = {"spark__list_relations_without_caching"}
"""Macros that replace one of dbt's macros in a project that opts in."""


@pytest.fixture(scope="module")
def manifest(project: DbtProject) -> Any:
    project.write("models/one.sql", "select 1 as id")
    return project.parse()


def ours(manifest: Any, kind: str) -> list[Any]:
    every = getattr(manifest, kind).values()
    return [one for one in every if one.package_name == "strandline"]


def signature(macro_sql: str) -> list[str]:
    """Returns the argument names of a macro, as Jinja reads them."""
    text = macro_sql.replace("{% test ", "{% macro ").replace("endtest", "endmacro")
    (macro,) = Environment(extensions=["jinja2.ext.do"]).parse(text).find_all(nodes.Macro)
    return [one.name for one in macro.args]


def test_macros_and_their_arguments(manifest: Any) -> None:
    """Macros with a leading underscore and implementations of dispatched macros are private."""
    public = [
        one
        for one in ours(manifest, "macros")
        if not one.name.startswith(("_", "default__", "spark__")) or one.name in DBT_OWN
    ]
    assert {one.name for one in public} >= {"deduped_latest", "test_matches_raw", *DBT_OWN}
    assert [one.name for one in public if not one.description] == []
    assert [
        (one.name, argument.name)
        for one in public
        for argument in one.arguments
        if not argument.description
    ] == []
    differing = {
        one.name: (signature(one.macro_sql), [argument.name for argument in one.arguments])
        for one in public
        if not one.name.startswith("materialization_")
        and signature(one.macro_sql) != [argument.name for argument in one.arguments]
    }
    assert differing == {}


def test_models_sources_and_their_columns(manifest: Any) -> None:
    described = [*ours(manifest, "nodes"), *ours(manifest, "sources")]
    described = [one for one in described if one.resource_type in ("model", "source")]
    assert {one.name for one in described} >= {"cq_state_current", "cq_sync_log", "_cq_syncs"}
    assert [one.name for one in described if not one.description] == []
    undescribed = [
        (one.name, column.name)
        for one in described
        for column in one.columns.values()
        if not column.description
    ]
    assert undescribed == []
    assert [one.name for one in described if not one.columns] == []

"""The state and the ledger have the same columns in the loader, the dbt package and the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from loader.lake import ledger
from loader.state import lake_table
from tests.dbt import rawtables

SOURCES = Path(__file__).resolve().parents[2] / "models" / "_strandline__sources.yml"


def _parse_columns(columns: str) -> dict[str, str]:
    return dict(column.split() for column in columns.split(", "))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("table", "written", "tested"),
    [
        ("_cq_syncs", ledger.COLUMNS, rawtables.LEDGER_COLUMNS),
        ("_cq_state", _parse_columns(lake_table.SCHEMA), rawtables.STATE_COLUMNS),
    ],
)
def test_the_columns_are_the_same_everywhere(
    table: str, written: dict[str, str], tested: str
) -> None:
    sources = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))["sources"]
    tables = [one for source in sources for one in source["tables"]]
    [described] = [one for one in tables if one["name"] == table]
    assert {column["name"] for column in described["columns"]} == set(written)
    assert _parse_columns(tested) == written

"""docs/monitoring.md lists every metric, and its Prometheus examples use only existing metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from loader.cli.telemetry.metrics import COUNTER, METRICS
from tests.sync.project import ROOT

EXAMPLES = ROOT / "docs" / "examples" / "prometheus"
NAMES = {metric.name + ("_total" if metric.kind == COUNTER else "") for metric in METRICS}


def _list_expressions() -> Iterator[str]:
    rules: Any = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])
    dashboard: Any = json.loads((EXAMPLES / "dashboard.json").read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


@pytest.mark.parametrize("expression", list(_list_expressions()))
def test_an_expression_is_valid_and_uses_existing_metrics(expression: str) -> None:
    promql_parser.parse(expression)
    asked = set(re.findall(r"strandline_[a-z_]*[a-z]\b", expression)) - {"strandline_"}
    assert asked or "__name__" in expression
    assert asked <= NAMES


def test_a_misspelled_expression_is_found() -> None:
    with pytest.raises(ValueError, match="parenthesis"):
        promql_parser.parse("time( - strandline_run_timestamp_seconds")


def test_the_page_lists_each_metric() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| \w+ \| [^|]*\| (.*) \|$", page, re.MULTILINE))
    assert listed.keys() == NAMES
    assert sorted(listed.values()) == sorted(metric.description for metric in METRICS)

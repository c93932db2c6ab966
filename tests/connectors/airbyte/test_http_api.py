"""The example in docs/connectors/airbyte.md: the latest table equals the data of the API.

The real `airbyte-cdk` runs the manifest, in an environment of its own (`make connectors`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.connectors.installed import installed
from tests.dbt.dbtproject import DbtProject
from tests.services.rates import Rates
from tests.sync.project import ROOT, Project

PAGE = (ROOT / "docs" / "connectors" / "airbyte.md").read_text("utf-8")
ROUNDS = 6


@pytest.fixture
def rates() -> Iterator[Rates]:
    """The API."""
    api = Rates(seed=7)
    yield api
    api.close()


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


def _configure(project: Project, rates: Rates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the page's two files; only the command's path and the lake are changed."""
    manifest, spec = _blocks("yaml")[:2]
    (project.folder / "rates.yaml").write_text(manifest)
    monkeypatch.setenv("RATES_URL", rates.url)
    monkeypatch.setenv("RATES_TOKEN", rates.token)
    [source, _] = yaml.safe_load_all(spec)
    own: dict[str, Any] = source["spec"]["spec"]
    own["command"] = installed("source-declarative-manifest")
    streams = yaml.safe_load(manifest)["streams"]
    catalog = {
        "streams": [
            {
                "name": stream["name"],
                "json_schema": stream["schema_loader"]["schema"],
                "supported_sync_modes": ["full_refresh", "incremental"],
                "source_defined_cursor": True,
                "default_cursor_field": [stream["incremental_sync"]["cursor_field"]],
                "source_defined_primary_key": [stream["primary_key"]],
            }
            for stream in streams
        ]
    }
    # by default, each run requests the catalog, which would double the test's time
    (project.folder / "catalog.json").write_text(json.dumps(catalog))
    own["catalog"] = "catalog.json"
    project.add("ecb", "airbyte", ["rates"], own)


def _create_dbt_project(project: Project) -> DbtProject:
    """The dbt project that `loader codegen` writes into."""
    mart = f"mart_{project.schema.removeprefix('raw_')}"
    return DbtProject(project.spark, project.folder, schema=mart, raw_schema=project.schema)


@pytest.mark.slow
def test_syncs_of_an_unreliable_api(
    project: Project, rates: Rates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed requests cause no missing, duplicate or wrong rows."""
    _configure(project, rates, monkeypatch)
    chance = random.Random(7)
    dbt = _create_dbt_project(project)
    moment = 0
    failed = 0
    sent: set[tuple[str, float, str]] = set()
    for number in range(ROUNDS):
        for _ in range(chance.randint(0, 8)):
            moment += chance.randint(0, 1)
            at = f"2025-01-01T00:{moment // 60:02}:{moment % 60:02}.000{chance.randint(0, 9)}00Z"
            at = max([at, *(r["updated_at"] for r in rates.rates.values())])
            currency = f"C{chance.randint(0, 14):02}"
            if rates.rates.get(currency, {}).get("updated_at") != at:
                rates.set(currency, chance.randint(1, 99) / 8, at)
        sent |= {(r["currency"], r["rate"], r["updated_at"]) for r in rates.rates.values()}
        rates.limited, rates.failing = (0.2, 0.3) if number % 3 else (0.0, 0.0)
        ran = project.loader("run")
        failed += ran.code
        if ran.code:
            assert "400" in ran.errors[0], ran.errors
            assert rates.token not in ran.text
    rates.limited = rates.failing = 0.0
    project.run()
    again = project.run().table("ecb.rates")
    assert (again["status"], again["appended"]) == ("nothing new", 0)
    assert failed, "the API was never in a bad mood: another seed"

    form = "date_format(updated_at, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\")"
    raw = project.rows(f"select currency, cast(rate as double), {form} from raw.rates")
    assert len(raw) == len(set(raw)), "a row was appended twice"
    assert set(raw) <= sent
    assert project.loader("codegen").code == 0
    ended = dbt.run("build").values()
    wrong = [result for result in ended if result.status not in ("success", "pass")]
    assert not wrong, wrong
    assert {"ecb_rates_latest"} < {result.name for result in ended}
    snapshot = project.spark.sql(
        f"select currency, cast(rate as double), {form} from {dbt.schema}.ecb_rates_latest"
    ).collect()
    now = {(r["currency"], r["rate"], r["updated_at"]) for r in rates.rates.values()}
    assert {tuple(row) for row in snapshot} == now
    assert len(snapshot) == len(now)

"""Real connectors from the package index: a first sync, one without changes, and resent rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loader.connectors.airbyte.messages import GAP_REPORTS
from tests.connectors.installed import installed, needs_faker
from tests.dbt.dbtproject import DbtProject
from tests.sync.project import ROOT, Project


@needs_faker
def test_source_faker(project: Project) -> None:
    config = {"count": 30, "seed": 42, "records_per_slice": 10, "parallelism": 1}

    def configure(**more: object) -> None:
        command = installed("source-faker")
        own = {"command": command, "config": {**config, **more}, "batch_rows": 10}
        project.add("faker", "airbyte", ["users", "products"], own)

    configure(always_updated=False)
    first = project.run()
    assert first.table("faker.users")["appended"] == 30
    assert project.rows("select count(distinct id), count(*) from raw.users") == [(30, 30)]
    assert first.table("faker.users")["batch"] > 1  # committed while the rest was read
    [(address, made)] = project.rows(
        "select address, typeof(created_at) from raw.users where id = 1"
    )
    assert set(json.loads(address)) > {"city", "country_code"}
    assert made == "timestamp"

    again = project.run()
    assert {again.table(f"faker.{n}")["status"] for n in ("users", "products")} == {"nothing new"}
    assert again.table("faker.users")["read"] == 0

    # after a reset, all records are sent again, with the same times as before
    project.loader("state", "reset", "faker.products")
    before = project.rows("select id, price from raw.products order by id")
    project.run("--select", "faker.products")
    newest = "select id, max_by(price, _cq_batch) from raw.products group by id order by id"
    assert project.rows(newest) == before
    configure(always_updated=True, count=40)
    more = project.run().table("faker.users")
    assert more["appended"] >= 10
    assert project.rows("select count(distinct id) from raw.users") == [(40,)]


@pytest.mark.usefixtures("project")  # not in the fast lane: it needs the connectors
def test_airbyte_cdk_has_the_log_texts_that_report_skipped_records() -> None:
    """airbyte-cdk may change these texts in another version."""
    program = Path(installed("source-declarative-manifest"))
    [package] = program.parents[1].glob("lib/*/site-packages/airbyte_cdk")
    said = "".join(path.read_text("utf-8") for path in package.joinpath("sources").rglob("*.py"))
    assert [text for text in GAP_REPORTS if text not in said] == []


def test_tap_jsonl(project: Project) -> None:
    file = project.folder / "orders.jsonl"
    file.write_text('{"id": 1, "price": 1.5}\n{"id": 2, "tags": ["x"]}\n')
    os.utime(file, (1_750_000_000, 1_750_000_000))
    config = {"path": str(file), "stream_name": "orders", "primary_keys": ["id"]}
    options = {"orders": {"columns": {"exclude": ["_sdc_*"]}}}
    own = {"command": installed("tap-jsonl"), "config": config, "table_options": options}
    project.add("files", "singer", ["*"], own)
    assert project.run().table("files.orders")["appended"] == 2
    assert project.rows("select id, price, tags, _rest from raw.orders order by id") == [
        (1, 1.5, None, None),
        (2, None, '["x"]', None),
    ]
    again = project.run().table("files.orders")
    assert (again["status"], again["appended"]) == ("nothing new", 0)
    # the file is touched: all rows are sent again, and one row has a new field
    with file.open("a") as more:
        more.write('{"id": 3, "note": "new"}\n')
    os.utime(file, (1_750_000_100, 1_750_000_100))
    touched = project.run().table("files.orders")
    assert (touched["appended"], touched["redelivered"]) == (1, 2)
    assert project.rows("select note from raw.orders where id = 3") == [("new",)]


@needs_faker
@pytest.mark.slow
def test_latest_tables_and_tests_of_all_three_protocols(project: Project) -> None:
    """Airbyte, Singer, CloudQuery: after `loader codegen` and two syncs, all dbt tests pass."""
    file = project.folder / "orders.jsonl"
    python, plugin = installed("python", "-cloudquery"), ROOT / "tests/services/cq_plugin.py"
    data = project.folder / "shop.json"

    def change(last: int, **more: object) -> None:
        lines = [{"id": n, "price": n + last / 8, "tags": [last]} for n in range(1, last + 1)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(file, (1_750_000_000 + last, 1_750_000_000 + last))
        rows = [{"id": n, "note": "x"} for n in range(1, last)]
        data.write_text(json.dumps({"orders": rows, **more}))

    change(4)
    config = {"count": 20, "seed": 42, "records_per_slice": 10, "parallelism": 1}
    faker = {"command": installed("source-faker"), "config": config}
    project.add("faker", "airbyte", ["users"], faker)
    tap = {"path": str(file), "stream_name": "lines", "primary_keys": ["id"]}
    options = {"lines": {"columns": {"exclude": ["_sdc_*"]}}}
    singer = {"command": installed("tap-jsonl"), "config": tap, "table_options": options}
    project.add("files", "singer", ["lines"], singer)
    own = {"command": [python, str(plugin), str(data)], "python": python}
    project.add("cq", "cloudquery", ["orders"], own)
    dbt = DbtProject(
        project.spark,
        project.folder,
        schema=f"mart_{project.schema.removeprefix('raw_')}",
        raw_schema=project.schema,
    )
    project.run()
    assert project.loader("codegen").code == 0
    change(6, deletes={"last": ["id", 1]})
    project.run()
    ended = dbt.run("build").values()
    wrong = [one for one in ended if one.status not in ("success", "pass")]
    assert not wrong, wrong
    # a model and its tests for each table; three models and four tests of the package
    assert len(ended) >= 3 * 2 + 3 + 4
    snapshot = {row["id"]: row["price"] for row in dbt.rows("files_lines_latest")}
    assert snapshot == {n: n + 6 / 8 for n in range(1, 7)}
    assert sorted(row["id"] for row in dbt.rows("cq_orders_latest")) == [2, 3, 4, 5]
    assert len(dbt.rows("faker_users_latest")) == 20

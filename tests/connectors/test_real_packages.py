"""A connector and a tap from the package index, unchanged: two syncs, an empty and a resent one."""

from __future__ import annotations

import json
import os

from tests.connectors.installed import installed
from tests.sync.project import Project


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

    # everything again: from nothing, with the same times as before
    project.loader("state", "reset", "faker.products")
    before = project.rows("select id, price from raw.products order by id")
    project.run("--select", "faker.products")
    newest = "select id, max_by(price, _cq_batch) from raw.products group by id order by id"
    assert project.rows(newest) == before
    configure(always_updated=True, count=40)
    more = project.run().table("faker.users")
    assert more["appended"] >= 10
    assert project.rows("select count(distinct id) from raw.users") == [(40,)]


def test_tap_jsonl(project: Project) -> None:
    file = project.folder / "orders.jsonl"
    file.write_text('{"id": 1, "price": 1.5}\n{"id": 2, "tags": ["x"]}\n')
    os.utime(file, (1_750_000_000, 1_750_000_000))
    config = {"path": str(file), "stream_name": "orders", "primary_keys": ["id"]}
    options = {"orders": {"skip_columns": ["_sdc_*"]}}
    own = {"command": installed("tap-jsonl"), "config": config, "table_options": options}
    project.add("files", "singer", ["*"], own)
    assert project.run().table("files.orders")["appended"] == 2
    assert project.rows("select id, price, tags, _rest from raw.orders order by id") == [
        (1, 1.5, None, None),
        (2, None, '["x"]', None),
    ]
    again = project.run().table("files.orders")
    assert (again["status"], again["appended"]) == ("nothing new", 0)
    # touched: all rows come again; and a row with a new field
    with file.open("a") as more:
        more.write('{"id": 3, "note": "new"}\n')
    os.utime(file, (1_750_000_100, 1_750_000_100))
    touched = project.run().table("files.orders")
    assert (touched["appended"], touched["redelivered"]) == (1, 2)
    assert project.rows("select note from raw.orders where id = 3") == [("new",)]

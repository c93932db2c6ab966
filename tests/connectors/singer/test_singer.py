"""The `singer` connector: taps have one state for all streams, and get their bookmarks back."""

from __future__ import annotations

from tests.connectors.program import ITEM, Tap, at, items


def test_taps_deliver_once_and_get_their_bookmarks_back(tap: Tap) -> None:
    tap.stream("items", items(1, 2, 3, 4, 5))
    tap.stream("users", items(1, 2))
    tap.stream("full", items(1, 2), cursor=None)
    tap.stream("skipped", items(1))
    spool = tap.project.folder / "my spöol [1] %20"
    spool.mkdir()
    tap.configure("items", "users", "full", batch_rows=3, spool=str(spool))
    first = tap.run()
    assert [first.table(f"api.{n}")["appended"] for n in ("items", "users", "full")] == [5, 2, 2]
    assert tap.raw("items") == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    methods = {
        stream["stream"]: part["metadata"].get("replication-method")
        for stream in tap.calls()[0]["catalog"]["streams"]
        for part in stream["metadata"]
        if not part["breadcrumb"]
    }
    assert methods == {
        "items": "INCREMENTAL",
        "users": "INCREMENTAL",
        "full": "FULL_TABLE",
        "skipped": None,
    }
    again = tap.run()
    assert {again.table(f"api.{n}")["status"] for n in ("items", "users", "full")} == {
        "nothing new"
    }
    assert again.table("api.items")["redelivered"] == 1
    marks = tap.calls()[1]["state"]["bookmarks"]
    assert marks["items"] == {"replication_key": "updated_at", "replication_key_value": at(5)}

    # one table is reset: only its bookmark is omitted, and no row is appended twice
    tap.project.loader("state", "reset", "api.items")
    tap.rows["users"] += items(3)
    ran = tap.run()
    assert (ran.table("api.items")["appended"], ran.table("api.items")["redelivered"]) == (0, 5)
    assert ran.table("api.users")["appended"] == 1
    assert list(tap.calls()[2]["state"]["bookmarks"]) == ["users"]

    # a full refresh reads all rows into a new generation
    tap.project.run("--full-refresh", "--select", "api.users")
    [[generation, rows]] = tap.project.rows(
        "select _cq_generation, count(*) from raw.users where _cq_batch = 3 group by 1"
    )
    assert (generation, rows) == (2, 3)


def test_a_tap_fails_after_a_state(tap: Tap) -> None:
    tap.stream("items", items(*range(1, 8)))
    tap.configure(config={"acts": {"items.5": [{"stderr": "CRITICAL no more"}, {"exit": 1}]}})
    ran = tap.project.loader("run")
    assert "the program failed (exit code 1): CRITICAL no more" in ran.errors[0]
    assert tap.raw("items") == [(1, 1), (2, 1), (3, 1)]
    tap.configure()
    tap.run()
    assert tap.raw("items")[3:] == [(4, 2), (5, 2), (6, 2), (7, 2)]
    # a broken state is an error, because it could cause a gap; a log line is ignored
    noise: list[dict[str, object]] = [{"raw": "INFO it begins"}, {"raw": '{"type": "STATE", "va'}]
    tap.rows["items"] += items(8)
    tap.configure(config={"acts": {"items.1": noise}})
    ran = tap.project.loader("run")
    assert "a message that cannot be read" in ran.errors[0]
    batch = [{"say": {"type": "BATCH", "stream": "items", "manifest": ["s3://x"]}}]
    tap.configure(config={"acts": {"items.0": batch}})
    assert "BATCH messages" in tap.project.loader("run").errors[0]
    tap.configure()
    assert tap.run().table("api.items")["appended"] == 1


def test_changed_schemas_and_excluded_fields(tap: Tap) -> None:
    """If a file was touched, its tap sends all rows again, with a new time."""
    touched = {**ITEM, "_sdc_last_modified": {"type": "string", "format": "date-time"}}

    def rows(time: str) -> list[dict[str, object]]:
        return [{**row, "_sdc_last_modified": time} for row in items(1, 2)]

    tap.stream("items", rows(at(1)), touched, cursor="_sdc_last_modified")
    options = {"items": {"columns": {"exclude": "_sdc_*"}}}
    tap.configure(table_options=options)
    assert tap.run().table("api.items")["appended"] == 2
    tap.rows["items"] = rows(at(9))
    again = tap.run().table("api.items")
    assert (again["appended"], again["redelivered"]) == (0, 2)
    assert tap.project.spark.table(f"{tap.project.schema}.items").columns[:4] == [
        "id",
        "name",
        "updated_at",
        "_rest",
    ]
    # a field that is not in the catalog is stored in `_rest`, until the catalog has it
    tap.rows["items"] = [{**items(3)[0], "new": 5, "_sdc_last_modified": at(10)}]
    tap.configure(
        config={"schemas": {"items": {"properties": {**touched, "new": {}}}}}, table_options=options
    )
    ran = tap.run()
    assert "1 records have a field new that the schema does not declare" in str(ran.warnings)
    assert tap.raw("items", "id, _rest")[2:] == [(3, '{"new":5}', 2)]
    tap.stream(
        "items",
        [{**items(4)[0], "new": 6, "_sdc_last_modified": at(11)}],
        {**touched, "new": {"type": "integer"}},
        cursor="_sdc_last_modified",
    )
    tap.configure(table_options=options)
    tap.run()
    assert tap.raw("items", "id, new, _rest")[3:] == [(4, 6, None, 3)]

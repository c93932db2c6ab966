"""The `cloudquery` connector reads source plugins that use the official SDK.

CloudQuery stores a plugin's state before the records that it covers. The loader stores it in the
commit of these records, so that no failure can separate them.
"""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.installed import installed
from tests.sync.project import ROOT, Project
from tests.sync.test_masked_files import KEY, Search, _find, _write_spec

PLUGIN = str(ROOT / "tests" / "services" / "cq_plugin.py")


def _configure(project: Project, which: str, *tables: str, **own: Any) -> None:
    python = installed("python", "-cloudquery")
    spec = {"command": [python, PLUGIN, which], "python": python, **own}
    project.add("cq", "cloudquery", [*tables] or ["*"], spec)


def test_the_official_sdks_memdb(project: Project) -> None:
    _configure(project, "memdb")
    first = project.run()
    assert project.rows("select name, id from raw.table_1 order by id") == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
    ]
    assert first.table("cq.table_2")["appended"] == 3
    [(data,)] = project.rows("select distinct data from raw.table_1_relation_1 where name = 'b'")
    assert data == '{"b":2}'
    again = project.run()
    assert {again.table(f"cq.{n}")["status"] for n in ("table_1", "table_2")} == {"nothing new"}
    assert again.table("cq.table_1_relation_1")["appended"] == 0


def test_a_state_never_passes_its_records(project: Project) -> None:
    data = project.folder / "data.json"

    def orders(last: int, **more: Any) -> None:
        rows = [{"id": number, "note": f"n{number}"} for number in range(1, last + 1)]
        data.write_text(json.dumps({"orders": rows, **more}))

    def raw() -> list[tuple[Any, ...]]:
        return project.rows("select id, _cq_batch from raw.orders order by _cq_batch, _cq_seq")

    # the plugin fails after five orders: only the orders that its checkpoints cover are kept, and
    # not those that the SDK flushes after the error
    orders(7, fail=5)
    _configure(project, str(data), "orders")
    ran = project.loader("run")
    assert ran.code == 1
    assert "the shop is closed" in ran.errors[0]
    assert raw() == [(n, 1) for n in range(1, 5)]
    orders(7)
    assert project.run().table("cq.orders")["redelivered"] == 1
    assert raw()[4:] == [(5, 2), (6, 2), (7, 2)]
    state = json.loads(project.state("cq.orders")["mark"]["state"])
    assert state["orders"][0] == "7"
    again = project.run().table("cq.orders")
    assert (again["status"], again["redelivered"]) == ("nothing new", 1)

    # every type; and errors contain the plugin's own text
    _configure(project, str(data), "kinds")
    project.run()
    columns = "id, data, cast(at as string), cast(day as string), cast(large as string), blob"
    assert project.rows(f"select {columns} from raw.kinds") == [
        (
            "00000000-0000-0000-0000-000000000001",
            '{"a":[1,null]}',
            "2025-01-01 00:00:00.000005",
            "2025-01-02",
            str(2**64 - 1),
            "AAE=",
        )
    ]
    _configure(project, str(data), config={"token": "wrong"})
    ran = project.loader("check")
    assert "the token is ***" in ran.errors[0], ran.errors
    _configure(project, str(data), command=["no-such-plugin"])
    assert "the plugin no-such-plugin cannot be started" in project.loader("check").text
    _configure(project, str(data), connection="127.0.0.1:1")
    assert "are both set" in project.loader("check").errors[0]


def test_deletions_become_tombstones(project: Project) -> None:
    data = project.folder / "data.json"

    def sync(last: int, **more: Any) -> dict[str, Any]:
        rows = [{"id": number, "note": f"n{number}"} for number in range(1, last + 1)]
        data.write_text(json.dumps({"orders": rows, **more}))
        return project.run().table("cq.orders")

    def raw(batch: int) -> list[tuple[Any, ...]]:
        columns = "id, note, _cq_deleted"
        return project.rows(
            f"select {columns} from raw.orders where _cq_batch = {batch} order by id"
        )

    _configure(project, str(data), "orders")
    # deleted in the batch that delivers it; another deletion matches no row
    sync(3, deletes={"last": ["note", "n3", "n9"]})
    assert raw(1) == [(1, "n1", False), (2, "n2", False), (3, "n3", True)]
    # found by a column that is not the key: the tombstone contains only the key
    sync(4, deletes={"first": ["note", "n2", "n3"]})
    assert raw(2) == [(2, None, True), (3, "n3", False), (4, "n4", False)]
    # all rows are deleted and delivered again: only the row that was deleted before is appended
    again = sync(4, since=1, deletes={"first": ["id", 1, 2, 3, 4]})
    assert raw(3) == [(2, "n2", False)]
    assert again["redelivered"] == 3
    # a deletion outranks every cursor, and a sync may consist of deletions only
    sync(4, since=9, deletes={"last": ["id", 4, 1, 77]})
    assert raw(4) == [(1, None, True), (4, None, True)]
    newest = "max_by(struct(id, _cq_deleted), struct(_cq_generation, id, _cq_batch, _cq_seq)) n"
    versions = f"select {newest} from raw.orders group by coalesce(id, 0)"
    assert project.rows(f"select n.id from ({versions}) where not n._cq_deleted order by 1") == [
        (2,),
        (3,),
    ]
    # the same deletion again changes nothing
    assert sync(4, since=9, deletes={"last": ["id", 4, 1]})["status"] == "nothing new"


@pytest.mark.slow
def test_masked_values_of_a_plugin_are_in_no_file(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """This includes the spool of a run that is killed before its rows are published."""
    data = tmp_path_factory.mktemp("outside") / "data.json"
    orders = [{"id": number, "note": f"plantedphone{number}"} for number in range(1, 4000)]
    data.write_text(json.dumps({"orders": orders}))
    masks = {
        "orders": {"note": "hash"},
        "kinds": {"id": "hash", "data": "redact", "at": "year", "day": "year", "blob": "hash"},
    }
    python = installed("python", "-cloudquery")
    spec = {
        "command": [python, PLUGIN, str(data)],
        "python": python,
        "table_options": {name: {"mask": each} for name, each in masks.items()},
    }
    _write_spec(tmp_path, path="cloudquery", tables=["*"], spec=spec)
    kind = ("00000000-0000-0000-0000-000000000001", "[1,null]", "2025-01-02")
    with Search(tmp_path, *kind) as search:
        search.run("run", crash_at="staged")
        spools = list((tmp_path / "tmp").rglob("*.jsonl"))
        digest = hmac.new(KEY.encode(), b"plantedphone7", "sha256").hexdigest().encode()
        assert any(digest in path.read_bytes() for path in spools)
        assert not search.find_in_files()
        search.run("run")
    # the spool stores binary values as text
    values = [b"AAE=", kind[0].encode(), b"plantedphone3999"]
    hashed = [hmac.new(KEY.encode(), value, "sha256").hexdigest() for value in values]
    found = {text for _, text in _find(tmp_path / "warehouse", *(h.encode() for h in hashed))}
    assert len(found) == len(hashed), found
    search.assert_nothing_found()

"""Masks with `sync_mode: cdc`: values are masked as by queries, and no file has the originals."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest

from tests.cdc.test_changes import newest
from tests.reconcile.shop import line, reconcile
from tests.services import Database
from tests.sync.project import Project
from tests.sync.test_masked_files import KEY, MASKS, Search, _find, _write_spec

TYPES = {
    "text": "text",
    "padded": "char(9)",
    "whole": "bigint",
    "big": "numeric(30, 0)",
    "day": "date",
    "bytes": "bytea",
    "name": "varchar(80)",
}
HASHED = (*TYPES, "long")
ROWS = (
    "({id}, 'é😀', 'ab', -7, 12345678901234567890123, '1987-06-05', '\\x00ff', 'Ann', {long})",
    "({id}, '', 'a b  ', 0, 0, '0980-01-02', '\\x', '  ', null)",
    "({id}, null, null, null, null, null, null, null, null)",
)
LONG = "(select string_agg(md5(i::text), '') from generate_series(1, 200) as i)"


def _digest(value: str) -> str:
    return hmac.new(KEY.encode(), value.encode(), "sha256").hexdigest()


def _spec(project: Project, database: Database, tables: dict[str, Any], **own: Any) -> None:
    project.jdbc(database, [*tables], table_options=tables, **own)
    project.sources[-1]["mask_key"] = KEY
    project.write()


def test_values_have_the_same_masks_from_the_log_and_from_queries(
    project: Project, postgres_database: Database
) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    postgres_database.execute(
        f"create table a (id int primary key, {columns}, long text, seen timestamp, "
        "at timestamptz default now())"
    )
    masks = {**dict.fromkeys(HASHED, "hash"), "id": "hash", "seen": "year"}
    _spec(project, postgres_database, {"a": {"sync_mode": "cdc", "mask": masks}})

    def insert(first: int) -> None:
        for n, row in enumerate(ROWS):
            values = row.format(id=first + n, long=LONG)
            postgres_database.execute(f"insert into a (id, {', '.join(HASHED)}) values {values}")

    insert(0)
    project.run()
    insert(100)
    project.run()
    found = {row[0]: row[1:] for row in newest(project, "a", "id", *HASHED)}
    for n in range(len(ROWS)):
        assert found[_digest(str(n))] == found[_digest(str(100 + n))]
    assert found[_digest("100")][:2] == (_digest("é😀"), _digest("ab"))
    # a large value that the log omits, another key, a delete
    postgres_database.execute(
        "update a set whole = 8 where id = 0",
        "update a set id = 7, seen = '1999-01-01' where id = 1",
        "delete from a where id = 2",
    )
    project.run()
    rows = {row[0]: row[1:] for row in newest(project, "a", "id", "whole", "long", "seen")}
    assert rows[_digest("0")] == (_digest("8"), found[_digest("0")][-1], None)
    assert rows[_digest("7")][2] == 1999
    assert not {_digest("1"), _digest("2")} & rows.keys()
    compared = line(reconcile(project), "shop.a")
    assert compared["status"] == "equal", compared
    project.run("--full-refresh")
    assert line(reconcile(project), "shop.a")["status"] == "equal"
    postgres_database.execute("truncate a")
    project.run()
    assert newest(project, "a", "id") == []


def test_a_table_with_a_masked_key_is_not_loaded_in_chunks(
    project: Project, postgres_database: Database
) -> None:
    """The state would store the last key of each chunk."""
    for name in ("a", "b"):
        postgres_database.execute(
            f"create table {name} (id int primary key, v text)",
            f"insert into {name} select g, g from generate_series(1, 9) as g",
        )
    tables = {
        "a": {"sync_mode": "cdc", "mask": {"id": "hash"}},
        "b": {"sync_mode": "cdc", "mask": {"v": "hash"}},
    }
    _spec(project, postgres_database, tables, batch_rows=4)
    project.run()
    batches = {name: project.rows(f"select max(_cq_batch) from raw.{name}") for name in tables}
    assert batches == {"a": [(1,)], "b": [(3,)]}


@pytest.mark.slow
def test_masked_values_of_the_log_are_in_no_file(
    tmp_path: Path, postgres_database: Database
) -> None:
    """This includes the spool of a run that is killed before its changes are published."""
    postgres_database.execute(
        "create table people (id text primary key, name text, email text, phone text, born date, "
        "iban text, note text, bad numeric(20, 0))"
    )
    insert = (
        "insert into people select 'plantedid' || g, 'Plantedname' || g, "
        "'planted.local' || g || '@example.org', 'plantedphone' || g, '1987-06-05', "
        "'PLANTEDIBAN99', 'Plantedname', 987654321987 from generate_series({}, {}) g"
    )
    postgres_database.execute(insert.format(1, 2000))
    masks = {**MASKS, "bad": "redact"}
    spec = {
        "url": postgres_database.url,
        "user": postgres_database.user,
        "password": postgres_database.password,
        "table_options": {"people": {"sync_mode": "cdc", "mask": masks}},
    }
    _write_spec(tmp_path, path="jdbc", tables=["people"], spec=spec)
    with Search(tmp_path, "987654321987") as search:
        search.run("run")
        postgres_database.execute(
            insert.format(2001, 9000),
            "update people set phone = 'plantedphone', id = 'plantedid' where id = 'plantedid7'",
            "delete from people where id = 'plantedid9'",
        )
        search.run("run", crash_at="staged")
        spools = [path for path in (tmp_path / "tmp").rglob("*.txt") if path.parent.name == "0"]
        assert sum(path.stat().st_size for path in spools) > 500_000
        assert not search.find_in_files()
        search.run("run")
        search.run("reconcile", "--repair")
        postgres_database.execute("truncate people", insert.format(1, 9))
        search.run("run")
    digest = _digest("plantedphone2001")
    assert _find(tmp_path / "warehouse", digest.encode())
    assert _find(tmp_path / "events", b"_cq_spool_key")  # Spark's event log has query plans
    search.assert_nothing_found()

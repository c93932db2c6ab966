"""`columns` with `sync_mode: cdc`: excluded columns are not written to the spool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loader.cdc import wal_reader
from tests.cdc.test_changes import newest
from tests.services import Database
from tests.sync.project import Project


def test_excluded_columns_do_not_reach_the_spool(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, written = postgres_database, []
    read = wal_reader.read_into_spool

    def keep_text(request: Any, *arguments: Any) -> Any:
        spool = read(request, *arguments)
        files = [path for path in Path(request.folder).rglob("*") if path.is_file()]
        written.extend(path.read_text(errors="replace") for path in files)
        return spool

    monkeypatch.setattr(wal_reader, "read_into_spool", keep_text)
    database.execute(
        # The log cannot deliver this type.
        "create table people (id int primary key, name text, ssn text, shape point)",
        "insert into people values (1, 'a', 's1'), (2, 'b', 's2')",
    )
    excluded = {"exclude": ["ssn", "shape"]}
    project.jdbc(
        database, ["people"], table_options={"people": {"sync_mode": "cdc", "columns": excluded}}
    )
    project.run()
    database.execute("update people set name = 'c', ssn = 's3' where id = 1")
    assert project.run().table("shop.people")["appended"] == 1
    names = project.lake().frame("people").columns
    assert [name for name in names if not name.startswith("_cq_")] == ["id", "name"]
    assert newest(project, "people", "id", "name") == [(1, "c"), (2, "b")]
    assert '"name":"c"' in "".join(written)
    assert "s3" not in "".join(written)

    # A column that is included again is also filled in rows that did not change.
    excluded["exclude"] = ["shape"]
    project.jdbc(
        database, ["people"], table_options={"people": {"sync_mode": "cdc", "columns": excluded}}
    )
    ran = project.run()
    assert "ssn was excluded by the `columns` option until now" in ran.text
    assert newest(project, "people", "id", "ssn") == [(1, "s3"), (2, "s2")]

"""After each change of a PostgreSQL table, the raw table, ledger and dbt models are correct."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from loader.rows.bookkeeping import COLUMNS
from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project

MODELS = {"latest": "deduped_latest", "history": "deduped_history"}
FIRST = {
    "id": "int",
    "c": "int",
    "note": "string",
    "qty": "int",
    "price": "float",
    "fee": "decimal(10,2)",
    "day": "date",
    "code": "string",
    "tags": "array<int>",
}


class Driven:
    """The table `t`, its raw table, its latest table and its history.

    Row 2 always has the highest cursor, so each sync reads it again. Row 1 never changes.
    """

    def __init__(self, project: Project, database: Database, folder: Path) -> None:
        self.project, self.database = project, database
        database.execute(
            "create table t (id int primary key, c int, note text, qty int, price real, "
            "fee numeric(10, 2), day date, code text, tags int[])",
            "insert into t select n, n, 'n' || n, n * 10, n + 0.5, n + 0.25, '2025-01-01', "
            "'7' || n, array[n, null] from generate_series(1, 3) n",
            "update t set c = 100 where id = 2",
        )
        # No sweep: otherwise the rows that an ALTER rewrote would be read again, too.
        options = {"t": {"cursor_field": "c", "sweep": "never"}}
        project.jdbc(database, ["t"], table_options=options)
        schema = project.schema
        self.dbt = DbtProject(project.spark, folder, schema=f"mart_{schema}", raw_schema=schema)
        source = {"name": "shop", "schema": schema, "tables": [{"name": "t"}]}
        self.dbt.write("models/shop.yml", {"sources": [source]})
        for name, materialized in MODELS.items():
            self.dbt.write(
                f"models/{name}.sql",
                f"{{{{ config(materialized='{materialized}', unique_key='id', "
                "meta={'strandline': {'cursor_field': 'c'}}) }}\n"
                "select * from {{ source('shop', 't') }}",
            )
        self.manifest = self.dbt.parse()
        self.columns = dict(FIRST)
        self.expected: dict[int, dict[str, Any]] = {}
        self.clock = 100
        self.batches = 0
        self.sync([1, 2, 3], "", build="REBUILD")
        self.build("history", "REBUILD")

    def quiet(self, *ddl: str) -> None:
        """Makes a change that does not change rows: nothing is appended or recorded."""
        self.database.execute(*ddl)
        before = self.project.rows("describe table raw.t")
        ran = self.project.run().table("shop.t")
        assert (ran["status"], ran["read"], ran["redelivered"]) == ("nothing new", 1, 1)
        assert self.project.rows("describe table raw.t") == before

    def change(
        self,
        reported: str,
        *ddl: str,
        columns: dict[str, str] | None = None,
        routes: dict[str, str] | None = None,
        build: str = "MERGE",
    ) -> None:
        """Makes a change, adds rows, syncs and builds.

        Args:
            reported: the ledger's note.
            columns: the raw table's columns that it adds or widens.
            routes: the source's columns whose values go into another column.
        """
        self.database.execute(*ddl)
        self.clock += 2
        self.database.execute(
            f"insert into t (id, c) values ({self.clock}, {self.clock - 1})",
            f"update t set c = {self.clock} where id = 2",
        )
        self.columns |= columns or {}
        self.sync([2, self.clock], reported, routes or {}, build)

    def sync(
        self,
        touched: list[int],
        reported: str,
        routes: dict[str, str] | None = None,
        build: str = "MERGE",
    ) -> None:
        """Syncs and builds; checks the raw table, the ledger and the latest table."""
        ran = self.project.run().table("shop.t")
        self.batches += 1
        assert (ran["batch"], ran["appended"]) == (self.batches, len(touched))
        raw = self.project.lake().frame("t").schema
        shown = {f.name: f.dataType.simpleString() for f in raw.fields if f.name not in COLUMNS}
        assert shown == self.columns
        assert self._read_schema_changes() == {self.batches: reported or None}
        for key in touched:
            self.expected[key] = self._row(key, routes or {})
        self.build("latest", build)

    def build(self, model: str, verb: str) -> None:
        """Builds a model; its current rows must equal the source's rows when they were read."""
        results = self.dbt.run("run", "--select", model, manifest=self.manifest)
        assert results[model].message == f"{verb} to batch {self.batches}", results[model].message
        rows = [row for row in self.dbt.rows(model) if row.get("is_current", True)]
        found = {row["id"]: {name: row[name] for name in self.columns} for row in rows}
        assert len(found) == len(rows)
        assert found == {
            key: {name: row.get(name) for name in self.columns}
            for key, row in self.expected.items()
        }

    def _read_schema_changes(self) -> dict[int, str | None]:
        """Returns the newest batch's entry; the others were checked before and must not change."""
        rows = self.project.rows(
            "select batch, schema_changes from raw._cq_syncs where batch is not null "
            "or schema_changes is not null order by batch"
        )
        assert [batch for batch, _ in rows] == list(range(1, self.batches + 1))
        return dict(rows[-1:])

    def _row(self, key: int, routes: dict[str, str]) -> dict[str, Any]:
        names = [
            name
            for (name,) in self.database.query(
                "select column_name::text from information_schema.columns where table_name = 't'"
            )
        ]
        listed = ", ".join(f'"{name}"' for name in names)
        [values] = self.database.query(f"select {listed} from t where id = {key}")
        raw = {name.lower(): name for name in self.columns}
        return {
            routes.get(name) or raw[name.lower()]: (
                value.isoformat("microseconds") if isinstance(value, dt.time) else value
            )
            for name, value in zip(names, values, strict=True)
        }


@pytest.fixture
def driven(project: Project, postgres_database: Database, tmp_path: Path) -> Driven:
    return Driven(project, postgres_database, tmp_path / "dbt")


def test_columns_that_come_and_go(driven: Driven) -> None:
    driven.change(
        "added extra string",
        "alter table t add extra text",
        "update t set extra = 'e' where id = 2",
        columns={"extra": "string"},
    )
    driven.change("dropped note string", "alter table t drop note")
    driven.change(
        "re-added note string",
        "alter table t add note text",
        "update t set note = 'back' where id = 2",
    )
    driven.change("dropped note string", "alter table t drop note")
    driven.change(
        "re-added note int, in note__int",
        "alter table t add note int",
        "update t set note = 5 where id = 2",
        columns={"note__int": "int"},
        routes={"note": "note__int"},
    )
    driven.change("dropped note int", "alter table t drop note")
    driven.change(
        "added extra2 string; dropped extra string",
        "alter table t rename extra to extra2",
        columns={"extra2": "string"},
    )
    driven.quiet('alter table t rename extra2 to "EXTRA2"', 'alter table t rename id to "ID"')
    driven.quiet('alter table t rename c to "C"')
    driven.quiet('alter table t rename "ID" to id', 'alter table t rename "C" to c')
    driven.change("renamed extra2 to EXTRA2, in extra2")
    # A table that replaces it is read whole: rows 1 and 3 had columns that no longer exist.
    driven.database.execute(
        'create table other as select tags, "EXTRA2", price, c, id, qty, fee, day, code from t',
        "drop table t",
        "alter table other add primary key (id)",
        "alter table other rename to t",
    )
    driven.sync([1, 3], "")
    driven.change("")
    driven.build("history", "MERGE")


def test_types_that_change(driven: Driven) -> None:
    driven.quiet("alter table t alter qty type bigint", "alter table t alter price type float8")
    driven.quiet("alter table t alter fee type numeric(12, 2)")
    driven.change(
        "widened qty int to bigint; widened price float to double; "
        "widened fee decimal(10,2) to decimal(12,2)",
        "update t set qty = 3000000000, price = 1e300, fee = 9999999999.25 where id = 2",
        columns={"qty": "bigint", "price": "double", "fee": "decimal(12,2)"},
    )
    driven.change(
        "widened tags.element int to bigint",
        "alter table t alter tags type bigint[]",
        "update t set tags = array[null, 3000000000] where id = 2",
        columns={"tags": "array<bigint>"},
        build="REBUILD",  # array elements cannot be widened in an incremental model
    )
    driven.change(
        "changed day date to timestamp_ntz, in day__timestamp_ntz",
        "alter table t alter day type timestamp",
        "update t set day = '2025-01-01 12:34:56.789012' where id = 2",
        columns={"day__timestamp_ntz": "timestamp_ntz"},
        routes={"day": "day__timestamp_ntz"},
    )
    routes = {"day": "day__timestamp_ntz", "code": "code__int"}
    driven.change(
        "changed code string to int, in code__int",
        "alter table t alter code type int using code::int",
        columns={"code__int": "int"},
        routes=routes,
    )
    routes["qty"] = "qty__decimal_20_0"
    driven.change(
        "changed qty bigint to decimal(20,0), in qty__decimal_20_0",
        "alter table t alter qty type numeric(20, 0)",
        "update t set qty = 30000000000000000000 where id = 2",
        columns={"qty__decimal_20_0": "decimal(20,0)"},
        routes=routes,
    )
    driven.change(
        "changed qty decimal(20,0) to int, in qty; changed code int to string, in code",
        "update t set qty = 4 where id = 2",
        "alter table t alter qty type int",
        "alter table t alter code type text",
        routes={"day": "day__timestamp_ntz"},
    )
    driven.change(
        "changed price double to float; changed fee decimal(12,2) to decimal(9,1); "
        # as in lakes of earlier versions, which stored times of day as timestamps
        "changed day timestamp_ntz to string, in day__string",
        "update t set price = 0.5, fee = 12.5 where id = 2",
        "alter table t alter fee type numeric(9, 1)",
        "alter table t alter price type real",
        "alter table t alter day type time",
        columns={"day__string": "string"},
        routes={"day": "day__string"},
    )
    driven.build("history", "REBUILD")

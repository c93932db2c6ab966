"""Names and values from a source are data: nothing expands, parses or executes them.

An environment variable contains a marker, which the JVM, dbt and the loader could read. Names of
tables, columns, fields, schemas, files and streams, comments, values, keys and cursors try to read
it, and to break out of their quotes. The suite combines fixed examples with random ones;
STRANDLINE_EXAMPLES=20 runs more of the random ones.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from dbt.cli.main import dbtRunner

from loader.names import in_the_lake
from tests.connectors.program import Program
from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.services.postgres import Postgres
from tests.sync.project import Project, Ran

EXAMPLES = int(os.environ.get("STRANDLINE_EXAMPLES", "1"))
MARKER = os.environ["STRANDLINE_MARKER"]

EXPANDED = [
    "${env:STRANDLINE_MARKER}",
    "${STRANDLINE_MARKER}",
    "${system:user.home}",
    "${spark.app.name}",
    "$${env:STRANDLINE_MARKER}",
    "{{ env_var('STRANDLINE_MARKER') }}",
    "{% set x = env_var('STRANDLINE_MARKER') %}",
    "${jndi:ldap://127.0.0.1:1/x}",
    "@@plugins.shop.connection",
]
QUOTES = [
    "`", "'", '"', "\\", "\\'", "''", "$$", "{{", "}}", "{%", "%}", "{#", "x#}", "*/", "/*", "--",
    ";", ",", ":", ".", "..", "/", "?", "*", "[", "]", "<", ">", "(", ")", "=", "%", "%s", "{0}",
    "&", "!", "|", "#", "- ", "~",
]  # fmt: skip
LETTERS = [
    "a", "Z", "0", " ", "\n", "\r", "\t", "\x01", "\x1b[2J", "\x7f", "\x85", "\u2028",
    "\u202e", "\u2066", "\u200b", "\ufeff", "\u0430", "\u212a", "\u0130", "ß", "é", "e\u0301",
    "表", "😀", "select", "null", "x" * 40,
]  # fmt: skip
PIECES = [*EXPANDED * 3, *QUOTES, *LETTERS]
LATE = "${env:STRANDLINE_MARKER}late"
"""A column that each table of the database gets after its first sync."""

FINE = ("success", "pass", "warn", "skipped")

# Errors must not contain traces, or classes and error codes of Spark and Java.
FOREIGN = re.compile(r"Traceback|Exception|Py4J|\bat org\.|SQLSTATE|PARSE_SYNTAX|JVM stacktrace")


def _cut(text: str, limit: int) -> str:
    return text.encode()[:limit].decode(errors="ignore")


@dataclass(frozen=True)
class Table:
    """A table of the source: the first column is its key, the second its cursor, both texts."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    comments: list[str]
    schema: str = "public"

    @property
    def named(self) -> str:
        """Its name in the spec."""
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"

    @property
    def keyed(self) -> list[list[str]]:
        """The rows with unique keys, and cursors that increase."""
        return [
            [f"{row[0]}{number}", f"{number}{row[1]}", *row[2:]]
            for number, row in enumerate(self.rows)
        ]


@dataclass(frozen=True)
class World:
    """The tables of a project's sources.

    Attributes:
        files: by folder, whose name begins with the format.
    """

    database: list[Table]
    streams: list[Table]
    files: dict[str, Table]

    @classmethod
    def drawn(cls, seed: int) -> World:
        """Returns the fixed tables, and one random table for each source."""
        draw = Drawing(Random(seed))
        [table], [stream], [file] = (draw.tables(1, limit) for limit in (63, 255, 100))
        form = draw.random.choice(("csv", "json"))
        return cls(
            [*FIXED.database, replace(table, schema=draw.name(60))],
            [*FIXED.streams, stream],
            {**FIXED.files, f"{form}_drawn": file},
        )


class Drawing:
    """Generates random names and values."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def value(self) -> str:
        return "".join(self.random.choices(PIECES, k=self.random.randint(0, 5)))

    def name(self, limit: int) -> str:
        """Returns a name of at most `limit` bytes."""
        pieces = self.random.choices(PIECES, k=self.random.randint(1, 4))
        # dbt-spark stops at a column whose name begins with #, and Spark omits JSON fields with an
        # empty name
        return _cut("".join(pieces), limit).lstrip("#") or "x"

    def names(self, count: int, limit: int) -> list[str]:
        """Returns names that differ in more than their case."""
        found: dict[str, str] = {}
        while len(found) < count:
            name = self.name(limit)
            found.setdefault(name.casefold(), name)
        return list(found.values())

    def tables(self, count: int, limit: int) -> list[Table]:
        return [
            Table(
                name,
                self.names(5, 60),
                [[self.value() for _ in range(5)] for _ in range(2)],
                [self.value() for _ in range(6)],
            )
            for name in self.names(count, limit)
        ]


def _make_table(name: str, *columns: str, values: Sequence[str], schema: str = "public") -> Table:
    """Returns a table with a row for each value."""
    comments = [values[number % len(values)] for number in range(len(columns) + 1)]
    return Table(name, list(columns), [[v] * len(columns) for v in values], comments, schema)


ENV, JINJA = "${env:STRANDLINE_MARKER}", "{{ env_var('STRANDLINE_MARKER') }}"
FIXED = World(
    [
        _make_table(
            f"a{ENV}", f"k{ENV}", f"c{ENV}", ENV, "a`b", JINJA, values=[ENV], schema=f"s{ENV}"
        ),
        _make_table(
            *(
                f"or${{x}}d` v lateral view {ENV} as `y",
                "k`",
                "c`",
                "`",
                "``",
                "a.b",
                "${HOME}",
                "${x}",
                "a${x}b",
            ),
            values=[f"\\' {ENV} --", "'); --"],
        ),
        _make_table(
            *(f"c{JINJA}\u202e\x1b[2J\n", "k'\n", 'c"\t', "d\\", "e\\'", "f#}", "\u202e", "x#}"),
            "{% x",
            values=[JINJA, "\x1b[2J\u202e\n"],
        ),
    ],
    [
        _make_table(
            *(f"a{ENV}b`".ljust(255, "x"), ENV, "c`", JINJA, "d'\n", "x#}", 'e"', "f\\"),
            values=[ENV, JINJA],
        ),
    ],
    {
        "csv": _make_table(f"csv{ENV}", f"k{ENV}", "c", "${x}", "`", "a'b", values=[ENV]),
        "json": _make_table("json`", f"k{ENV}", f"c{ENV}", ENV, "a`b", "a.b", values=[ENV]),
    },
)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "e'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _escape(text: str) -> str:
    """Escapes a text for loader.yml, which then reads it literally."""
    return text.replace("${", "$${")


def _one_line(text: str) -> str:
    return re.sub(r"[\r\n]", "_", text)


def _nest(table: Table, row: Sequence[str]) -> dict[str, Any]:
    own = dict(zip(table.columns[1:], row[1:], strict=True))
    return {table.columns[0]: row[0], "nested": own}


def _create(database: Any, table: Table) -> None:
    name = f"{_quote(table.schema)}.{_quote(table.name)}"
    key, cursor, *others = map(_quote, table.columns)
    columns = [f'{key} text primary key, {cursor} text collate "C"', *(f"{c} text" for c in others)]
    comments = [
        f"comment on column {name}.{_quote(column)} is {_literal(text)}"
        for column, text in zip(table.columns, table.comments[1:], strict=True)
    ]
    rows = ["(" + ", ".join(map(_literal, row)) + ")" for row in table.keyed]
    database.execute(
        f"create table {name} ({', '.join(columns)})",
        f"comment on table {name} is {_literal(table.comments[0])}",
        *comments,
        f"insert into {name} values {', '.join(rows)}",
    )


class Hostile:
    """A loader and dbt project whose sources have the tables of a :class:`World`."""

    def __init__(self, folder: Path, warehouse: Path, like: Project, world: World) -> None:
        name = uuid.uuid4().hex[:8]
        self.world, self.text = world, ""
        self.lakes = [warehouse / f"raw_{name}", warehouse / f"analytics_{name}"]
        self.folder = folder / name
        self.folder.mkdir()
        self.project = Project(self.folder, like.spark, f"raw_{name}")
        self.dbt = DbtProject(
            like.spark,
            self.folder,
            schema=f"analytics_{name}",
            raw_schema=self.project.schema,
            settings={
                "models": {
                    "probe": {"+persist_docs": {"relation": True, "columns": True}},
                    "strandline": {"cq_freshness": {"+enabled": False}},
                }
            },
        )

    def jdbc(self, database: Database) -> None:
        for table in self.world.database:
            database.execute(f"create schema if not exists {_quote(table.schema)}")
            _create(database, table)
        options = {
            table.named: {"cursor_field": _escape(table.columns[1])}
            for table in self.world.database
        }
        self.project.jdbc(database, ["*"], table_options=options)

    def tables(self) -> dict[str, dict[str, Table]]:
        """Returns all tables by source, and by name in the source."""
        database = {one.named: one for one in self.world.database}
        streams = {one.name: one for one in self.world.streams}
        return {"shop": database, "api": streams, "drop": self.world.files}

    def compare(self, source: str, name: str, table: Table, late: bool) -> None:
        """Compares the latest table that dbt has built with the source's rows."""
        columns, rows = table.columns, table.keyed
        if late:
            columns = [*columns, LATE]
            rows = [[row[0], "9" + row[1], *row[2:], LATE] for row in rows]
        if source == "drop" and name.startswith("csv"):
            columns = [_one_line(column) for column in columns]
            rows = [[_one_line(value) or None for value in row] for row in rows]
        memory = json.loads((self.folder / "models" / "strandline" / "codegen.json").read_text())
        _, stem = memory["names"][f"{source}.{in_the_lake(name)}"]
        expected = [dict(sorted(zip(columns, row, strict=True))) for row in rows]
        built = self.project.spark.table(f"{self.dbt.schema}.{stem}_latest")
        if source == "drop" and name.startswith("json"):  # Spark sorts its fields
            key = table.columns[0]
            found = [{key: row[key], **row["nested"].asDict()} for row in built.collect()]
            found = [dict(sorted(row.items())) for row in found]
        else:
            assert [column for column in built.columns if column in columns] == columns
            places = [(c, built.columns.index(c)) for c in sorted(columns)]
            found = [{c: row[place] for c, place in places} for row in built.collect()]
        assert sorted(found, key=repr) == sorted(expected, key=repr), name

    def api(self) -> None:
        program = Program(self.project, self.folder)
        for table in self.world.streams:
            program.stream(
                table.name,
                [dict(zip(table.columns, row, strict=True)) for row in table.keyed],
                {name: {"type": ["null", "string"]} for name in table.columns},
                table.columns[:1],
                table.columns[1],
            )
        program.configure()

    def drop(self) -> None:
        """Writes CSV files, and JSON lines in which one object contains most columns."""
        options = {}
        for own, table in self.world.files.items():
            form, folder = own.partition("_")[0], self.folder / "drop" / own
            folder.mkdir(parents=True)
            # Spark cannot read files whose name has a colon.
            name = _cut(re.sub("[/:]", "_", table.name), 200).rstrip("\\")
            with (folder / f"0{name}.{form}").open("w", newline="") as file:
                if form == "csv":  # a line break ends a row even in quotes
                    lines = [table.columns, *table.keyed]
                    csv.writer(file).writerows([[_one_line(v) for v in line] for line in lines])
                else:
                    file.writelines(json.dumps(_nest(table, row)) + "\n" for row in table.keyed)
            key = _one_line(table.columns[0]) if form == "csv" else table.columns[0]
            options[own] = {"format": form, "primary_key": _escape(key)}
        spec = {"path": "drop", "format": "csv", "table_options": options}
        self.project.add("drop", "file", ["*"], spec)

    def run(self, *command: str) -> Ran:
        ran = self.project.loader(*command)
        self.text += ran.text
        assert ran.code in (0, 1), ran.text
        for error in ran.errors:
            assert not FOREIGN.search(error), error
        return ran

    def build(self) -> dict[str, Any]:
        """Runs `dbt build`, and keeps its log; returns the results by model or test."""
        self.dbt.install()
        heard: list[str] = []
        runner = dbtRunner(callbacks=[lambda event: heard.append(event.info.msg)])
        folder = str(self.folder)
        done = runner.invoke(
            [
                *("build", "--project-dir", folder, "--profiles-dir", folder),
                *("--log-path", f"{folder}/logs", "--target-path", f"{folder}/target"),
                *("--log-level", "none", "--log-level-file", "debug"),
            ]
        )
        self.text += "\n".join(heard)
        assert done.exception is None, done.exception
        return {one.node.name: one for one in done.result.results}

    def leaks(self) -> list[str]:
        """Returns the outputs, files and tables that contain the marker."""
        found = ["output"] if MARKER in self.text else []
        mark = MARKER.encode()
        for top in (*self.lakes, self.folder):
            for path in top.rglob("*"):
                if MARKER in path.name or (path.is_file() and mark in path.read_bytes()):
                    found.append(str(path.relative_to(top.parent)))
        rows = self.project.rows("select * from raw._cq_syncs")
        return found + (["_cq_syncs"] if MARKER in str(rows) else [])


@pytest.mark.parametrize("seed", range(1, EXAMPLES + 1))
def test_names_and_values_are_neither_expanded_nor_run(
    project: Project, postgres: Postgres, warehouse: Path, seed: int
) -> None:
    with postgres.database() as database:
        hostile = Hostile(project.folder, warehouse, project, World.drawn(seed))
        try:
            _try(hostile, database)
        finally:
            for folder in (*hostile.lakes, hostile.folder):
                shutil.rmtree(folder, ignore_errors=True)


def _try(hostile: Hostile, database: Database) -> None:
    hostile.jdbc(database)
    hostile.api()
    hostile.drop()
    hostile.run("run")
    for table in hostile.world.database:
        relation = f"{_quote(table.schema)}.{_quote(table.name)}"
        cursor = _quote(table.columns[1])
        database.execute(
            f"alter table {relation} add column {_quote(LATE)} text",
            f"update {relation} set {_quote(LATE)} = {_literal(LATE)}, {cursor} = '9' || {cursor}",
        )
    ran = hostile.run("run")
    hostile.run("codegen", "--history", "shop.[!a-n]*")
    built = hostile.build()
    assert hostile.leaks() == []
    assert {name: one.message for name, one in built.items() if one.status not in FINE} == {}
    refused = [event["where"] for event in ran.events if event["event"] == "error"]
    for source, tables in hostile.tables().items():
        for name, table in tables.items():
            if not any(where.startswith(f"table {source}.{name}") for where in refused):
                hostile.compare(source, name, table, late=source == "shop")

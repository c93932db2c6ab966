"""With random changes of `columns`, `where` and `mask`, the snapshot equals the masked source.

Set STRANDLINE_EXAMPLES=50 to run more examples.
"""

from __future__ import annotations

import itertools
import os
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.services import Database
from tests.sync.chosen_table import KEYS, ChosenTable
from tests.sync.project import Project

EXAMPLES = int(os.environ.get("STRANDLINE_EXAMPLES", "1"))
ORDER = {
    False: "_cq_generation, at, _cq_batch, _cq_seq",
    True: "_cq_generation, _cq_batch, _cq_seq",
}
NUMBERS = itertools.count()

examples = hypothesis.settings(
    max_examples=EXAMPLES,
    phases=[hypothesis.Phase.generate],
    derandomize="STRANDLINE_EXAMPLES" not in os.environ,
)


@pytest.mark.slow
def test_random_options(project: Project, postgres_database: Database) -> None:
    """After each run, only deleted rows differ; after a reconcile, no rows differ."""

    @examples
    @hypothesis.given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        chance, key = random.Random(seed), KEYS[0]
        tables = create(postgres_database, chance)
        for _ in range(6):
            key = chance.choice(KEYS) if chance.random() < 0.1 else key
            altered = [table.name for table in tables if table.write()]
            spec(project, postgres_database, tables, key)
            refused = refuse(project, tables, key)
            for table in refused:
                load_again(project, table, key)
            for table in tables:
                table.note_load(key)
            # The next sweep finds rows that had stopped matching `where` before the full read.
            if altered or refused:
                refused = refuse(project, tables, key)
                assert not refused, "\n".join(table.history() for table in refused)
            empty = [table.name for table in tables if not table.expected(key)]
            if empty or chance.random() < 0.2:
                repair(project, tables, empty)
            for table in tables:
                check_equal(project, table, key)
        for table in tables:
            postgres_database.execute(f"drop table {table.name}")

    check()


def create(
    database: Database, chance: random.Random, follows_log: bool = False
) -> list[ChosenTable]:
    names = [f"t{next(NUMBERS)}" for _ in range(4)]
    return [ChosenTable(database, name, chance, follows_log) for name in names]


def spec(project: Project, database: Database, tables: list[ChosenTable], key: str) -> None:
    options = {table.name: table.choose() for table in tables}
    project.jdbc(database, list(options), table_options=options)
    if key:
        project.sources[-1]["mask_key"] = key
        project.write()


def refuse(project: Project, tables: list[ChosenTable], key: str) -> list[ChosenTable]:
    """Runs; returns the rejected tables, which must be those loaded with different masks."""
    changed = {table.name: table.changed_masks(key) for table in tables}
    valued = {table.name: list_valued(project, table) for table in tables}
    ran = project.loader("run")
    errors = {e["where"]: e["what"] for e in ran.events if e["event"] == "error"}
    found = {name: errors.pop(f"table shop.{name}, mask", "") for name in changed}
    assert not errors, "\n".join([str(errors), *(table.history() for table in tables)])
    assert ran.code == bool(any(found.values())), ran.text
    for table in tables:
        named = found[table.name].partition("have changed: ")[2].partition(". ")[0].split(", ")
        assert {*named} - {""} <= changed[table.name], f"{named}\n{table.history()}"
        assert named != [""] or not changed[table.name] & valued[table.name], table.history()
    return [table for table in tables if found[table.name]]


def list_valued(project: Project, table: ChosenTable) -> set[str]:
    """Returns the columns that have a value in the raw table."""
    if not project.lake().exists(table.name):
        return set()
    names = project.lake().frame(table.name).columns
    [counts] = project.rows(
        f"select {', '.join(f'count({n})' for n in names)} from raw.{table.name}"
    )
    return {name.partition("__")[0] for name, n in zip(names, counts, strict=True) if n}


def load_again(project: Project, table: ChosenTable, key: str) -> None:
    """Reloads a table whose masks changed, in one of the two documented ways."""
    must_drop = "id" in table.changed_masks(key) or not table.expected(key)
    if must_drop or table.chance.random() < 0.5:
        project.spark.sql(f"drop table {project.schema}.{table.name} purge")
        table.log.append("drop table purge")
        table.deleted.clear()
        table.loaded.clear()
        arguments = ["--select", f"shop.{table.name}"]
    else:
        table.log.append("run --full-refresh")
        arguments = ["--full-refresh", "--select", f"shop.{table.name}"]
    ran = project.loader("run", *arguments)
    assert ran.code == 0, f"{ran.text}\n{table.history()}"


def repair(project: Project, tables: list[ChosenTable], names: list[str]) -> None:
    """Reconciles these tables, or all tables if no names are given."""
    selected = [word for name in names for word in ("--select", f"shop.{name}")]
    repaired = project.loader("reconcile", "--repair", "--allow-deletes", *selected)
    assert repaired.code == 0, "\n".join([repaired.text, *(table.history() for table in tables)])
    for table in tables:
        if not names or table.name in names:
            table.log.append("reconcile --repair")
            table.deleted.clear()


def check_equal(project: Project, table: ChosenTable, key: str) -> None:
    """Checks that the newest version of each key equals the source's masked row."""
    table.log.append("compared")
    if not project.lake().exists(table.name):
        assert not table.expected(key), table.history()
        return
    names = ["id", *table.selected()]
    raw = project.lake().frame(table.name).columns
    # If a column's type has changed, values are in its type-specific columns.
    found = project.rows(
        f"select newest.* from (select max_by(struct(*), struct({ORDER[table.follows_log]})) "
        f"as newest from raw.{table.name} group by id) where not newest._cq_deleted"
    )
    snapshot = {}
    for row in found:
        values = dict(zip(raw, row, strict=True))
        kept = []
        for name in names:
            variants = [raw_name for raw_name in raw if raw_name.partition("__")[0] == name]
            present = [values[each] for each in variants if values[each] is not None]
            assert len(present) < 2, f"{name} of {values}: {table.history()}"
            kept.append(present[0] if present else None)
        snapshot[values["id"]] = tuple(kept)
    for deleted in table.undetected(key):
        snapshot.pop(deleted, None)
    assert snapshot == table.expected(key), table.history()

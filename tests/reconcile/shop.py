"""A database with changes that cursors do not show, and functions that run `loader reconcile`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loader.reconcile.reconciliation import Finding, Reconciliation
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.services import Database
from tests.sync.project import Project, Ran

FIRST = 200
MISSED = {"missed_updates": 7, "missed_rows": 3, "missed_deletes": 5}
COUNTS = ("missed_updates", "missed_rows", "missed_deletes")


class Shop(ABC):
    """A database of any kind, with a table `orders` (id, part, note, amount, changed)."""

    @abstractmethod
    def execute(self, *statements: str) -> None:
        """Runs statements, each committed."""

    @abstractmethod
    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Returns rows whose values are texts."""

    @abstractmethod
    def configure(self, project: Project, tables: list[str], **options: Any) -> None:
        """Writes a spec in which all tables have the same options."""

    def open(self, project: Project, **options: Any) -> None:
        """Creates the table with its first rows, and syncs them."""
        self.execute(
            "create table orders (id int not null, part varchar(10) not null, "
            "note varchar(40), amount decimal(10, 2), changed timestamp not null, "
            "primary key (id, part))"
        )
        rows = [
            f"({n}, 'p{n % 3}', {text(n)}, {n % 50}.25, timestamp('{moment(n)}'))"
            for n in range(1, FIRST + 1)
        ]
        self.execute(f"insert into orders values {', '.join(rows)}")
        self.configure(project, ["orders"], cursor_field="changed", **options)
        assert project.run().table("shop.orders")["appended"] == FIRST

    def damage(self) -> None:
        """Makes 7 updates that do not move the cursor, 3 inserts below it, and 5 deletes."""
        self.execute(
            "update orders set note = 'changed' where id between 11 and 13",
            "update orders set note = null where id = 15",
            "update orders set amount = null where id = 16",
            "update orders set amount = amount + 0.01 where id = 17",
            "update orders set note = '' where id = 18",
            f"insert into orders values (1001, 'it''s', 'late', 1, timestamp('{moment(3)}'))",
            f"insert into orders values (1002, 'p1', null, null, timestamp('{moment(4)}'))",
            f"insert into orders values (11, 'other', 'late', 1, timestamp('{moment(5)}'))",
            "delete from orders where id between 50 and 54",
        )


@dataclass(frozen=True)
class ServerShop(Shop):
    """A shop in PostgreSQL or MariaDB."""

    database: Database

    def execute(self, *statements: str) -> None:
        self.database.execute(*(self._adapt(one) for one in statements))

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(map(_to_text, row)) for row in self.database.query(statement)]

    def configure(self, project: Project, tables: list[str], **options: Any) -> None:
        if "postgresql" in self.database.url:  # otherwise the sync itself would find most changes
            options = {"sweep": "never", **options}
        project.jdbc(self.database, tables, table_options=dict.fromkeys(tables, options))

    def _adapt(self, statement: str) -> str:
        if "mariadb" in self.database.url:
            return statement.replace(" timestamp not null", " datetime(6) not null")
        return statement.replace("timestamp('", "cast('").replace("')", "' as timestamp)")


@dataclass(frozen=True)
class DerbyShop(Shop):
    """A shop in Derby, which has no md5."""

    url: str
    connection: Any

    def execute(self, *statements: str) -> None:
        statement = self.connection.createStatement()
        for each in statements:
            statement.execute(each)
        statement.close()

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        result = self.connection.createStatement().executeQuery(statement)
        columns = range(1, result.getMetaData().getColumnCount() + 1)
        rows = []
        while result.next():
            rows.append(tuple(result.getString(i) for i in columns))
        return rows

    def configure(self, project: Project, tables: list[str], **options: Any) -> None:
        own = {"url": self.url, "table_options": dict.fromkeys(tables, options)}
        project.add("shop", "jdbc", tables, own)


def reconcile(project: Project, *arguments: str, code: int = 0) -> Ran:
    """Runs `loader reconcile`, which must exit with this code."""
    ran = project.loader("reconcile", *arguments)
    assert ran.code == code, ran.text
    return ran


@dataclass
class Phase:
    """Calls a function the first time that a table enters a phase."""

    table: str
    name: str
    act: Callable[[], object]
    has_acted: bool = False

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        if (table, phase) == (self.table, self.name) and not self.has_acted:
            self.has_acted = True
            self.act()

    def warn(self, table: str, text: str) -> None: ...


def reconcile_while(
    project: Project, table: str, phase: str, act: Callable[[], object]
) -> dict[str, Finding]:
    """Reconciles and repairs one table after another. Calls a function at a phase of one table."""
    work = Reconciliation(repairs=True)
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    listener = Phase(f"shop.{table}", phase, act)
    outcomes = run_tables(pipeline, Watch(listener=listener), (), False, 1, work)
    assert {one.error for one in outcomes} == {None}
    assert listener.has_acted
    return {finding.table.removeprefix("shop."): finding for finding in work.findings}


def counts(finding: Finding) -> dict[str, int]:
    """Returns the counts of missed changes in a result."""
    return {name: finding.total(name) for name in COUNTS}


def line(ran: Ran, table: str = "shop.orders") -> dict[str, Any]:
    """Returns a table's line of the summary."""
    return next(e for e in ran.events if e["event"] == "reconciled" and e["table"] == table)


def missed(ran: Ran, table: str = "shop.orders") -> dict[str, int]:
    """Returns the counts of missed changes in a table's summary."""
    return {name: line(ran, table)[name] for name in COUNTS}


def nothing() -> dict[str, int]:
    """Returns the counts of a comparison that finds no difference."""
    return dict.fromkeys(COUNTS, 0)


def newest(project: Project, columns: str, key: str = "id, part", table: str = "orders") -> Any:
    """Returns the newest version of each key as texts, without deleted keys."""
    rows = project.rows(
        f"select newest.* from (select max_by(struct({columns}, _cq_deleted), "
        f"struct(_cq_generation, changed, _cq_batch, _cq_seq)) as newest from raw.{table} "
        f"group by {key}) where not newest._cq_deleted order by {key}"
    )
    return [tuple(map(_to_text, row[:-1])) for row in rows]


def assert_equal(project: Project, shop: Shop) -> None:
    """Asserts that the newest versions in the raw table equal the rows in the source."""
    columns = "id, part, note, amount"
    assert newest(project, columns) == sorted(
        shop.query(f"select {columns} from orders"), key=lambda row: (int(row[0]), row[1])
    )


def text(number: int) -> str:
    """Returns a note, as an SQL literal."""
    return "null" if number % 10 == 0 else f"'note {number}'"


def moment(number: int) -> str:
    """Returns a cursor that has microseconds."""
    return f"2025-01-01 {number // 60:02d}:{number % 60:02d}:00.{number:06d}"


def _to_text(value: Any) -> str | None:
    return None if value is None else str(value)

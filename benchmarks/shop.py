"""The measured tables: one large table, and many small ones with the same columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.table import StaticTable

from tests.services import Database

COLUMNS = 8
SUMMED = ["order_id", "customer_id", "amount"]
_CREATE = """
create table {name} (
    order_id bigint not null, customer_id int, status text, amount numeric(12, 2),
    note text, weight double precision, placed timestamptz, updated_at timestamptz not null
)
"""
_FILL = """
insert into {name}
select g, g % 1000, 'status ' || g % 5, (g % 10000) / 100.0, md5(g::text), g / 7.0,
    timestamptz '2025-01-01' + g * interval '1 ms',
    timestamptz '2025-02-01' + g * interval '1 ms'
from generate_series(1, {rows}) g
"""
_INDEX = (
    "alter table {name} add primary key (order_id)",
    "create index on {name} (updated_at)",
    "vacuum (freeze, analyze) {name}",
)
# The keys are spread over the whole table, and differ in each change. Each row has a different
# time, like rows that an application changes one by one.
_CHANGE = """
update {name}
set status = 'changed', amount = amount + 1, updated_at = clock_timestamp()
where order_id in (
    select 1 + (g * 7919::bigint + {change} * 104729::bigint) % {rows}
    from generate_series(1, {changed}) g
)
"""


@dataclass(frozen=True)
class Sums:
    """The sums with which rows are compared.

    Attributes:
        amount: the total amount in cents.
    """

    rows: int
    order_id: int
    customer_id: int
    amount: int

    def __add__(self, other: Sums) -> Sums:
        mine = (self.rows, self.order_id, self.customer_id, self.amount)
        theirs = (other.rows, other.order_id, other.customer_id, other.amount)
        return Sums(*(a + b for a, b in zip(mine, theirs, strict=True)))


NOTHING = Sums(0, 0, 0, 0)


@dataclass
class Shop:
    """Tables with the same columns in a PostgreSQL database.

    Args:
        rows: the number of rows in each table.
        tables: the number of tables. A single table is called `orders`.
    """

    database: Database
    rows: int
    tables: int = 1
    changes: int = 0

    def __post_init__(self) -> None:
        self.names = ["orders"] if self.tables == 1 else [f"t{n:03}" for n in range(self.tables)]

    def create(self) -> Shop:
        """Creates and fills the tables."""
        for name in self.names:
            statements = (_CREATE, _FILL, *_INDEX)
            self.database.execute(*(s.format(name=name, rows=self.rows) for s in statements))
        return self

    def source(self) -> Mapping[str, Any]:
        """Returns the connector and its options, as in a spec."""
        options = {name: {"cursor_field": "updated_at"} for name in self.names}
        account = {"user": self.database.user, "password": "${BENCH_PASSWORD}"}
        own = {"url": self.database.url, **account, "table_options": options}
        return {"path": "jdbc", "spec": own}

    def secrets(self) -> Mapping[str, str]:
        """Returns the variables that the spec names."""
        return {"BENCH_PASSWORD": self.database.password}

    def change(self, rows: int) -> Sums:
        """Changes this number of rows in each table. Returns the sums over their new versions."""
        [(now,)] = self.database.query("select clock_timestamp()::text")
        self.update(rows)
        return self.sums(f"where updated_at > '{now}'")

    def update(self, rows: int) -> None:
        """Changes this number of rows in each table.

        Each table is changed in one transaction, so a loop sees either all changes or none.
        """
        self.changes += 1
        given = {"rows": self.rows, "changed": rows, "change": self.changes}
        self.database.execute(*(_CHANGE.format(name=name, **given) for name in self.names))

    def drop(self) -> None:
        """Drops the tables."""
        self.database.execute(*(f"drop table {name}" for name in self.names))

    def sums(self, where: str = "") -> Sums:
        """Returns the sums over the rows of all tables."""
        asked = "count(*), sum(order_id), sum(customer_id), (sum(amount) * 100)::bigint"
        found = NOTHING
        for name in self.names:
            [row] = self.database.query(f"select {asked} from {name} {where}")
            found += Sums(*(int(value or 0) for value in row))
        return found


def sums_of_files(folders: Iterable[Path]) -> Sums:
    """Returns the sums over all Parquet files in folders, that is, over all appended rows."""
    files = (file for folder in folders for file in folder.rglob("*.parquet"))
    return sum((sums_of(ds.dataset(file).to_table(columns=SUMMED)) for file in files), NOTHING)


def sums_of(rows: pa.Table) -> Sums:
    """Returns the sums over the rows of an Arrow table."""
    columns = (rows[name] for name in SUMMED)
    # values from CSV files are strings
    numbers = (c.cast(pa.float64()) if pa.types.is_string(c.type) else c for c in columns)
    key, customer, amount = (pc.sum(column).as_py() or 0 for column in numbers)
    return Sums(rows.num_rows, int(key), int(customer), round(Decimal(str(amount)) * 100))


def snapshot_sums(table: Path) -> Sums:
    """Returns the sums over the current rows of an Iceberg table in a folder."""
    metadata = table / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    read = StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json")).scan()
    return sums_of(read.select(*SUMMED).to_arrow())

"""The tables that are measured: one large one, and many small ones of the same columns."""

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
# The keys lie all over the table, other ones with each change. Each row has its own time, as rows
# that applications change one by one have.
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
    """What of the rows is compared: a sum for each kind of number.

    Attributes:
        amount: in cents.
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
    """Equal tables in a PostgreSQL database.

    Args:
        rows: of each table.
        tables: how many; a single one is called `orders`.
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
        """The connector and its options, as a spec has them."""
        options = {name: {"cursor_field": "updated_at"} for name in self.names}
        account = {"user": self.database.user, "password": "${BENCH_PASSWORD}"}
        own = {"url": self.database.url, **account, "table_options": options}
        return {"path": "jdbc", "spec": own}

    def secrets(self) -> Mapping[str, str]:
        """The variables that the spec names."""
        return {"BENCH_PASSWORD": self.database.password}

    def change(self, rows: int) -> Sums:
        """Changes so many rows of each table; returns the sums of their new versions."""
        [(now,)] = self.database.query("select clock_timestamp()::text")
        self.update(rows)
        return self.sums(f"where updated_at > '{now}'")

    def update(self, rows: int) -> None:
        """Changes so many rows of each table.

        Each table changes in one transaction: a loop sees all its changes at once, or none.
        """
        self.changes += 1
        given = {"rows": self.rows, "changed": rows, "change": self.changes}
        self.database.execute(*(_CHANGE.format(name=name, **given) for name in self.names))

    def drop(self) -> None:
        """Drops the tables."""
        self.database.execute(*(f"drop table {name}" for name in self.names))

    def sums(self, where: str = "") -> Sums:
        """The sums of all tables' rows."""
        asked = "count(*), sum(order_id), sum(customer_id), (sum(amount) * 100)::bigint"
        found = NOTHING
        for name in self.names:
            [row] = self.database.query(f"select {asked} from {name} {where}")
            found += Sums(*(int(value or 0) for value in row))
        return found


def sums_of_files(folders: Iterable[Path]) -> Sums:
    """The sums over all Parquet files below some folders: all rows that were ever appended."""
    files = (file for folder in folders for file in folder.rglob("*.parquet"))
    return sum((sums_of(ds.dataset(file).to_table(columns=SUMMED)) for file in files), NOTHING)


def sums_of(rows: pa.Table) -> Sums:
    """The sums of rows that Arrow holds."""
    columns = (rows[name] for name in SUMMED)
    # those of CSV files are texts
    numbers = (c.cast(pa.float64()) if pa.types.is_string(c.type) else c for c in columns)
    key, customer, amount = (pc.sum(column).as_py() or 0 for column in numbers)
    return Sums(rows.num_rows, int(key), int(customer), round(Decimal(str(amount)) * 100))


def snapshot_sums(table: Path) -> Sums:
    """The sums of an Iceberg table as it is now, by its folder."""
    metadata = table / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    read = StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json")).scan()
    return sums_of(read.select(*SUMMED).to_arrow())

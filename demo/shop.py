"""The demo's source: a shop in an embedded Derby database, with the same data in each run.

Derby runs inside Spark's JVM, and comes with it. Nothing here knows about cursors or batches: the
loader reads this database like any other.
"""

from __future__ import annotations

import csv
import datetime as dt
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from loader.sources.jdbc.connections import Connection
from loader.spark.error_translation import DatabaseError

Row = tuple[Any, ...]

TABLES = {
    "customers": """
        customer_id integer not null primary key,
        name varchar(60) not null,
        city varchar(40),
        updated_at timestamp
    """,
    "orders": """
        order_id integer not null primary key,
        customer_id integer,
        status varchar(12) not null,
        ordered_on date not null,
        total decimal(10, 2) not null,
        note varchar(80),
        updated_at timestamp not null
    """,
    "order_items": """
        order_id integer not null,
        line_no integer not null,
        product varchar(40) not null,
        quantity integer not null,
        price decimal(8, 2) not null,
        discount decimal(8, 2),
        updated_at timestamp not null,
        primary key (order_id, line_no)
    """,
}

CUSTOMERS = 500
ORDERS = 2000
OPENED = dt.datetime(2025, 1, 2)
# A payment run sets updated_at of the last orders to the same second, which becomes the cursor of
# the first sync. A loader that reads only above the cursor loses later changes in this second.
PAYMENTS = dt.datetime(2025, 1, 29, 18)
PAID = range(ORDERS - 4, ORDERS + 1)
CORRECTED, RESAVED = PAID[2], PAID[3]

_FIRST = ("Ada", "Björn", "Chloé", "Dmitri", "Emeka", "Fatima", "Grace", "Hiro", "Inés", "Jonas")
_LAST = ("Adeyemi", "Berg", "Castro", "Dubois", "Eriksen", "O'Hara", "Nakamura", "Weiß", "Young")
_CITIES = ("Lagos", "Lyon", "Malmö", "Osaka", "Porto", "Quito", None)
_NOTES = ("ring twice", 'says "no rush"', "leave with the neighbour, please", "für Oma")
_PRODUCTS = ("kettle", "teapot", "tray", "strainer", "cosy", "cup, white", "saucer", "honey spoon")


@dataclass(frozen=True)
class Change:
    """A change at the shop between two syncs.

    Attributes:
        what: a description of the change.
        table: the table that changed.
        rows: the number of rows that a loader must append; 0 if no value changed.
    """

    what: str
    table: str
    rows: int


class Shop:
    """The shop's database, accessed through JDBC.

    Args:
        url: the JDBC URL in the loader's spec.
        folder: for temporary files while tables are filled.
    """

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.folder = folder
        self._random = random.Random(20250102)

    def create(self) -> None:
        """Creates the database, with orders of a month."""
        with self._connect(";create=true") as connection:
            for table, columns in TABLES.items():
                connection.execute(f"create table {table} ({columns})")
            self._fill(connection, "customers", self._customers(1, CUSTOMERS))
            orders, items = [], []
            for number in range(1, ORDERS + 1):
                placed = OPENED + dt.timedelta(
                    seconds=1198 * number, microseconds=self._random.randrange(1_000_000)
                )
                order, lines = self._order(number, placed)
                orders.append(order)
                items += lines
            self._fill(connection, "orders", orders)
            self._fill(connection, "order_items", items)
            # Each night one statement ships all orders of the day, so most rows share their cursor
            # with other rows.
            for day in range(27):
                night = OPENED + dt.timedelta(days=day + 1, hours=2)
                connection.execute(
                    "update orders set status = 'shipped', "
                    f"updated_at = timestamp('{night}') "
                    f"where ordered_on = date('{(night - dt.timedelta(days=1)).date()}')"
                )
            connection.execute(
                f"update orders set status = 'paid', updated_at = timestamp('{PAYMENTS}') "
                f"where order_id >= {PAID[0]}"
            )

    def change(self) -> list[Change]:
        """Changes the data, after the first sync."""
        evening = PAYMENTS + dt.timedelta(hours=1)
        late, last = ORDERS + 1, ORDERS + 41
        orders, items = [], []
        for number in range(late, last + 1):
            placed = evening + dt.timedelta(minutes=3 * number - 3 * ORDERS, microseconds=number)
            order, lines = self._order(number, placed)
            orders.append(order)
            items += lines
        # The first order has the second of the payment run, but its transaction committed later.
        orders[0] = (*orders[0][:-1], PAYMENTS)
        # A guest's order: no customer, no note, no discount.
        guest = orders[-1]
        orders[-1] = (guest[0], None, *guest[2:5], None, guest[6])
        with self._connect() as connection:
            self._fill(connection, "orders", orders)
            self._fill(connection, "order_items", items)
            newcomers = list(self._customers(CUSTOMERS + 1, CUSTOMERS + 5, evening))
            self._fill(connection, "customers", newcomers)
            connection.execute(
                "update orders set status = 'delivered', note = null, "
                f"updated_at = timestamp('{evening}') where order_id between 1701 and 1760"
            )
            connection.execute(f"update orders set total = total - 5 where order_id = {CORRECTED}")
            connection.execute(f"update orders set status = status where order_id = {RESAVED}")
            connection.execute("update customers set city = 'Ghent' where customer_id = 2")
        second = f"{PAYMENTS:%H:%M:%S}"
        return [
            Change("40 new orders, one of them a guest's with NULLs in it", "orders", 40),
            Change(f"order {late} turns up late, with updated_at {second}", "orders", 1),
            Change(f"{len(items)} lines of these {len(orders)} orders", "order_items", len(items)),
            Change("60 orders delivered: status, note and updated_at change", "orders", 60),
            Change(f"order {CORRECTED} corrected; updated_at stays at {second}", "orders", 1),
            Change(f"order {RESAVED} re-sent: saved again, exactly as it was", "orders", 0),
            Change("5 new customers", "customers", len(newcomers)),
            Change("customer 2 moves; updated_at is NULL and stays so", "customers", 1),
        ]

    def count_ties(self, table: str) -> tuple[int, int, int]:
        """Counts rows, rows whose `updated_at` is not unique, and rows without `updated_at`."""
        ties = self.value(
            f"select coalesce(sum(n), 0) from (select count(*) as n from {table} "
            "where updated_at is not null group by updated_at having count(*) > 1) as ties"
        )
        without = self.value(f"select count(*) - count(updated_at) from {table}")
        return int(self.value(f"select count(*) from {table}")), int(ties), int(without)

    def count_due(self, table: str, cursor: str | None) -> int:
        """Counts the rows that a sync must read: at or above a cursor, or without a cursor."""
        low = f"where updated_at >= timestamp('{cursor}') or updated_at is null" if cursor else ""
        return int(self.value(f"select count(*) from {table} {low}"))

    def value(self, sql: str) -> str:
        """Returns the single value of a query, as text."""
        with self._connect() as connection:
            [(value,)] = connection.rows(sql)
        return str(value)

    def frame(self, table: str) -> DataFrame:
        """Reads a table without the loader; column names are in lower case, as in the lake."""
        options = {"url": self.url, "driver": "org.apache.derby.jdbc.EmbeddedDriver"}
        reader = self.spark.read.format("jdbc").options(**options, preferTimestampNTZ="true")
        rows = reader.option("dbtable", table).load()
        return rows.toDF(*(name.lower() for name in rows.columns))

    def close(self) -> None:
        """Shuts the database down, so that another process can open it."""
        # Derby reports a successful shutdown as an error.
        with suppress(DatabaseError), self._connect(";shutdown=true"):
            pass

    @contextmanager
    def _connect(self, attributes: str = "") -> Iterator[Connection]:
        options = {
            "url": self.url + attributes,
            "driver": "org.apache.derby.jdbc.EmbeddedDriver",
        }
        with Connection.open(self.spark, options, "the demo's shop") as connection:
            yield connection

    def _customers(self, first: int, last: int, since: dt.datetime = OPENED) -> Iterator[Row]:
        for number in range(first, last + 1):
            name = f"{self._random.choice(_FIRST)} {self._random.choice(_LAST)}"
            # The first three come from an older system, without times of update.
            at = since + dt.timedelta(minutes=4 * (number - first)) if number > 3 else None
            yield number, name, self._random.choice(_CITIES), at

    def _order(self, number: int, placed: dt.datetime) -> tuple[Row, list[Row]]:
        pick = self._random
        items: list[Row] = []
        total = Decimal(0)
        for line in range(1, pick.randint(1, 4) + 1):
            quantity = pick.randint(1, 5)
            price = Decimal(pick.randint(250, 9900)) / 100
            discount = price / 10 if pick.random() < 0.2 else None
            total += quantity * (price - (discount or 0)).quantize(Decimal("0.01"))
            shown = discount.quantize(Decimal("0.01")) if discount else None
            items.append((number, line, pick.choice(_PRODUCTS), quantity, price, shown, placed))
        note = pick.choice(_NOTES) if pick.random() < 0.3 else None
        customer = pick.randint(1, CUSTOMERS)
        return (number, customer, "open", placed.date(), total, note, placed), items

    def _fill(self, connection: Connection, table: str, rows: Any) -> None:
        # One call for each table, because inserting rows one by one is slow.
        path = self.folder / f"{table}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        connection.execute(
            f"call syscs_util.syscs_import_table(null, '{table.upper()}', "
            f"'{str(path).replace(chr(39), chr(39) * 2)}', null, null, 'UTF-8', 0)"
        )
        path.unlink()

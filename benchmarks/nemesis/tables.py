"""The tables that a schedule writes to, and their cursors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A table, the cursor that it is synced by, and how its rows are written.

    Attributes:
        create: SQL that creates the table.
        key: the primary key.
        cursor: the cursor field in the spec.
        insert: SQL that inserts a row with a `note`, a new key and the cursor `{at}`.
        clock: SQL for the cursor of a write, if the cursor is a time; else empty.
        updates: whether the cursor can show an update.
    """

    create: tuple[str, ...]
    key: tuple[str, ...]
    cursor: str
    insert: str
    clock: str = ""
    updates: bool = True

    @property
    def touch(self) -> str:
        """SQL with which an update changes the cursor; empty if every write changes it."""
        return f"at = {self.clock}" if self.clock else ""


POSTGRESQL: Mapping[str, Shape] = {
    # The usual table: each write sets the cursor to the start of its transaction.
    "orders": Shape(
        (
            "create table orders (id bigserial primary key, note text not null, "
            "at timestamptz not null default now())",
            "create index on orders (at)",
        ),
        ("id",),
        "at",
        "insert into orders (note, at) values (%(note)s, {at}) returning id",
        clock="now()",
    ),
    # The cursor is a number from a sequence, of which each session caches twenty values.
    "events": Shape(
        (
            "create sequence events_id cache 20",
            "create table events (id bigint primary key default nextval('events_id'), "
            "note text not null)",
        ),
        ("id",),
        "id",
        "insert into events (note) values (%(note)s) returning id",
        updates=False,
    ),
    # A composite key and no cursor column: the cursor is the transaction that wrote the row.
    "items": Shape(
        (
            "create sequence items_k",
            "create table items (k bigint default nextval('items_k'), l text default 'é', "
            "note text not null, primary key (k, l))",
        ),
        ("k", "l"),
        "xmin",
        "insert into items (note) values (%(note)s) returning k, l",
    ),
    # Partitions that are attached and detached, and a clock that advances in a transaction.
    "parts": Shape(
        (
            "create sequence parts_id",
            "create table parts (id bigint default nextval('parts_id'), region int not null, "
            "note text not null, at timestamp default clock_timestamp(), "
            "primary key (id, region)) partition by list (region)",
            "create table parts_1 partition of parts for values in (1)",
            "create table parts_2 partition of parts for values in (2)",
        ),
        ("id", "region"),
        "at",
        "insert into parts (region, note, at) "
        "values (1 + (random() < 0.5)::int, %(note)s, {at}) returning id, region",
        clock="clock_timestamp()",
    ),
    # The cursor is a date, so all rows written today are at the next window's boundary.
    "visits": Shape(
        (
            "create table visits (id bigserial primary key, note text not null, "
            "at date not null default current_date)",
        ),
        ("id",),
        "at",
        "insert into visits (note, at) values (%(note)s, {at}) returning id",
        clock="current_date",
    ),
}

MARIADB: Mapping[str, Shape] = {
    "orders": Shape(
        (
            "create table orders (id bigint auto_increment primary key, note text not null, "
            "at timestamp(6) not null default now(6), index (at)) engine=innodb",
        ),
        ("id",),
        "at",
        "insert into orders (note, at) values (%(note)s, {at}) returning id",
        clock="now(6)",
    ),
    "journal": Shape(
        (
            "create table journal (id bigint auto_increment primary key, note text not null, "
            "at datetime(6) not null default now(6), index (at)) engine=innodb",
        ),
        ("id",),
        "at",
        "insert into journal (note, at) values (%(note)s, {at}) returning id",
        clock="now(6)",
    ),
    # The cursor has whole seconds, as a datetime has by default.
    "visits": Shape(
        (
            "create table visits (id bigint auto_increment primary key, note text not null, "
            "at datetime not null default now(), index (at)) engine=innodb",
        ),
        ("id",),
        "at",
        "insert into visits (note, at) values (%(note)s, {at}) returning id",
        clock="now()",
    ),
}

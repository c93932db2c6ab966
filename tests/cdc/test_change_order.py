"""Changes reach the raw table in the order of the log: changed keys, TRUNCATE, large values."""

from __future__ import annotations

from tests.cdc.test_changes import NEWEST, follow, newest
from tests.services import Database
from tests.sync.project import Project

LARGE = ("note", "raw", "list", "doc", "numbers", "days", "ids", "parts", "number")

KEYS = {
    "padded": ("char(5)", "'k{n}'"),  # padded with blanks, which are not part of the value
    "amounts": ("numeric", "{n}.10"),
    "prices": ("numeric(12, 2)", "{n}.10"),
}
"""Tables whose keys can be written in several ways: the type and the values of the key."""

LIVE = range(1, 6)
LOADS = range(1, 201)


def test_a_large_value_that_an_update_did_not_change_is_filled(
    project: Project, postgres_database: Database
) -> None:
    large = "(select string_agg(md5(i::text || {seed}), '') from generate_series(1, 500) as i)"
    many = ", ".join(
        f"(select array_agg({each}) from generate_series(1, 1000) as i)"
        for each in ("i", "date '2024-01-01' + i", "md5(i::text)::uuid")
    )
    postgres_database.execute(
        "create table notes (id int primary key, state int, note text, raw bytea, list text[], "
        "doc jsonb, numbers int[], days date[], ids uuid[], parts bytea[], number numeric)",
        *(f"alter table notes alter {column} set storage external" for column in LARGE),
        *(
            "insert into notes select {id}, 0, note, note::bytea, array[note], "
            "jsonb_build_object('a', note), {many}, array[note::bytea], "
            "repeat('1234567', 1000)::numeric from {large} as l(note)".format(
                id=number, large=large.format(seed=f"'{number}'"), many=many
            )
            for number in (1, 2, 3)
        ),
    )
    for table, (kind, key) in KEYS.items():
        postgres_database.execute(
            f"create table {table} (id {kind} primary key, state int, note text)",
            f"alter table {table} alter note set storage external",
            *(
                f"insert into {table} values ({key.format(n=n)}, 0, repeat('{n}', 5000))"
                for n in LIVE
            ),
        )
    wanted = {"column_types": {"number": "string"}}
    follow(project, postgres_database, "notes", *KEYS, notes=wanted)
    project.run()
    for table, (kind, key) in KEYS.items():
        one, two, three, four, five, six, seven = (key.format(n=n) for n in range(1, 8))
        more_digits = f"{five}::numeric(20, 5)" if kind == "numeric" else f"{five}::{kind}"
        postgres_database.execute(
            f"update {table} set state = 1 where id = {one}",
            f"update {table} set id = {six} where id = {two}",
            f"delete from {table} where id = {three}",
            f"update {table} set id = {seven}, state = 2 where id = {four}",
            f"insert into {table} values ({four}, 3, 'another')",
            f"update {table} set id = {more_digits}, state = 4 where id = {five}",
        )
    postgres_database.execute(
        "update notes set state = 1 where id = 1",
        "update notes set state = 2, note = null where id = 1",
        "update notes set state = 3 where id = 1",
        "update notes set state = 1 where id = 2",
        "insert into notes (id, state, note) select 4, 0, note "
        f"from {large.format(seed='4')} as l(note)",
        "update notes set state = 1 where id = 4",
        "update notes set id = 30 where id = 3",
        "delete from notes where id = 2",
        "update notes set state = 9 where id = 30",
        "insert into notes (id, state, note) values (3, 0, 'another')",
        "update notes set state = 10 where id = 30",
        "delete from notes where id = 3",
        "update notes set id = 3 where id = 30",
    )
    project.jdbc(
        postgres_database,
        ["notes", "twin", *KEYS],
        table_options={
            "notes": {"sync_mode": "cdc", **wanted},
            "twin": {"sync_mode": "full_refresh", **wanted},
            **{table: {"sync_mode": "cdc"} for table in KEYS},
        },
    )
    postgres_database.execute("create table twin as select * from notes")
    project.run()
    columns = ("id", "state", *(f"cast({name} as string)" for name in LARGE))
    listed = ", ".join(columns)
    expected = project.rows(f"select {listed} from raw.twin order by id")
    names = ", ".join(f"newest.{name}" for name in ("id", "state", *LARGE))
    found = project.rows(
        f"select {listed} from ({NEWEST.format(columns=names, table='notes')}) order by id"
    )
    assert found == expected
    versions = project.rows(
        "select state, note is null from raw.notes where id = 1 order by _cq_generation"
    )
    assert versions == [(0, False), (1, False), (2, True), (3, True)]
    for table in KEYS:
        theirs = postgres_database.query(f"select id, state, note from {table} order by id")
        ours = newest(project, table, "id", "state", "note")
        stripped = [(getattr(id_, "rstrip", lambda id_=id_: id_)(), *rest) for id_, *rest in theirs]
        assert [tuple(row) for row in ours] == stripped, table
        assert [row[1] for row in ours] == [1, 3, 4, 0, 2], table


def test_transactions_are_whole_and_in_the_order_of_their_commits(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table left_half (id int primary key, v int, at timestamptz default now())",
        "create table right_half (id int primary key, v int)",
        "insert into left_half values (1, 0), (2, 0)",
        "create table things (id int primary key, v int)",
        "insert into things select i, i from generate_series(1, 4) as i",
        "create table staged (id int primary key)",
        "insert into staged values (0)",
    )
    follow(project, postgres_database, "left_half", "right_half", "things", "staged")
    project.run()
    slow = postgres_database.connect()
    slow.autocommit = False
    slow.execute("update left_half set v = 100, at = '2001-01-01' where id = 1")
    slow.execute("savepoint s")
    slow.execute("insert into right_half values (1, 100)")
    slow.execute("release s")
    postgres_database.execute(
        "update left_half set v = 1 where id = 2",
        "delete from things where id = 4",
        "insert into things values (5, 5)",
        "truncate things",
        "insert into things values (1, 10)",
        "begin; insert into things values (6, 6); truncate things; "
        "insert into things values (7, 7); commit",
        # a table that is emptied before each load
        *(f"begin; truncate staged; insert into staged values ({i}); commit" for i in LOADS),
    )
    # The open transaction is not read, although its changes are in the log.
    assert project.run().table("shop.left_half")["appended"] == 1
    assert newest(project, "left_half", "id", "v") == [(1, 0), (2, 1)]
    assert newest(project, "staged", "id") == [(LOADS[-1],)]
    [(gone,)] = project.rows("select count(*) from raw.staged where _cq_deleted")
    assert gone == len(LOADS)
    # A TRUNCATE deletes the rows that the table had then.
    assert newest(project, "things", "id", "v") == [(7, 7)]
    assert project.rows(
        "select id, count(*) from raw.things where _cq_deleted group by id order by id"
    ) == [(1, 2), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
    slow.execute("update left_half set v = 101 where id = 1")
    slow.commit()
    slow.close()
    project.run()
    assert newest(project, "left_half", "id", "v") == [(1, 101), (2, 1)]
    assert newest(project, "right_half", "id", "v") == [(1, 100)]

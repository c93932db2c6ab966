"""Masked columns: values, types, joins, reconcile, and which masks and changes are refused."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.reconcile.shop import line, reconcile
from tests.services import Database
from tests.sync.project import Project

KEY = "a secret of at least 16 bytes, longer than one block of SHA-256: 64 bytes"

PEOPLE = (
    "create table people (id int primary key, email varchar(80), phone varchar(20), iban char(24), "
    "name text, note text, born date, seen timestamp null, card varchar(20), number bigint, "
    "amount decimal(20, 0), at timestamp not null)",
    "insert into people values "
    "(1, 'Anna@Example.ORG', '0049-111', 'DE11', 'Anna', 'a', '1980-02-29', "
    "'2025-01-01 10:00:00.5', '4111111111111111', 7, 12345678901234567890, '2025-01-01 00:00:01'), "
    "(2, 'no address', '0049-222', 'DE22', '', 'b', '1955-01-01', null, '1111', -7, 0, "
    "'2025-01-01 00:00:02'), "
    "(3, null, null, null, null, null, null, null, null, null, null, '2025-01-01 00:00:03')",
)
MASKS: dict[str, Any] = {
    "email": "domain",
    "PHONE": "hash",
    "iban": {"last": 2},
    "name": "redact",
    "note": None,
    "born": "year",
    "seen": "year",
    "card": {"last": 4},
    "num*": "hash",
    "amount": "hash",
}


def digest(value: object, key: str = KEY) -> str:
    """Computes the mask `hash` as a user with the key would, without the loader."""
    return hmac.new(key.encode(), str(value).encode(), "sha256").hexdigest()


def spec(
    project: Project, database: Database, tables: dict[str, Any], key: str | None = KEY, **own: Any
) -> None:
    """Writes a spec with these table options."""
    options = {name: {"cursor_field": "at", **more} for name, more in tables.items()}
    project.jdbc(database, [*tables], table_options=options, **own)
    if key is not None:
        project.sources[-1]["mask_key"] = key
    project.write()


@pytest.fixture(params=["postgres_database", "mariadb_database"])
def database(request: pytest.FixtureRequest) -> Database:
    """A database of each kind."""
    found: Database = request.getfixturevalue(request.param)
    return found


def test_each_mask(project: Project, database: Database) -> None:
    database.execute(*PEOPLE)
    spec(project, database, {"people": {"mask": MASKS}})
    project.run()
    columns = "email, phone, iban, name, note, born, seen, card, number, amount"
    found = project.rows(f"select {columns} from raw.people order by id")
    assert found == [
        (
            *("example.org", digest("0049-111"), "***11", "***", None, 1980, 2025, "***1111"),
            *(digest(7), digest("12345678901234567890")),
        ),
        (
            *("***", digest("0049-222"), "***22", "***", None, 1955, None, "***"),
            *(digest(-7), digest(0)),
        ),
        (None,) * 10,
    ]
    types = {f.name: f.dataType.simpleString() for f in project.lake().schema_of("people").fields}
    assert (types["born"], types["seen"], types["number"], types["note"]) == (
        *("int", "int", "string", "string"),
    )
    # Unchanged rows are not appended again, and changes of masked values are detected.
    assert project.run().table("shop.people")["appended"] == 0
    database.execute("update people set phone = '1', at = '2025-01-02' where id = 1")
    assert project.run().table("shop.people")["appended"] == 1
    assert project.rows("select phone from raw.people where _cq_batch = 2") == [(digest(1),)]
    note = "masked columns: email (domain), phone (hash), iban (last: 2)"
    assert note in project.loader("check").text


def test_an_update_of_a_masked_column_at_the_cursor_is_found(
    project: Project, postgres_database: Database
) -> None:
    """The stored digest of the rows at the cursor uses the key, so values cannot be guessed."""
    postgres_database.execute(*PEOPLE)
    digests = set()
    for key in (KEY, KEY[::-1]):
        options = {"people": {"mask": {"phone": "hash", "name": "redact"}}}
        spec(project, postgres_database, options, key)
        project.run()
        digests.add(project.state("shop.people")["boundary"]["digest"])
        if key == KEY:
            project.spark.sql(f"drop table {project.schema}.people purge")
    assert len(digests) == 2
    postgres_database.execute("update people set phone = 'x', at = at where id = 3")
    assert project.run().table("shop.people")["appended"] == 1
    spec(project, postgres_database, {"people": {"mask": {"name": "redact"}}}, key=None)
    project.run("--full-refresh")
    assert "boundary" not in project.state("shop.people")


def test_tables_are_joined_by_their_masked_keys(project: Project, database: Database) -> None:
    database.execute(
        "create table customers (email varchar(80) primary key, id int, at timestamp not null)",
        "create table orders (number int primary key, who varchar(90), customer bigint, "
        "at timestamp not null)",
        "insert into customers values ('anna@x.org', 1, '2025-01-01'), "
        "('bob@x.org', 2, '2025-01-01')",
        "insert into orders values (10, 'bob@x.org', 2, '2025-01-01'), "
        "(11, 'anna@x.org', 1, '2025-01-01'), (12, 'bob@x.org', 2, '2025-01-01')",
    )
    spec(
        project,
        database,
        {
            "customers": {"mask": {"email": "hash", "id": "hash"}},
            "orders": {"mask": {"who": "hash", "customer": "hash"}},
        },
    )
    project.run()
    for condition in ("c.email = o.who", "c.id = o.customer"):
        found = project.rows(
            f"select o.number from raw.orders o join raw.customers c on {condition} "
            f"where c.email = '{digest('bob@x.org')}' order by 1"
        )
        assert found == [(10,), (12,)]
    # An updated row is a new version of its masked key; unchanged rows are not appended again.
    database.execute("update customers set at = '2025-02-01' where id = 1")
    assert project.run().table("shop.customers")["appended"] == 1
    versions = project.rows("select email, count(*) from raw.customers group by 1 order by 2")
    assert versions == [(digest("bob@x.org"), 1), (digest("anna@x.org"), 2)]


def test_reconcile_compares_masked_columns(project: Project, database: Database) -> None:
    rows = ", ".join(f"('u{n}@x.org', 'name {n}', {n}, '2025-01-01')" for n in range(300))
    database.execute(
        "create table users (email varchar(80) primary key, name varchar(80), n int, "
        "at timestamp not null)",
        f"insert into users values {rows}",
    )
    masks = {"email": "hash", "name": {"last": 2}}
    is_postgres = "postgresql" in database.url
    spec(
        project, database, {"users": {"mask": masks, **({"sweep": "never"} if is_postgres else {})}}
    )
    project.run()
    equal = line(reconcile(project), "shop.users")
    assert (equal["status"], equal["verified"], equal["not_compared"]) == ("equal", 64, [])

    database.execute(
        "update users set at = '2024-01-01', name = 'name 99' where n = 5",
        "delete from users where n = 7",
        "insert into users values ('new@x.org', 'name 1', 999, '2024-01-01')",
    )
    ran = reconcile(project, "--repair", "--allow-deletes")
    missed = [line(ran, "shop.users")[f"missed_{kind}"] for kind in ("updates", "rows", "deletes")]
    assert missed == [1, 1, 1]
    assert digest("u7@x.org") in ran.text
    assert "x.org" not in ran.text
    assert project.rows(
        "select email, _cq_deleted from raw.users where _cq_batch = 2 order by n"
    ) == [(digest("u7@x.org"), True), (digest("u5@x.org"), False), (digest("new@x.org"), False)]
    assert line(reconcile(project), "shop.users")["status"] == "equal"


def test_a_changed_mask_is_refused_until_all_rows_are_read_again(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(*PEOPLE)
    spec(project, postgres_database, {"people": {}})
    project.run()
    assert "masks" not in project.state("shop.people")

    def refusal(masks: dict[str, Any], key: str = KEY) -> str:
        spec(project, postgres_database, {"people": {"mask": masks}}, key)
        for command in ("check", "run"):
            ran = project.loader(command)
            assert ran.code == 1, ran.text
        [error] = ran.errors
        return error

    masks = {"phone": "hash", "name": "redact"}
    assert "have changed: phone, name. " in refusal(masks).replace("name, phone", "phone, name")
    raw = f"`drop table {project.schema}.people purge`"
    assert raw in refusal(masks)
    assert "run --full-refresh --select shop.people" in refusal(masks)
    [warning] = [w for w in project.run("--full-refresh").warnings if "masks" in w]
    assert "stay in the raw table with their old values" in warning
    assert raw in warning
    assert project.state("shop.people")["masks"]["columns"] == masks
    assert not [w for w in project.run().warnings if "masks" in w]
    # Each of these changes would mix values with different masks in one column.
    assert "changed: name" in refusal({"phone": "hash"})
    assert "changed: name" in refusal({"phone": "hash", "name": "hash"})
    assert "changed: phone" in refusal(masks, KEY[::-1])
    assert "have changed: " in refusal({})
    # A column that the raw table does not have yet has no old values.
    spec(project, postgres_database, {"people": {"mask": {**masks, "extra*": "redact"}}})
    project.run()
    postgres_database.execute(
        "alter table people add extra_1 text",
        "update people set extra_1 = 'a', at = '2025-03-01' where id = 1",
    )
    project.run()
    assert project.rows("select distinct extra_1 from raw.people where _cq_batch > 2") == [("***",)]
    # A masked column that is renamed or dropped is an error; otherwise, it would load unmasked.
    postgres_database.execute("alter table people drop name")
    assert "there is no column 'name' to mask" in refusal({**masks, "extra*": "redact"})
    spec(project, postgres_database, {"people": {"mask": {"phone": "hash", "extra*": "redact"}}})
    project.run()
    # A column that is added again needs the mask of its old values.
    postgres_database.execute(
        "alter table people add name text",
        "update people set name = 'a', at = '2025-03-02' where id = 1",
    )
    assert "changed: name" in refusal({"phone": "hash", "extra*": "redact"})


def test_a_dropped_raw_table_begins_with_the_new_masks(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(*PEOPLE)
    spec(project, postgres_database, {"people": {"primary_key": "email"}})
    postgres_database.execute("delete from people where email is null")
    project.run()
    spec(
        project, postgres_database, {"people": {"primary_key": "email", "mask": {"email": "hash"}}}
    )
    for command in ("run", "check"):
        [error] = project.loader(command).errors
        assert "would not replace rows with its old values" in error
    [error] = project.loader("run", "--full-refresh").errors
    assert "would not replace rows with its old values" in error
    project.spark.sql(f"drop table {project.schema}.people purge")
    project.run()
    assert project.rows("select email from raw.people where id = 1") == [
        (digest("Anna@Example.ORG"),)
    ]
    assert project.run().table("shop.people")["status"] == "nothing new"


def test_the_mask_of_a_key_that_changes_before_any_row_is_loaded(
    project: Project, postgres_database: Database
) -> None:
    """The raw table is empty, even if it had rows before it was dropped, so the mask may change."""
    postgres_database.execute("create table t (id int primary key, at timestamp not null)")
    plain, masked = {"t": {}}, {"t": {"mask": {"id": "hash"}}}
    spec(project, postgres_database, plain)
    for is_dropped in (False, True):
        assert project.run().table("shop.t")["status"] == "nothing new"
        spec(project, postgres_database, masked)
        checked = project.loader("check")
        assert checked.code == 0, checked.text
        assert project.loader("run", "--dry-run").code == 0
        assert project.run().table("shop.t")["status"] == "nothing new"
        spec(project, postgres_database, masked, KEY[::-1])
        postgres_database.execute("insert into t values (1, '2025-01-01')")
        assert project.run().table("shop.t")["appended"] == 1
        assert project.rows("select id from raw.t") == [(digest(1, KEY[::-1]),)]
        if not is_dropped:
            spec(project, postgres_database, plain)
            project.spark.sql(f"drop table {project.schema}.t purge")
            postgres_database.execute("delete from t")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a cursor": ({"mask": {"at": "year"}}, "the cursor_field 'at' cannot be masked"),
    "a cursor, by a wildcard": ({"mask": {"a*": "redact"}}, "Use wildcards that do not match it"),
    "a mark": (
        {"deleted_field": "born", "mask": {"born": "null"}},
        "the deleted_field 'born' cannot be masked",
    ),
    "a key": ({"mask": {"id": "redact"}}, "the mask `redact` does not keep the key column 'id'"),
    "a column that is not there": ({"mask": {"emial": "hash"}}, "Did you mean `email`?"),
    "the year of a text": ({"mask": {"card": "year"}}, "it masks dates and timestamps"),
    "the end of a number": ({"mask": {"number": {"last": 4}}}, "it masks texts"),
    "the domain of a date": ({"mask": {"born": "domain"}}, "it masks texts"),
    "the hash of a timestamp": ({"mask": {"seen": "hash"}}, "dates and binary values"),
    "a type": (
        {"mask": {"card": "hash"}, "column_types": {"card": "decimal(38, 0)"}},
        "the masked column 'card' has a type in column_types",
    ),
    "no key": ({"mask": {"card": "hash"}}, "the mask `hash` needs a key"),
}


def test_what_cannot_be_masked_is_refused_before_anything_is_read(
    project: Project, postgres_database: Database
) -> None:
    """There is one table per reason. The missing key affects the whole source, so it comes last."""
    names = {reason: f"people_{number}" for number, reason in enumerate(REFUSED)}
    for name in names.values():
        postgres_database.execute(*(sql.replace("people", name) for sql in PEOPLE))
    without = "no key"
    for key, reasons in ((KEY, [one for one in REFUSED if one != without]), (None, [without])):
        spec(project, postgres_database, {names[one]: REFUSED[one][0] for one in reasons}, key)
        for command in ("check", "run"):
            ran = project.loader(command)
            assert ran.code == 1, ran.text
            for one in reasons:
                where, expected = f"table shop.{names[one]}, mask", REFUSED[one][1]
                assert [e for e in ran.errors if expected in e and where in e], (one, ran.text)
            assert len(ran.errors) == len(reasons)
            assert KEY not in ran.text
    assert not [name for name in names.values() if project.lake().exists(name)]


def test_columns_of_files_that_cannot_be_masked(project: Project, tmp_path: Path) -> None:
    (tmp_path / "drop/events/name=Ann").mkdir(parents=True)
    (tmp_path / "drop/events/name=Ann/one.csv").write_text("id,email\n1,a@x.org\n")
    (tmp_path / "drop/lines").mkdir()
    (tmp_path / "drop/lines/one.json").write_text('{"id": 1, "email": "a@x.org"}\n{"id\n')
    options = {"format": "json", "options": {"mode": "PERMISSIVE"}}
    for table, masks, expected in (
        ("events", {"name": "redact"}, "its values are in folder names"),
        ("events", {"_file_path": "hash"}, "the loader needs its values"),
        ("events", {"emial": "redact"}, "Did you mean `email`?"),
        ("events", {"email": "year"}, "it masks dates and timestamps"),
        ("lines", {"email": "redact"}, "contains whole records"),
    ):
        tables = {"events": {"mask": masks}, "lines": {"mask": masks, **options}}
        own = {"path": "drop", "format": "csv", "table_options": tables}
        project.add("files", "file", [table], own)
        project.sources[-1]["mask_key"] = KEY
        project.write()
        [error] = project.loader("run").errors
        assert expected in error


def test_masks_of_files(project: Project, tmp_path: Path) -> None:
    (tmp_path / "drop/events").mkdir(parents=True)
    (tmp_path / "drop/events/one.csv").write_text("id,email,born\n7,Ann@X.org,1980-02-29\n")
    masks = {"id": "hash", "email": "domain", "born": "year"}
    options = {"primary_key": "id", "mask": masks, "column_types": {"id": "int", "born": "date"}}
    for types in (options["column_types"], "id int, email string, born date"):
        table = {**options, "column_types": types}
        own = {"path": "drop", "format": "csv", "table_options": {"events": table}}
        project.add("files", "file", ["events"], own)
        project.sources[-1]["mask_key"] = KEY
        project.write()
        project.run()
    assert project.rows("select id, email, born from raw.events") == [(digest(7), "x.org", 1980)]
    (tmp_path / "drop/events/one.csv").write_text("id,email,born\n7,bob@y.org,1981-02-28\n")
    assert project.run().table("files.events")["appended"] == 1
    newest = "select max_by(email, _cq_batch) from raw.events group by id"
    assert project.rows(newest) == [("y.org",)]


@pytest.mark.skipif(pyspark.__version__ < "4", reason="Spark 3.5 reads no XML")
def test_a_malformed_record_of_xml_is_not_quoted(project: Project, tmp_path: Path) -> None:
    (tmp_path / "drop/events").mkdir(parents=True)
    file = tmp_path / "drop/events/one.xml"
    record = "<event><id>{}</id><email>Ann@X.org</email></event>"
    options = {"rowTag": "event", "mode": "FAILFAST"}
    table = {"primary_key": "id", "mask": {"email": "domain"}}
    for types in ("id int, email string", None):
        tables = {"events": {**table, "column_types": types} if types else table}
        own = {"path": "drop", "format": "xml", "options": options, "table_options": tables}
        project.add("files", "file", ["events"], own)
        file.write_text("<all>" + record.format(7) + "</all>")
        project.run("--full-refresh")
        assert project.rows("select id, email from raw.events") == [(7, "x.org")]
        file.write_text("<all>" + record.format(8) + "<event><id>9</id><email>Ann</event></all>")
        ran = project.loader("run", "--full-refresh")
        assert ran.code == 1
        assert "malformed records are detected in" in ran.errors[0]
        assert "Ann" not in ran.text
        assert project.rows("select id, email from raw.events") == [(7, "x.org")]
        project.spark.sql(f"drop table {project.schema}.events")


def test_the_mask_year_of_early_dates(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(*PEOPLE, "update people set born = '1583-01-01', seen = '0476-09-04'")
    spec(project, postgres_database, {"people": {"mask": {"born": "year", "seen": "year"}}})
    project.run()
    assert set(project.rows("select born, seen from raw.people")) == {(1583, 476)}


def test_a_masked_column_that_is_new_in_a_backfill_or_an_excluded_one(
    project: Project, database: Database
) -> None:
    """In both cases, the next run does not report that the masks of loaded rows have changed."""
    database.execute(
        "create table t (id int primary key, code varchar(20), at timestamp not null)",
        "insert into t values (1, 'a', '2025-01-01 00:00:01')",
    )
    masks = {"code": "hash", "e*": "hash"}
    spec(project, database, {"t": {"mask": masks, "columns": {"exclude": "code"}}})
    project.run()
    database.execute(
        "alter table t add email varchar(20)",
        "update t set email = 'x', at = '2025-01-01 00:00:02'",
    )
    project.run("--from", "2024-12-01")
    project.run()
    [(email,)] = project.rows("select max_by(email, _cq_batch) from raw.t")
    assert email == digest("x")


def test_a_mask_that_changes_after_a_backfill_has_added_its_column(
    project: Project, postgres_database: Database
) -> None:
    """The next run still treats the column as new, but the raw table already has its values."""
    changes: list[tuple[dict[str, str], dict[str, str]]] = [
        (before, after)
        for before in ({}, {"e*": "hash"})
        for after in ({}, {"e*": "redact"}, {"e*": "hash"})
    ]
    before = {f"t{number}": {"mask": masks} for number, (masks, _) in enumerate(changes)}
    after = {f"t{number}": {"mask": masks} for number, (_, masks) in enumerate(changes)}
    for table in before:
        postgres_database.execute(
            f"create table {table} (id int primary key, at timestamp not null)",
            f"insert into {table} values (1, '2025-01-01 00:00:01'), (2, '2025-01-01 00:00:02')",
        )
    spec(project, postgres_database, before)
    project.run()
    for table in before:
        postgres_database.execute(f"alter table {table} add email text not null default 'x'")
    ran = project.run("--from", "2025-01-01 00:00:02", "--to", "2025-01-01 00:00:02")
    assert {ran.table(f"shop.{table}")["appended"] for table in before} == {1}
    spec(project, postgres_database, after)
    changed = [table for table in before if before[table] != after[table]]
    assert len(changed) == 4
    for command in ("check", "run"):
        errors = project.loader(command).errors
        assert len(errors) == len(changed), errors
        for table in changed:
            [error] = [each for each in errors if each.startswith(f"table shop.{table}")]
            assert "have changed: email" in error
    for table in before.keys() - set(changed):
        assert len(project.rows(f"select email from raw.{table} where email is not null")) == 2
    chosen = [option for table in changed for option in ("--select", f"shop.{table}")]
    warnings = [w for w in project.run("--full-refresh", *chosen).warnings if "masks" in w]
    assert len(warnings) == len(changed)
    for table in changed:
        assert [w for w in warnings if f"shop.{table}:" in w and "email" in w], warnings
    ran = project.run()
    assert {ran.table(f"shop.{table}")["status"] for table in before} == {"nothing new"}


def test_a_new_column_with_the_mask_null_reads_no_older_rows(
    project: Project, database: Database
) -> None:
    """For any value in the source, the raw table has null, so there is nothing to read again."""
    database.execute(
        "create table t (id int primary key, at timestamp not null)",
        "insert into t values (1, '2025-01-01 00:00:01'), (2, '2025-01-02 00:00:02')",
    )
    spec(project, database, {"t": {"mask": {"e*": None, "p*": "hash"}}})
    project.run()
    database.execute("alter table t add email varchar(20) not null default 'x'")
    for _ in range(2):
        ran = project.run()
        assert not any("all rows are read again" in text for text in ran.warnings), ran.text
        assert ran.table("shop.t")["read"] == 1
    # A new column with another mask has values to load.
    database.execute("alter table t add phone varchar(20) not null default 'y'")
    assert any("all rows are read again" in text for text in project.run().warnings)
    newest = "select max_by(struct(email, phone), _cq_batch) as newest from raw.t group by id"
    assert project.rows(f"select newest.* from ({newest})") == [(None, digest("y"))] * 2

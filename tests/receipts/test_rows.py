"""The rows in the lake are verified with their receipts, and every change is detected."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loader.lake.ledger import Ledger
from tests.receipts.keys import Key, create_key
from tests.services import Database
from tests.sync.project import Project, Ran

BATCHES = 10
COMPACTED = 7
ADDED, WIDENED = 3, 5
"""The batches with which a column is added and a column is widened."""


def _configure(project: Project, database: Database, key: Key | None, name: str = "shop") -> None:
    project.lakes = {"lake": {"receipt_signing_key": key.pem}} if key else {}
    options = {"orders": {"cursor_field": "at"}}
    project.jdbc(database, ["orders"], name=name, table_options=options)


def _create(database: Database) -> None:
    database.execute(
        "create table orders (id int primary key, amount int, note text, at timestamptz)"
    )


def _change(database: Database, batch: int) -> None:
    """Inserts two rows and updates one; the next sync reads the row at the stored cursor again."""
    at = f"timestamptz '2025-01-01 00:00:00Z' + {batch} * interval '1 minute'"
    database.execute(
        f"insert into orders (id, amount, note, at) select n, n, 'note-{batch:02}', {at} "
        f"from generate_series({2 * batch}, {2 * batch + 1}) n",
        f"update orders set note = 'newer', at = {at} where id = {2 * batch - 2}",
    )


def _verify(project: Project, *arguments: str | Path, keys: list[Key]) -> Ran:
    options = [option for key in keys for option in ("--key", str(key.public))]
    return project.loader("receipts", "verify", *map(str, arguments), *options)


def _problems(ran: Ran) -> list[str]:
    """Returns the problems of a verification, which must have found some."""
    assert ran.code == 1, ran.text
    return [f"{e['where']}: {e['what']}" for e in ran.events if e["event"] == "error"]


def _find_snapshot(project: Project) -> int:
    [(snapshot,)] = project.rows(
        "select max_by(snapshot_id, made_current_at) from raw.orders.history"
    )
    return int(snapshot)


def _roll_back(project: Project, snapshot: int) -> None:
    project.spark.sql(
        f"call system.rollback_to_snapshot('{project.schema}.orders', {snapshot})"
    ).collect()


def _set_snapshot(project: Project, snapshot: int) -> None:
    project.spark.sql(
        f"call system.set_current_snapshot('{project.schema}.orders', {snapshot})"
    ).collect()


@contextmanager
def _flip_byte(path: Path) -> Iterator[None]:
    """Changes a byte of a file, and removes Hadoop's checksum of the file."""
    content = bytearray(path.read_bytes())
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    content[30] ^= 1
    path.write_bytes(content)
    yield
    content[30] ^= 1
    path.write_bytes(content)


def _insert(project: Project, batch: str) -> None:
    """Inserts a copy of the newest row with another batch number."""
    project.spark.sql(
        f"insert into {project.schema}.orders by name "
        f"select * except (_cq_batch), {batch} as _cq_batch from {project.schema}.orders "
        f"order by id desc limit 1"
    )


def _find_file(project: Project, batch: int) -> Path:
    """Returns the data file of a batch."""
    [(file,)] = project.rows(f"select distinct _file from raw.orders where _cq_batch = {batch}")
    return Path(str(file).removeprefix("file:"))


def _sync_batches(project: Project, database: Database, key: Key, count: int) -> None:
    """Syncs batches; the source's table changes in between."""
    _create(database)
    _configure(project, database, key)
    for batch in range(1, count + 1):
        if batch == ADDED:
            database.execute("alter table orders add column flag boolean default true")
        if batch == WIDENED:
            database.execute("alter table orders alter column amount type bigint")
        _change(database, batch)
        assert project.run().table("shop.orders")["batch"] == batch


def test_each_change_of_rows_and_receipts_is_found(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    key, table = create_key(tmp_path), f"table {project.schema}.orders"
    _sync_batches(project, postgres_database, key, BATCHES)
    whole = _verify(project, keys=[key])
    assert (whole.code, whole.warnings) == (0, []), whole.text
    [row] = [event for event in whole.events if event["event"] == "receipts"]
    assert (row["receipts"], row["verified"]) == (BATCHES, "receipts and rows")
    assert key.pem.splitlines()[1] not in whole.text

    exported = tmp_path / "exported"
    ran = project.loader("receipts", "export", str(exported))
    assert ran.code == 0, ran.text
    file = exported / f"{project.schema}.orders.intoto.jsonl"
    assert len(file.read_text().splitlines()) == BATCHES
    assert _verify(project, exported, "--data", keys=[key]).code == 0
    copied = shutil.copytree(exported, tmp_path / "copied")
    assert _verify(project, exported, copied, keys=[key]).code == 0

    # one byte in a data file
    with _flip_byte(_find_file(project, 7)):
        [problem] = _problems(_verify(project, keys=[key]))
    assert problem.startswith(f"{table}, batch 7: its rows cannot be read: ")

    # a deleted row, added rows, and a changed value in a valid file
    head = _find_snapshot(project)
    project.spark.sql(f"delete from {project.schema}.orders where id = 4 and _cq_batch = 2")
    for batch in ("cast(null as bigint)", "4L", "77L"):
        _insert(project, batch)
    project.spark.sql(f"update {project.schema}.orders set note = 'forged' where note = 'note-06'")
    assert sorted(_problems(_verify(project, keys=[key]))) == [
        f"{table}, batch 0: its 1 row has no receipt",
        f"{table}, batch 2: 1 row is missing: it had 3 rows",
        f"{table}, batch 4: it has 1 row more than its receipt (3 rows)",
        f"{table}, batch 6: values in its 3 rows were changed",
        f"{table}, batch 77: its 1 row has no receipt",
    ]
    _set_snapshot(project, head)

    # a column that is replaced by an empty one, without a new snapshot
    alter = f"alter table {project.schema}.orders"
    project.spark.sql(f"{alter} rename column note to old")
    project.spark.sql(f"{alter} add column note string")
    [problem] = _problems(_verify(project, keys=[key]))
    assert problem == f"{table}: its column 'note' was dropped or renamed"
    project.spark.sql(f"{alter} drop column note")
    project.spark.sql(f"{alter} rename column old to note")

    # a rewritten receipt in the ledger, a missing one, and two swapped ones
    ledger = f"{project.schema}._cq_syncs"
    receipts = dict(project.rows("select batch, receipt from raw._cq_syncs where batch > 0"))
    for changes, expected in (
        ({8: receipts[8].replace('"payload": "e', '"payload": "f')}, "_cq_syncs: a receipt"),
        ({8: None}, "batch 8: its receipt is missing: batch 9 refers to it"),
        ({8: receipts[9], 9: receipts[8]}, "batch 8: its receipt is stored after that of batch 9"),
    ):
        for batch, receipt in changes.items():
            value = "null" if receipt is None else f"'{receipt}'"
            project.spark.sql(f"update {ledger} set receipt = {value} where batch = {batch}")
        problems = _problems(_verify(project, keys=[key]))
        assert any(expected in problem for problem in problems), problems
        ran = project.loader("receipts", "export", str(exported))
        assert ran.code == 1, ran.text
        assert f"receipts in {file} are missing from the lake or differ from it" in ran.text
        for batch in changes:
            project.spark.sql(
                f"update {ledger} set receipt = '{receipts[batch]}' where batch = {batch}"
            )

    # the newest batch is removed by a rollback, together with its receipts in the lake
    [(parent,)] = project.rows(
        f"select parent_id from raw.orders.snapshots where snapshot_id = {head}"
    )
    _roll_back(project, parent)
    [problem] = _problems(_verify(project, keys=[key]))
    assert problem == f"{table}, batch {BATCHES}: its 3 rows are missing"
    [(newest,)] = project.rows("select receipt from raw._cq_syncs where batch = 9")
    project.spark.sql(f"delete from {ledger} where batch = {BATCHES}")
    project.spark.sql(
        f"alter table {project.schema}.orders set tblproperties "
        f"('strandline.receipt.{b'shop'.hex()}' = '{newest}')"
    )
    assert _verify(project, keys=[key]).code == 0
    [problem] = _problems(_verify(project, exported, "--data", keys=[key]))
    assert problem == f"{table}, batch {BATCHES}: its 3 rows are missing"


def test_rows_with_the_number_of_the_next_batch_are_not_signed(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    key = create_key(tmp_path)
    _sync_batches(project, postgres_database, key, 1)
    _insert(project, "2L")
    _change(postgres_database, 2)
    ran = project.loader("run")
    assert ran.code == 1
    assert "another program has inserted 1 row with the number of this batch, 2" in ran.errors[0]
    project.spark.sql(f"delete from {project.schema}.orders where _cq_batch = 2")
    assert project.run().table("shop.orders")["appended"] == 3
    ran = _verify(project, keys=[key])
    assert (ran.code, ran.warnings) == (0, []), ran.text


def test_batches_that_are_published_during_a_verification(
    project: Project,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = create_key(tmp_path)
    _sync_batches(project, postgres_database, key, 1)
    read, waiting = Ledger.read_receipts, [(2, 3), (4, 5)]

    def read_and_run(ledger: Ledger) -> list[str]:
        batches, found = waiting.pop(0), read(ledger)
        with monkeypatch.context() as undone:
            undone.setattr(Ledger, "read_receipts", read)
            for batch in batches:
                _change(postgres_database, batch)
                project.run()
        return found if waiting else read(ledger)

    monkeypatch.setattr(Ledger, "read_receipts", read_and_run)
    ran = _verify(project, keys=[key])
    assert (ran.code, ran.warnings) == (0, []), ran.text
    [row] = [event for event in ran.events if event["event"] == "receipts"]
    assert row["last_batch"] == 3, "two batches before the table was read, and two after it"


def test_sources_that_share_a_raw_table(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    """A receipt says nothing about the batches of another source."""
    key, table = create_key(tmp_path), f"table {project.schema}.orders"
    _create(postgres_database)
    for name in ("north", "south"):
        _configure(project, postgres_database, key, name)
    for source in project.sources:
        source["spec"]["table_options"]["orders"]["shared"] = True
    project.write()
    snapshots = []
    for batch, name in enumerate(("north", "south", "north"), 1):
        _change(postgres_database, batch)
        assert project.run("--select", f"{name}.orders").table(f"{name}.orders")["batch"] == batch
        snapshots.append(_find_snapshot(project))
    _roll_back(project, snapshots[1])
    assert project.run("--select", "north.orders").table("north.orders")["batch"] == 4
    ran = _verify(project, keys=[key])
    assert ran.code == 0, ran.text
    project.spark.sql(f"delete from {project.schema}.orders where _cq_batch = 2")
    [problem] = _problems(_verify(project, keys=[key]))
    assert problem.startswith(f"{table}, batch 2: its ")


def test_a_rollback_that_the_next_sync_repairs(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    key = create_key(tmp_path)
    _create(postgres_database)
    _configure(project, postgres_database, key)
    for batch in range(1, 4):
        _change(postgres_database, batch)
        project.run()
        if batch == 1:
            first = _find_snapshot(project)
    _roll_back(project, first)
    assert len(_problems(_verify(project, keys=[key]))) == 2
    assert project.run().table("shop.orders")["batch"] == 4
    ran = _verify(project, keys=[key])
    assert ran.code == 0, ran.text
    [note] = ran.warnings
    assert "batch 4: batches 2 to 3 were not in the raw table when this batch" in note

    # a dropped table: the chain continues from the ledger
    project.spark.sql(f"drop table {project.schema}.orders purge")
    assert "but the raw table has no rows" in _problems(_verify(project, keys=[key]))[0]
    assert project.run().table("shop.orders")["batch"] == 5
    ran = _verify(project, keys=[key])
    assert ran.code == 0, ran.text
    assert "batch 5: batches 1 to 4 were not in the raw table when this batch" in ran.warnings[-1]


def test_compaction(project: Project, postgres_database: Database, tmp_path: Path) -> None:
    key, table = create_key(tmp_path), f"table {project.schema}.orders"
    _sync_batches(project, postgres_database, key, COMPACTED)
    ran = project.loader("compact", "--expire-days", "0")
    assert ran.code == 0, ran.text
    ran = _verify(project, keys=[key])
    assert (ran.code, ran.warnings) == (0, []), ran.text
    _change(postgres_database, COMPACTED + 1)
    project.run()  # refers to the receipt of a batch whose commit has expired

    ran = project.loader("compact", "--keep-versions", "1", "--expire-days", "0")
    assert ran.code == 0, ran.text
    [(removed,)] = project.rows(
        "select sum(s.rows_appended) - (select count(*) from raw.orders) from raw._cq_syncs as s"
    )
    assert removed > COMPACTED
    ran = _verify(project, keys=[key])
    assert ran.code == 0, ran.text
    [note] = ran.warnings
    assert f"`loader compact` has removed {removed} rows from {COMPACTED - 1} batches" in note
    project.spark.sql(f"delete from {project.schema}.orders where id = 5")
    [problem] = _problems(_verify(project, keys=[key]))
    assert problem.startswith(f"{table}, batch {COMPACTED}: {removed + 1} rows are missing up to")


def test_receipts_are_turned_on_off_and_signed_with_a_new_key(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    old, new = create_key(tmp_path, "old"), create_key(tmp_path, "new")
    _create(postgres_database)
    for batch, (key, name) in enumerate(
        ((None, "shop"), (None, "shop"), (old, "shop"), (old, "shop"), (None, "shop")), 1
    ):
        _configure(project, postgres_database, key, name)
        _change(postgres_database, batch)
        project.run()
    [problem] = _problems(_verify(project, keys=[old, new]))
    assert problem == f"table {project.schema}.orders, batch 5: its 3 rows have no receipt"
    _configure(project, postgres_database, new)
    _change(postgres_database, 6)
    project.run()
    # the source gets another name
    project.sources = []
    _configure(project, postgres_database, new, "renamed")
    project.sources[0]["formerly"] = ["shop"]
    project.write()
    _change(postgres_database, 7)
    assert project.run().table("renamed.orders")["batch"] == 7
    project.spark.sql(
        f"create table {project.schema}.unsigned using iceberg "
        "tblproperties ('write.wap.enabled' = 'true') as select 1 as id"
    )
    ran = _verify(project, keys=[old, new])
    assert ran.code == 0, ran.text
    assert ran.warnings == [
        f"table {project.schema}.unsigned: it has no receipts, so its rows were not verified",
        f"table {project.schema}.orders, batch 3: batches 1 to 2 were published without receipts",
        f"table {project.schema}.orders, batch 6: batches 5 to 5 were published without receipts",
    ]
    problems = _problems(_verify(project, keys=[new]))
    # no trusted receipt says that the first batches have none
    assert ["have no receipt" in problem for problem in problems] == [True, True, False, False]
    assert ["is not trusted" in problem for problem in problems] == [False, False, True, True]


def test_a_wrong_key_is_reported_before_anything_is_read(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    _create(postgres_database)
    key = create_key(tmp_path)
    missing = tmp_path / "missing.pem"
    damaged = key.pem.replace("E", "F", 4)
    for value, problem in (
        (damaged, "it is not an unencrypted private key in PEM format"),
        (key.public.read_text(), "it is not an unencrypted private key in PEM format"),
        (f"${{file:{missing}}}", str(missing)),
    ):
        _configure(project, postgres_database, key)
        project.lakes["lake"]["receipt_signing_key"] = value
        project.write()
        ran = project.loader("run")
        assert ran.code == 2
        [error] = ran.errors
        assert problem in error
        assert key.pem.splitlines()[1] not in ran.text

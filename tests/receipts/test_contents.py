"""The fields of receipts: windows, counts, digests and the previous receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loader.lake.receipt import DIGEST, Receipt, parse_receipt
from tests.crash.steps import break_off
from tests.receipts.keys import create_key
from tests.services import Database
from tests.sync.project import Project


def _receipts(project: Project, table: str = "orders") -> dict[int, Receipt]:
    """Returns the receipts in the ledger by batch, in this order."""
    rows = project.rows(
        "select batch, receipt from raw._cq_syncs "
        f"where table_name = '{table}' and receipt is not null order by batch"
    )
    return {batch: parse_receipt(receipt) for batch, receipt in rows}


def _verify(project: Project, key: Path) -> None:
    ran = project.loader("receipts", "verify", "--key", str(key))
    assert (ran.code, ran.warnings) == (0, []), ran.text


def _change(database: Database, number: int) -> None:
    database.execute(
        f"insert into orders values ({number}, 'n{number}', "
        f"timestamptz '2025-01-01 00:00:00Z' + {number} * interval '1 minute')"
    )


def _load(project: Project, database: Database, options: dict[str, Any], key: str) -> None:
    project.lakes = {"lake": {"receipt_signing_key": key}}
    database.execute("create table orders (id int primary key, note text, at timestamptz)")
    project.jdbc(database, ["orders"], table_options={"orders": options})
    for number in (1, 2, 3):
        _change(database, number)
    project.run()


def test_windows_counts_and_digests(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    key = create_key(tmp_path)
    _load(project, postgres_database, {"cursor_field": "at"}, key.pem)
    _change(postgres_database, 4)
    project.run()
    assert project.run().table("shop.orders")["status"] == "nothing new"
    # a change that the cursor does not show
    postgres_database.execute("update orders set note = 'changed' where id = 1")
    assert project.loader("reconcile", "--repair").code == 0
    _verify(project, key.public)

    first, second, third = _receipts(project).values()
    assert [each.batch for each in (first, second, third)] == [1, 2, 3]
    assert (first.previous, second.previous) == (None, (1, first.sha256))
    assert third.previous == (2, second.sha256)
    assert second.follows_batch == 1
    window = second.predicate["window"]
    assert (window["cursor_field"], window["low"]) == ("at", "2025-01-01 00:03:00")
    assert window["high"] == "2025-01-01 00:04:00"
    counts = second.predicate["counts"]
    assert (counts["read"], counts["appended"], counts["redelivered"]) == (2, 1, 1)
    # the row at the stored cursor was not read: its digest in the source is unchanged
    assert (second.predicate["sent"]["rows"], second.rows) == (1, 1)
    assert second.predicate["database"]["system"].isascii()
    names = [column["name"] for column in first.predicate["columns"]]
    assert names[:4] == ["id", "note", "at", "_cq_source_name"]
    # all rows are read again
    assert project.loader("state", "reset", "shop.orders").code == 0
    _change(postgres_database, 5)
    project.run()
    reread = _receipts(project)[4]
    assert (reread.predicate["sent"]["rows"], reread.rows) == (5, 1)
    assert reread.predicate["sent"][DIGEST] != first.predicate["sent"][DIGEST]
    # the same rows have the same digest in any batch
    project.spark.sql(f"drop table {project.schema}.orders purge")
    project.run()
    project.spark.sql(f"drop table {project.schema}.orders purge")
    project.run()
    *_, before, again = _receipts(project).values()
    assert before.predicate["sent"] == again.predicate["sent"]
    assert before.rows_sha256 != again.rows_sha256
    assert before.predicate["committed"][DIGEST] == before.rows_sha256


def test_two_sources_share_a_raw_table(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    """A source's receipt is recovered even if the other source has published in the meantime."""
    key, options = create_key(tmp_path), {"cursor_field": "at", "shared": True}
    _load(project, postgres_database, options, key.pem)
    project.jdbc(postgres_database, ["orders"], name="other", table_options={"orders": options})
    project.run()
    _change(postgres_database, 4)
    break_off(project, "published", ["shop.orders"])
    project.run("--select", "other.orders")
    _verify(project, key.public)
    project.run()
    _verify(project, key.public)
    found = _receipts(project)
    assert {batch: each.source for batch, each in found.items()} == {
        1: "shop",
        2: "other",
        3: "shop",
        4: "other",
    }
    assert found[4].previous == (2, found[2].sha256)
    assert found[3].previous == (1, found[1].sha256)


def test_full_refreshes_and_tombstones(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    key = create_key(tmp_path)
    _load(project, postgres_database, {"sync_mode": "full_refresh"}, key.pem)
    postgres_database.execute("delete from orders where id = 1")
    project.run()
    postgres_database.execute("delete from orders where id = 2")
    ran = project.loader("run", "--full-refresh", "--select", "shop.orders")
    assert ran.code == 0, ran.text
    _verify(project, key.public)
    assert [each.predicate["sent"]["rows"] for each in _receipts(project).values()] == [3, 2, 1]

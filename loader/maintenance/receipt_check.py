"""Reads a lake's receipts, and compares the rows of the raw tables with them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.errors import JavaEndedError
from loader.formatting import format_count
from loader.lake.lake import Lake
from loader.lake.ledger import Ledger
from loader.lake.raw_table import list_raw_tables
from loader.lake.receipt import Finding, Receipt, parse_receipt, read_newest_receipts
from loader.lake.rows_digest import RowsDigest, compute_digests
from loader.lake.staging import read_snapshot
from loader.maintenance.superseded_versions import RemovalAccount
from loader.rows.version_order import BATCH
from loader.spark.error_translation import translate_error


@dataclass
class LakeReceipts:
    """The receipts in a lake, and the raw tables to which they belong.

    Attributes:
        receipts: the receipts for each raw table (``schema.table``), in the order in which they are
            stored.
        snapshots: the Iceberg snapshot of each raw table that matches these receipts.
        findings: the stored receipts that cannot be read.
    """

    receipts: dict[str, list[Receipt]] = field(default_factory=lambda: defaultdict(list))
    snapshots: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read_receipts(lake: Lake) -> LakeReceipts:
    """Reads the receipts of a lake from the raw tables and from the ledger.

    The newest receipt and the snapshot are read together, because a run may be publishing batches.
    The ledger is read before and after them. Receipts that only the second read returns, and that
    belong to later batches, are left out.
    """
    found, ledger = LakeReceipts(), Ledger(lake)
    before = set(ledger.read_receipts())
    newest: dict[str, list[Receipt]] = {}
    tables, _ = list_raw_tables(lake)
    for name in tables:
        table = f"{lake.schema}.{name}"
        with lake.unchanging(name):
            properties, snapshot = lake.properties(name), lake.handle(name).currentSnapshot()
        try:
            newest[table] = read_newest_receipts(properties)
        except ValueError as error:
            found.findings.append(Finding(table, None, f"its newest receipt: {error}"))
        if snapshot is not None:
            found.snapshots[table] = int(snapshot.snapshotId())
    for envelope in ledger.read_receipts():
        try:
            receipt = parse_receipt(envelope)
        except ValueError as error:
            found.findings.append(Finding(f"{lake.schema}._cq_syncs", None, f"a receipt: {error}"))
            continue
        if receipt.table.rpartition(".")[0] != lake.schema:
            text = f"its receipt is in the ledger of {lake.schema}, which was copied or moved"
            found.findings.append(Finding(receipt.table, receipt.batch, text))
            continue
        highest = max((each.batch for each in newest.get(receipt.table, ())), default=0)
        if envelope in before or receipt.batch <= highest:
            found.receipts[receipt.table].append(receipt)
    for table, stored in newest.items():
        recorded = found.receipts[table] if stored else []
        for receipt in stored:
            if receipt not in recorded:  # the run that published the batch was killed
                later = [i for i, each in enumerate(recorded) if each.batch > receipt.batch]
                recorded.insert(later[0] if later else len(recorded), receipt)
    return found


def check_rows(
    lake: Lake,
    table: str,
    receipts: Sequence[Receipt],
    untrusted: Collection[int],
    snapshot: int | None,
) -> Iterator[Finding]:
    """Yields the differences between the rows of a raw table and its receipts.

    Args:
        table: the raw table's name in the lake.
        receipts: the table's receipts with valid signatures.
        untrusted: the batches whose receipts have no valid signature.
        snapshot: the Iceberg snapshot to read; None if the table does not exist or has no rows.
    """
    name = f"{lake.schema}.{table}"
    if snapshot is None:
        yield Finding(name, None, "it has receipts, but the raw table has no rows")
        return
    for column in _list_renamed(lake, table, snapshot):
        yield Finding(name, None, f"its column {column!r} was dropped or renamed")
    rows = read_snapshot(lake, table, snapshot)
    digests: dict[int, RowsDigest] = {}
    by_columns: dict[str, list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        by_columns[json.dumps(receipt.predicate["columns"])].append(receipt)
    unreadable: set[int] = set()
    for text, group in by_columns.items():
        columns = _parse_columns(text)
        missing = sorted({c.lower() for c in columns.names} - {c.lower() for c in rows.columns})
        if missing:
            yield Finding(name, group[0].batch, f"its column {missing[0]!r} was dropped")
            unreadable |= {receipt.batch for receipt in group}
            continue
        # All rows are read, without a condition on the batch, because wrong statistics of a file
        # would hide rows.
        try:
            found = compute_digests(rows, columns)
        except (Py4JError, PySparkException):
            found = {}
            for receipt in group:
                problem = _find_unreadable(rows, columns, receipt, found)
                if problem is not None:
                    unreadable.add(receipt.batch)
                    yield problem
        wanted = {receipt.batch for receipt in group}
        digests |= {b: d for b, d in found.items() if b in wanted or b not in digests}
    readable = [receipt for receipt in receipts if receipt.batch not in unreadable]
    account = RemovalAccount()  # if its property was changed, removed rows are reported as missing
    with suppress(ValueError, KeyError, TypeError):
        account = RemovalAccount.of(lake.properties(table))
    yield from _compare(name, readable, digests, account)
    yield from _find_uncovered(name, receipts, untrusted, digests)


def _list_renamed(lake: Lake, table: str, snapshot: int) -> list[str]:
    """Returns the columns of a snapshot that the raw table no longer has under the same name.

    Dropping or renaming a column creates no snapshot, and a snapshot is read with its own columns.
    """
    handle, index = lake.handle(table), lake.jvm.org.apache.iceberg.types.TypeUtil.indexNameById
    schema = handle.schemas().get(handle.snapshot(snapshot).schemaId())
    names = dict(index(handle.schema().asStruct()))
    return sorted(
        name for number, name in index(schema.asStruct()).items() if names.get(number) != name
    )


def _parse_columns(text: str) -> t.StructType:
    fields = [{**each, "nullable": True, "metadata": {}} for each in json.loads(text)]
    return t.StructType.fromJson({"type": "struct", "fields": fields})


def _find_unreadable(
    rows: DataFrame, columns: t.StructType, receipt: Receipt, found: dict[int, RowsDigest]
) -> Finding | None:
    """Adds the digest of one batch to `found`, or returns why the batch cannot be read."""
    try:
        found |= compute_digests(rows.where(f.col(BATCH) == receipt.batch), columns)
    except (Py4JError, PySparkException) as error:
        problem = translate_error(error, receipt.table)
        if isinstance(problem, JavaEndedError):
            raise problem from error
        return Finding(receipt.table, receipt.batch, f"its rows cannot be read: {problem.what}")
    return None


def _compare(
    table: str,
    receipts: Sequence[Receipt],
    digests: Mapping[int, RowsDigest],
    account: RemovalAccount,
) -> Iterator[Finding]:
    """Yields the batches whose rows differ from their receipts.

    Args:
        account: the account of the rows that `loader compact` has removed.
    """
    rolled_back = _list_rolled_back(receipts)
    compacted: dict[int, int] = {}
    for receipt in receipts:
        batch, actual = receipt.batch, digests.get(receipt.batch, RowsDigest())
        if actual.sha256 == receipt.rows_sha256 or (batch in rolled_back and not actual.rows):
            continue
        rows, removed = format_count(receipt.rows, "row"), receipt.rows - actual.rows
        if batch <= account.to and removed > 0:
            compacted[batch] = removed
        elif removed > 0:
            count = format_count(removed, "row is", "rows are")
            text = f"{count} missing: it had {rows}" if actual.rows else f"its {count} missing"
            yield Finding(table, batch, text)
        elif removed < 0:
            more = format_count(-removed, "row")
            yield Finding(table, batch, f"it has {more} more than its receipt ({rows})")
        else:
            yield Finding(table, batch, f"values in its {rows} were changed")
    total = sum(compacted.values())
    limit = account.rows + account.removing
    if total > limit:
        text = (
            f"{format_count(total, 'row is', 'rows are')} missing up to this batch, but `loader "
            f"compact` has removed only {limit:,}: rows were deleted in batches "
            f"{', '.join(map(str, compacted))}"
        )
        yield Finding(table, account.to, text)
    elif compacted:
        text = (
            f"`loader compact` has removed {format_count(total, 'row')} from "
            f"{format_count(len(compacted), 'batch', 'batches')} up to this batch: only the number "
            "of their remaining rows was checked"
        )
        yield Finding(table, account.to, text, is_problem=False)


def _list_rolled_back(receipts: Sequence[Receipt]) -> set[int]:
    """Returns the batches that, according to later receipts, were no longer in the raw table.

    A receipt says this only about its own source's batches; other sources may share the raw table.
    """
    previous = {
        each.batch: each.previous[0]
        for each in receipts
        if each.previous is not None and each.previous[0] < each.batch
    }
    rolled_back: set[int] = set()
    for receipt in receipts:
        batch = previous.get(receipt.batch)
        while batch is not None and batch > receipt.follows_batch:
            rolled_back.add(batch)
            batch = previous.get(batch)
    return rolled_back


def _find_uncovered(
    table: str,
    receipts: Sequence[Receipt],
    untrusted: Collection[int],
    digests: Mapping[int, RowsDigest],
) -> Iterator[Finding]:
    """Yields the batches without receipts, unless a receipt records that they had none."""
    covered = {receipt.batch for receipt in receipts} | set(untrusted)
    gaps = [
        range((receipt.previous or (0, ""))[0] + 1, receipt.follows_batch + 1)
        for receipt in receipts
    ]
    for batch in sorted(set(digests) - covered):
        if not any(batch in gap for gap in gaps):
            rows = format_count(digests[batch].rows, "row has", "rows have")
            yield Finding(table, batch, f"its {rows} no receipt")

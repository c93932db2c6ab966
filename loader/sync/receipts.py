"""Writes the receipt of a staged batch, before the batch is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from loader.errors import TableError
from loader.formatting import format_count
from loader.lake.commits import newest_commit
from loader.lake.raw_table import find_table_id
from loader.lake.receipt import DIGEST, Receipt, parse_receipt, read_newest_receipts, sign_receipt
from loader.lake.rows_digest import RowsDigest, compute_digests
from loader.lake.schema_evolution import conform
from loader.lake.staging import count_staged_rows, read_staged
from loader.rows.version_order import quote_name
from loader.sync.extract import Batch
from loader.sync.sync_context import SyncContext

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_IDENTITIES = ("system", "stands_for")
"""The checkpoint entries that identify PostgreSQL's cluster or MySQL's table."""


def write_receipt(sync: SyncContext, batch: Batch, staged: int, key: Ed25519PrivateKey) -> Receipt:
    """Computes the digests of a staged batch, and signs its receipt.

    Args:
        staged: the staged snapshot.

    Raises:
        TableError: if the previous receipt cannot be read, or if another program has inserted rows
            with the batch's number.
    """
    plan, lake, number, record = sync.plan, sync.lake, batch.state.batch, batch.record
    rows = read_staged(lake, plan.lake_table, staged, number)
    columns = rows.schema
    digest = compute_digests(rows, columns)[number]
    inserted = digest.rows - count_staged_rows(lake, plan.lake_table, staged)
    if inserted:
        rows_inserted, name = format_count(inserted, "row"), f"{lake.schema}.{plan.lake_table}"
        raise TableError(
            f"another program has inserted {rows_inserted} with the number of this batch, {number}",
            where=f"table {plan.name}",
            remedy=f"Nothing was published. Delete the rows of {name} with _cq_batch = {number}, "
            "and run again",
        )
    sent = digest
    if batch.rows_read is not None:
        read = conform(batch.rows_read, batch.drift.mappings, f"table {plan.name}")
        # Columns that the source no longer has are null, as in the staged rows.
        present = {name.lower() for name in read.columns}
        read = read.select(
            *(
                f.col(quote_name(field.name))
                if field.name.lower() in present
                else f.lit(None).cast(field.dataType).alias(field.name)
                for field in columns.fields
            )
        )
        sent = compute_digests(read, columns).get(number, RowsDigest())
    own_commit = newest_commit(lake, plan.lake_table, plan.names if plan.is_shared else ())
    previous = _find_previous(sync)
    predicate = {
        "source": plan.source,
        "source_table": plan.table.ref.name,
        "batch": number,
        "generation": record.generation,
        "mode": record.mode,
        "started_at": record.started_at.isoformat() if record.started_at else None,
        "loader_version": record.loader_version,
        "window": {
            "cursor_field": record.cursor_field,
            "low": record.cursor_low,
            "high": record.cursor_high,
            "read_from": record.read_from,
            "read_to": record.read_to,
        },
        "database": _find_identity(batch.state.mark),
        "raw_table_id": find_table_id(lake, plan.lake_table),
        "snapshot_id": str(staged),
        "counts": {
            "read": digest.rows + (record.rows_redelivered or 0),
            "appended": digest.rows,
            "redelivered": record.rows_redelivered,
            "null_cursor": record.rows_null_cursor,
            "below_cursor": record.rows_below_cursor,
            "at_cursor": record.rows_at_cursor,
            "cursor_unmoved": record.rows_cursor_unmoved,
        },
        "sent": {"rows": sent.rows, DIGEST: sent.source_sha256},
        "committed": {"rows": digest.rows, DIGEST: digest.sha256},
        "columns": [
            {"name": field.name, "type": field.dataType.jsonValue()} for field in columns.fields
        ],
        "previous": previous and {"batch": previous.batch, "sha256": previous.sha256},
        "follows_batch": own_commit.batch,
    }
    table = f"{lake.schema}.{plan.lake_table}"
    return sign_receipt(table, number, digest.sha256, predicate, key)


def _find_previous(sync: SyncContext) -> Receipt | None:
    """Returns the newest receipt of the source's batches, even if the raw table was dropped."""
    plan, properties = sync.plan, sync.lake.properties(sync.plan.lake_table)
    try:
        stored = read_newest_receipts(properties)
        own = [each for each in stored if each.source in plan.names]
        if own:
            return own[-1]
        recorded = sync.stores.ledger.read_receipts(plan.lake_table, plan.names)
        return parse_receipt(recorded[-1]) if recorded else None
    except ValueError as error:
        raise TableError(
            f"its newest receipt was changed: {error}",
            where=f"table {plan.name}",
            remedy="Nothing was published. Run `loader receipts verify`; to begin a new chain, "
            "unset the raw table's properties that begin with strandline.receipt",
        ) from None


def _find_identity(mark: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the identity of the database or the table from a checkpoint."""
    return {name: str(mark[name]) for name in _IDENTITIES if mark and mark.get(name)}

"""Records a batch's state and then its ledger row. After a crash, recovery completes this step."""

from __future__ import annotations

from loader.lake.commits import Commit
from loader.lake.ledger import NOTHING_NEW, SYNCED, SyncRecord
from loader.sync.extract import Batch
from loader.sync.recover import PriorState
from loader.sync.sync_context import SyncContext


def record(
    sync: SyncContext, prior: PriorState, batch: Batch, commit: Commit | None
) -> tuple[PriorState, SyncRecord | None]:
    """Writes the state and the ledger row of a batch.

    Returns the prior state of the next batch. After the last batch, also returns the sum of the
    sync's ledger rows.

    Args:
        commit: the batch's commit; None if nothing was appended.
    """
    row = batch.record
    redelivered = row.rows_redelivered or 0
    if commit is not None:
        state = batch.state
        row = row.finish(
            status=SYNCED,
            rows_appended=commit.rows,
            rows_read=(commit.rows or 0) + redelivered,
            snapshot_id=commit.snapshot_id,
        )
    else:
        # If all counted rows have vanished from the source, the sync did not reach their cursor.
        has_vanished = batch.rows is not None and batch.counted_rows
        state = prior.state if has_vanished else batch.idle_state
        row = row.finish(
            status=NOTHING_NEW,
            batch=None,
            generation=prior.state.generation,
            cursor_high=state.cursor.text if state.cursor else row.cursor_high,
            rows_read=redelivered,
            rows_appended=0,
            schema_changes="; ".join(batch.drift.idle_notes) or None,
        )
    total = row if prior.total is None else prior.total.plus(row)
    changed = state if state != prior.state else None
    following = prior.advance(state, total)
    if not batch.is_followed():
        sync.write_progress(changed, row, total)
        return following, total
    if commit is not None or changed is not None:
        sync.write_progress(changed, row, total, immediately=True)
    return following, None

"""Retries tables that lost their connection to the database or the catalog during a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loader.cli.console import Output, list_names
from loader.spark.error_translation import (
    CatalogLostError,
    ConnectionLostError,
    DatabaseError,
)
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome

RETRY_PAUSES = (2.0, 8.0, 30.0)
"""The pauses before the retries, in seconds."""


def retry_lost_connections(
    output: Output,
    watch: Watch,
    outcomes: list[Outcome],
    run_again: Callable[[Sequence[str]], None],
) -> None:
    """Retries the tables whose connection was lost, after each of :data:`RETRY_PAUSES`.

    Does not retry if the first connection failed, for example because of a wrong host.

    Args:
        outcomes: the outcomes so far. The outcome of a retry replaces the table's earlier outcome.
        run_again: syncs the tables with these names, and appends their outcomes to `outcomes`.
    """
    # An outcome without a record is an error for a whole source, whose tables are unknown.
    errors = {
        o.table: o.error for o in outcomes if isinstance(o.error, ConnectionLostError) and o.record
    }
    lost = list(errors)
    if not lost or watch.stopped.is_set():
        return
    is_catalog = any(isinstance(error, CatalogLostError) for error in errors.values())
    output.warning(
        f"the connection to the {'catalog' if is_catalog else 'database'} was lost: "
        f"{list_names(lost)}. "
        f"Syncing again, up to {len(RETRY_PAUSES)} times",
        tables=lost,
    )
    others = [outcome for outcome in outcomes if outcome.table not in lost]
    latest = {outcome.table: outcome for outcome in outcomes if outcome.table in lost}
    outcomes.clear()
    try:
        for pause in RETRY_PAUSES:
            if not lost or watch.stopped.wait(pause):
                break
            outcomes.clear()
            run_again(lost)
            latest |= {outcome.table: outcome for outcome in outcomes if outcome.table in lost}
            lost = [name for name in lost if isinstance(latest[name].error, DatabaseError)]
    finally:
        # The last retry may also have returned errors for whole sources, for example if a source's
        # tables could not be listed.
        others += [outcome for outcome in outcomes if outcome.table not in latest]
        outcomes[:] = [*others, *latest.values()]

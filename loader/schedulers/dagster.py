"""Dagster: one asset for each raw table.

An asset has the same key as the table's dbt source in dagster-dbt. So latest tables are downstream
of raw tables without further configuration::

    import dagster as dg
    from loader.schedulers.dagster import build_assets

    raw = build_assets("loader.yml", ["shop.orders", "shop.customers"])
    defs = dg.Definitions(assets=[raw, my_dbt_assets])
"""

# No `from __future__ import annotations`, because Dagster evaluates the annotations of steps.
import os
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from loader.api import Event, Loader, LoaderError, TableResult, load_spec
from loader.schedulers import list_tables, name_raw_table

_KINDS = {"spark", "iceberg"}


def build_assets(
    config: str | os.PathLike[str],
    tables: Sequence[str] = (),
    *,
    name: str = "strandline",
    group_name: str | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> dg.AssetsDefinition:
    """Builds the assets of a spec. One Dagster step syncs all selected assets in one Spark session.

    The metadata of a materialization contains the batch, the row counts and the cursor. If a table
    fails, the step fails after all other tables are materialized. `retry_policy` applies only if at
    least one error is retryable. For example, an invalid spec is not retryable.

    Args:
        config: the path of loader.yml.
        tables: the tables as `source.table`. The default is the spec's tables, if the spec uses no
            wildcards.
        name: the name of the step.

    Raises:
        SpecError: if the spec is invalid, or if it uses wildcards and `tables` is empty.
    """
    names = list(tables) or list_tables(config)
    keys = {_build_key(table): table for table in names}
    by_name = {"/".join(key.path).lower(): key for key in keys}

    def load(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        selected = [keys[key] for key in sorted(context.selected_asset_keys)]

        def log(event: Event) -> None:
            if event["event"] == "warning":
                context.log.warning(event["text"])

        try:
            with Loader(load_spec(config)) as loader:
                result = loader.run(selected, on_event=log)
        except LoaderError as error:
            raise dg.Failure(str(error), allow_retries=error.is_retryable) from None
        for table in result.tables:
            # The name may have a different case in the database.
            key = by_name.get(table.table.replace(".", "/", 1).lower())
            if table.error is None and key is not None:
                yield dg.MaterializeResult(asset_key=key, metadata=_describe(table))
        if result.errors:
            raise dg.Failure(
                "\n".join(str(error) for error in result.errors),
                allow_retries=any(error.is_retryable for error in result.errors),
            )

    return dg.multi_asset(
        specs=[
            dg.AssetSpec(key, group_name=group_name, kinds=_KINDS, skippable=True) for key in keys
        ],
        name=name,
        can_subset=True,
        retry_policy=retry_policy,
    )(load)


def _build_key(table: str) -> dg.AssetKey:
    """Returns the asset key of `source.table`, which contains the raw table's name."""
    return dg.AssetKey(name_raw_table(table).split("."))


def _describe(table: TableResult) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "status": table.status,
        "batch": table.batch,
        "rows_appended": table.rows_appended,
        "rows_redelivered": table.rows_redelivered,
        "rows_below_cursor": table.rows_below_cursor,
        "cursor": table.cursor,
        "seconds": table.seconds,
    }
    if table.complete_until is not None:
        facts["complete_until"] = dg.MetadataValue.timestamp(table.complete_until)
    return {name: value for name, value in facts.items() if value is not None}

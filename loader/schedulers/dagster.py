"""Dagster: one asset for each raw table.

An asset has the same key that dagster-dbt gives to the dbt source of this table. So latest tables
are downstream of raw tables without further configuration::

    import dagster as dg
    from loader.schedulers.dagster import build_assets

    raw = build_assets("loader.yml", ["shop.orders", "shop.customers"])
    defs = dg.Definitions(assets=[raw, my_dbt_assets])
"""

# This module does not import `annotations` from `__future__`, because Dagster evaluates the
# annotations of steps.
import os
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from loader.api import Event, Loader, TableResult, load_spec
from loader.errors import JavaEndedError, LockedError, SpecError
from loader.names import in_the_lake, is_wildcard
from loader.spark.error_translation import ConnectionLostError

_KINDS = {"spark", "iceberg"}
_RETRIED = (ConnectionLostError, JavaEndedError, LockedError)


def build_assets(
    config: str | os.PathLike[str],
    tables: Sequence[str] = (),
    *,
    name: str = "strandline",
    group_name: str | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> dg.AssetsDefinition:
    """Builds the assets of a spec. One Dagster step syncs all selected assets in one Spark session.

    The metadata of a materialization contain the batch, the row counts and the cursor. If a table
    fails, the step fails after the other tables are materialized. `retry_policy` applies only if
    all failures are lost connections, an exited JVM or locked tables.

    Args:
        config: the path of loader.yml.
        tables: the tables as `source.table`; by default, the spec's tables, if the spec uses no
            wildcards.
        name: the name of the step.

    Raises:
        SpecError: if the spec is invalid, or if it uses wildcards and `tables` is empty.
    """
    names = list(tables) or _list_tables(config)
    keys = {_build_key(table): table for table in names}
    by_name = {"/".join(key.path).lower(): key for key in keys}

    def load(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        selected = [keys[key] for key in sorted(context.selected_asset_keys)]

        def log(event: Event) -> None:
            if event["event"] == "warning":
                context.log.warning(event["text"])

        with Loader(load_spec(config)) as loader:
            result = loader.run(selected, on_event=log)
        for table in result.tables:
            # The name may have a different case in the database.
            key = by_name.get(table.table.replace(".", "/", 1).lower())
            if table.error is None and key is not None:
                yield dg.MaterializeResult(asset_key=key, metadata=_describe(table))
        if result.errors:
            raise dg.Failure(
                "\n".join(str(error) for error in result.errors),
                allow_retries=all(isinstance(error, _RETRIED) for error in result.errors),
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
    """Returns the asset key of `source.table`, which contains the raw table's name in the lake."""
    source, _, name = table.partition(".")
    return dg.AssetKey([source, in_the_lake(name)])


def _list_tables(config: str | os.PathLike[str]) -> list[str]:
    names = [(source, table) for source in load_spec(config).sources for table in source.tables]
    for source, table in names:
        if is_wildcard(table):
            raise SpecError(
                f"{table!r} is a wildcard, and Dagster needs the names of tables",
                where=f"{source.where}.tables",
                remedy="Pass the tables to build_assets; `loader discover` lists them",
            )
    return [f"{source.name}.{table}" for source, table in names]


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

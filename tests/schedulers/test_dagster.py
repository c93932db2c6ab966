"""Dagster materializes raw tables as assets, in real runs."""

from __future__ import annotations

import dagster as dg
import pytest

from loader.errors import SpecError
from loader.lake.locks import lock_table
from loader.schedulers.dagster import build_assets
from tests.services import Database
from tests.sync.project import Project

ORDERS, ITEMS = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "items"])


@pytest.fixture
def assets(shop: Project, postgres_database: Database) -> dg.AssetsDefinition:
    postgres_database.execute(
        "create table items (id int primary key)", "insert into items values (1)"
    )
    shop.sources[0]["tables"] = ["orders", "items"]
    shop.sources[0]["spec"]["table_options"]["items"] = {"sync_mode": "full_refresh"}
    shop.write()
    return build_assets(shop.folder / "loader.yml")


def _materialize(
    assets: dg.AssetsDefinition, *keys: dg.AssetKey
) -> tuple[bool, dict[dg.AssetKey, dict[str, object]], dg.ExecuteInProcessResult]:
    """Returns whether it succeeded, and the metadata of each materialized asset."""
    result = dg.materialize([assets], selection=list(keys) or None, raise_on_error=False)
    found = {
        each.materialization.asset_key: {
            name: value.value for name, value in each.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        for each in [event.step_materialization_data]
    }
    return result.success, found, result


def test_each_raw_table_is_an_asset(
    assets: dg.AssetsDefinition, shop: Project, postgres_database: Database
) -> None:
    assert assets.keys == {ORDERS, ITEMS}
    succeeded, found, _ = _materialize(assets)
    assert succeeded
    assert found.keys() == {ORDERS, ITEMS}
    assert found[ORDERS]["batch"] == 1
    assert found[ORDERS]["rows_appended"] == 2
    assert found[ORDERS]["cursor"] == "6"
    # Only the selected asset is synced.
    postgres_database.execute("insert into orders values (3, 7)")
    succeeded, found, _ = _materialize(assets, ITEMS)
    assert (succeeded, found.keys()) == (True, {ITEMS})
    assert shop.rows("select count(*) from raw.orders") == [(2,)]


def test_a_table_that_fails_leaves_the_others_materialized(
    assets: dg.AssetsDefinition, postgres_database: Database
) -> None:
    _materialize(assets)
    postgres_database.execute(
        "alter table orders drop column version", "insert into items values (2)"
    )
    succeeded, found, result = _materialize(assets)
    assert not succeeded
    assert found.keys() == {ITEMS}
    [failure] = [event for event in result.all_events if event.is_step_failure]
    data = failure.step_failure_data
    assert data.user_failure_data is not None
    assert "there is no column 'version'" in str(data.user_failure_data.description)
    assert data.error is not None


def test_only_temporary_errors_are_retried(shop: Project) -> None:
    assets = build_assets(
        shop.folder / "loader.yml", ["shop.orders"], retry_policy=dg.RetryPolicy(max_retries=1)
    )

    def count_retries() -> int:
        succeeded, _, result = _materialize(assets)
        assert not succeeded
        return sum(event.is_step_up_for_retry for event in result.all_events)

    with lock_table(shop.lake(), "orders", timeout=0):
        assert count_retries() == 1
    shop.sources[0]["destinations"] = ["sea"]
    shop.write()
    assert count_retries() == 0


def test_a_spec_with_wildcards_needs_names(shop: Project) -> None:
    shop.sources[0]["tables"] = ["*"]
    shop.write()
    with pytest.raises(SpecError, match="is a wildcard, and a scheduler needs the names of tables"):
        build_assets(shop.folder / "loader.yml")
    assert build_assets(shop.folder / "loader.yml", ["shop.orders"]).keys == {ORDERS}


def test_a_table_with_a_schema_and_in_another_case(
    shop: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create schema sales",
        "create table sales.deals (id int primary key, version int)",
        "insert into sales.deals values (1, 1)",
    )
    options = shop.sources[0]["spec"]["table_options"]
    options["sales.deals"] = {"cursor_field": "version"}
    shop.sources[0]["tables"] = ["orders", "sales.deals"]
    shop.write()
    assets = build_assets(shop.folder / "loader.yml", ["shop.Orders", "shop.sales.deals"])
    succeeded, found, _ = _materialize(assets)
    assert succeeded
    assert found.keys() == {
        dg.AssetKey(["shop", "Orders"]),
        dg.AssetKey(["shop", "sales_deals"]),
    }

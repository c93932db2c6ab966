"""A loader project, a shop that it syncs, and a dbt project on its raw tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crash.conftest import worker as worker
from tests.crash.conftest import workers as workers
from tests.maintenance.restored_shop import ShopCopy
from tests.maintenance.shop import Shop
from tests.services import Postgres
from tests.sync.conftest import project as project
from tests.sync.project import Project


@pytest.fixture(scope="session")
def shop_copy(
    spark: SparkSession,
    warehouse: Path,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ShopCopy]:
    """A shop whose orders were synced in five batches. Each test restores a copy of it."""
    folder = tmp_path_factory.mktemp("kept")
    with postgres.database("kept") as database:
        shop = _sync_five_batches(
            Shop(Project(folder, spark, "raw_kept"), database, folder / "dbt")
        )
        yield ShopCopy(shop, warehouse)


@pytest.fixture
def shop(shop_copy: ShopCopy, tmp_path: Path) -> Shop:
    """Restores the shop for one test."""
    return shop_copy.restore(tmp_path)


def _sync_five_batches(shop: Shop) -> Shop:
    shop.open()
    for _ in range(4):
        shop.change()
        shop.project.run()
    return shop

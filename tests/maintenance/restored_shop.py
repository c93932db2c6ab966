"""Restores a synced shop from copies, which is faster than syncing it again."""

from __future__ import annotations

from pathlib import Path

from tests.maintenance.shop import Shop
from tests.sync.original import Original


class ShopCopy:
    """Copies of a shop's database and of its tables in the lake, restored for each test."""

    def __init__(self, shop: Shop, warehouse: Path) -> None:
        self._shop = shop
        folder = shop.folder.with_name("copy")
        self._original = Original(shop.project, shop.database, warehouse, folder)

    def restore(self, folder: Path) -> Shop:
        """Restores the shop, with a project in this folder."""
        shop = self._shop
        project = self._original.again(folder)
        shop.dbt.restore()
        return Shop(project, shop.database, shop.folder, shop.version, shop.dbt)

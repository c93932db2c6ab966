"""A shop as it was after five syncs: copying costs less than syncing."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from tests.maintenance.shop import Shop
from tests.sync.project import Project


class Kept:
    """Copies of a shop's database and of its tables in the lake, restored for each test.

    Under the same names, because Iceberg's metadata has absolute paths.
    """

    def __init__(self, shop: Shop, warehouse: Path) -> None:
        self._shop = shop
        self._warehouse = warehouse
        self._copy = shop.folder.with_name("copy")
        shutil.copytree(warehouse / shop.project.schema, self._copy)
        name = shop.database.name
        self._execute(
            f"alter database {name} rename to {name}_as_it_was",
            f"create database {name} template {name}_as_it_was",
        )

    def again(self, folder: Path) -> Shop:
        """Restores the shop, with a project in this folder."""
        shop = self._shop
        schema, name = shop.project.schema, shop.database.name
        for left in self._warehouse.glob(f"*{schema}"):
            shutil.rmtree(left)
        shutil.copytree(self._copy, self._warehouse / schema)
        self._execute(
            f"drop database {name} with (force)",
            f"create database {name} template {name}_as_it_was",
        )
        project = Project(folder, shop.project.spark, schema, list(shop.project.sources))
        project.write()
        shop.dbt.put_back()
        return Shop(project, shop.database, shop.folder, shop.version, shop.dbt)

    def _execute(self, *statements: str) -> None:
        connection = self._shop.database.server.connect("postgres")
        with contextlib.closing(connection), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

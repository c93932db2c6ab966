"""Restores a project that has been synced: copying is faster than syncing in each test."""

from __future__ import annotations

import contextlib
import copy
import shutil
from pathlib import Path

from tests.services import Database
from tests.sync.project import Project


class Original:
    """A copy of a project's tables in the lake and of its PostgreSQL database.

    Both are restored under the same names, because Iceberg's metadata contains absolute paths.

    Args:
        folder: the folder for the copied tables; it must not exist.
    """

    def __init__(self, project: Project, database: Database, warehouse: Path, folder: Path) -> None:
        self._sources = copy.deepcopy(project.sources)
        self._project, self._database = project, database
        self._warehouse, self._copy = warehouse, folder
        shutil.copytree(warehouse / project.schema, folder)
        name = database.name
        self._execute(
            f"alter database {name} rename to {name}_as_it_was",
            f"create database {name} template {name}_as_it_was",
        )

    def again(self, folder: Path) -> Project:
        """Restores the lake and the database; returns a project whose spec is in this folder."""
        schema, name = self._project.schema, self._database.name
        self.remove()
        shutil.copytree(self._copy, self._warehouse / schema)
        self._execute(
            f"drop database {name} with (force)",
            f"create database {name} template {name}_as_it_was",
        )
        project = Project(folder, self._project.spark, schema, copy.deepcopy(self._sources))
        project.write()
        return project

    def remove(self) -> None:
        """Deletes the project's tables, because some commands read all tables of the lake."""
        for left in self._warehouse.glob(f"*{self._project.schema}"):
            shutil.rmtree(left)

    def _execute(self, *statements: str) -> None:
        connection = self._database.server.connect("postgres")
        with contextlib.closing(connection), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

"""Reads the definition of a table that follows the log: columns, key, partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loader.errors import TableError
from loader.sources import SourceTable
from loader.sources.debezium.spool import ChangeSpool
from loader.sources.jdbc.cdc.catalog import catalog, undone
from loader.sources.jdbc.cdc.columns import LoggedColumn, read_logged_columns
from loader.sources.jdbc.cdc.partitions import Partition, describe_moves, partitions
from loader.sources.jdbc.cdc.position import Mark
from loader.sources.jdbc.cdc.slot_setup import name_in_log
from loader.sources.jdbc.cdc.values import has_text
from loader.sources.jdbc.database import Database


class Definitions:
    """The current definitions of tables.

    Attributes:
        catalogs: the catalog's fingerprint of each table (`catalog.catalog`), by name.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.catalogs: dict[str, Mapping[str, str]] = {}

    def key(self, table: SourceTable) -> Sequence[str]:
        """Returns a table's key, as the spec or the database declares it."""
        given = self.database.read_options(table.ref).primary_key
        names = {name.lower(): name for name in table.schema.names}
        return [names.get(k.lower(), k) for k in given] if given else table.primary_key

    def key_columns(self, table: SourceTable) -> list[LoggedColumn]:
        """Returns the columns of its key, in the key's order."""
        found = {column.name: column for column in self.columns(table)}
        places = {name.lower(): i for i, name in enumerate(table.schema.names)}
        native = (table.ref.native.columns[places[name.lower()]] for name in self.key(table))
        return [found[name] for name in native]

    def columns(self, table: SourceTable) -> list[LoggedColumn]:
        """Returns its columns, in the order of its schema.

        Raises:
            TableError: if they are not those that the run began with, or the log lacks values.
        """
        where = self.where(table)
        with self.database.connect(where) as connection:
            found = {
                c.name: c for c in read_logged_columns(connection, self._relation(table), where)
            }
        if set(found) != set(table.ref.native.columns):
            raise self.alteration_error(table)
        columns = [found[name] for name in table.ref.native.columns]
        for index in table.ref.native.as_texts:
            if not has_text(columns[index]):
                raise TableError(
                    f"the log does not have the text of {columns[index].name} "
                    f"({columns[index].declared}) as the database writes it",
                    where=f"{where}, column_types",
                    remedy="Remove it there, or read the table by a cursor (sync_mode: "
                    "incremental)",
                )
        return columns

    def alteration_error(self, table: SourceTable) -> TableError:
        """Returns the error of a table that was altered in the midst of the run."""
        return TableError(
            "its columns were changed during the run", where=self.where(table), remedy="Run again"
        )

    def whole(
        self, table: SourceTable, columns: Sequence[LoggedColumn], spool: ChangeSpool
    ) -> None:
        """Refuses changes with values that Debezium has replaced by null.

        Raises:
            TableError: if there are any; names the column.
        """
        for column in columns:
            if spool.replaced.values(name_in_log(table), column.name):
                raise TableError(
                    f"Debezium has no form for a value of {column.name} ({column.declared}), which "
                    "the log has",
                    where=f"{self.where(table)}, sync_mode: cdc",
                    remedy="Read the table by a cursor (sync_mode: incremental)",
                )

    def parts(self, table: SourceTable, mark: Mark | None) -> tuple[Mapping[str, Partition], str]:
        """Returns a table's partitions, and why the log lacks some of their changes."""
        with self.database.connect(self.where(table)) as connection:
            told = catalog(connection, self._relation(table))
            self.catalogs[table.ref.name] = told
            found = partitions(connection, self._relation(table))
            if mark is None:
                return found, ""
            return found, describe_moves(connection, mark.partitions, found) or undone(
                mark.catalog, told
            )

    def _relation(self, table: SourceTable) -> str:
        return self.database.dialect.text(self.database.relation(table.ref.native))

    def where(self, table: SourceTable) -> str:
        """Returns its name in errors."""
        return f"table {self.database.name}.{table.ref.name}"

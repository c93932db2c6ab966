"""Owners' records in the catalog itself, for warehouses that other machines write as well.

A record is a property of the table ``_cq_locks``, which has no rows. A swap is one commit of its
metadata, made only if the metadata is still what was read: the compare-and-swap that every
Iceberg catalog must offer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from loader.lake import Lake

TABLE = "_cq_locks"
_PREFIX = "strandline.owner."
_TRIES = 20


class CatalogOwners:
    """Records in properties of ``<schema>._cq_locks``."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def read(self, table: str) -> str | None:
        if not self.lake.exists(TABLE):
            return None
        found: str | None = self.lake.handle(TABLE).properties().get(_PREFIX + table)
        return found

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        self.lake.spark.sql(
            f"create table if not exists {self.lake.name(TABLE)} (table_name string) using iceberg "
            "tblproperties ('write.metadata.delete-after-commit.enabled' = 'true', "
            "'write.metadata.previous-versions-max' = '5')"
        )
        jvm: Any = self.lake.spark._jvm
        key = _PREFIX + table
        for attempt in range(_TRIES):
            operations = self.lake.handle(TABLE).operations()
            base = operations.refresh()
            if base.properties().get(key) != before:
                return False
            builder = jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
            if after is None:
                builder.removeProperties(jvm.java.util.Collections.singleton(key))
            else:
                builder.setProperties(jvm.java.util.Collections.singletonMap(key, after))
            try:
                operations.commit(base, builder.build())
                return True
            except Py4JJavaError as error:
                # Somebody else changed the table first, for this or for another key: look again.
                if "CommitFailed" not in str(error.java_exception):
                    raise
                time.sleep(0.05 * (attempt + 1))
        return False

"""Owners' records in the catalog itself, for warehouses that other machines write as well.

A record is a tag of the table ``_cq_locks``, which has no rows: the tag of a raw table names an
empty snapshot, and that snapshot's summary holds the record. A swap moves the tag, in one commit.

Why a tag and not a property: every catalog refuses a commit whose base is stale, except for REST.
There, the client sends its changes and what they require, and the server applies them to whatever
the table is by then. Iceberg derives the requirements from the changes (``UpdateRequirements``). A
changed property requires only that the table still has its UUID, so that two takers would both
succeed; a moved tag requires that it still names the snapshot it was moved from.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from loader.lake import Lake

TABLE = "_cq_locks"
RECORD = "strandline.owner"
_PREFIX = "owner."
_TRIES = 20
# The commit was refused; or nobody knows, and reading the record again tells.
_AGAIN = ("CommitFailedException", "CommitStateUnknownException")


class CatalogOwners:
    """Records in tags of ``<schema>._cq_locks``."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def read(self, table: str) -> str | None:
        if not self.lake.exists(TABLE):
            return None
        return _record(self.lake.handle(TABLE).operations().current(), table)

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        self._create()
        for attempt in range(_TRIES):
            handle = self.lake.handle(TABLE)
            operations = handle.operations()
            base = operations.refresh()
            found = _record(base, table)
            if attempt and found == after:
                return True  # made by an attempt that looked as if it had failed
            if found != before:
                return False
            snapshot = _snapshot(handle, after)
            try:
                operations.commit(base, self.moved(base, table, snapshot))
            except Py4JJavaError as error:
                # Somebody else changed the table first, for this record or for another: look again.
                if not any(kind in str(error.java_exception) for kind in _AGAIN):
                    raise
                time.sleep(0.05 * (attempt + 1))
                continue
            _delete_lists(handle, _unnamed(base, table))
            return True
        return False

    def moved(self, base: Any, table: str, snapshot: Any) -> Any:
        """The table's metadata after a swap: the record's tag names `snapshot`.

        What no tag names any more leaves in the same commit, so the table does not grow.
        """
        iceberg: Any = self.lake.spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
        tag = iceberg.SnapshotRef.tagBuilder(snapshot.snapshotId()).build()
        builder = iceberg.TableMetadata.buildFrom(base)
        builder.addSnapshot(snapshot).setRef(_PREFIX + table, tag)
        gone = self.lake.spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
        for old in _unnamed(base, table):
            gone.add(old)
        return builder.removeSnapshots(gone).build()

    def _create(self) -> None:
        self.lake.spark.sql(
            f"create table if not exists {self.lake.name(TABLE)} (table_name string) using iceberg "
            "tblproperties ('write.metadata.delete-after-commit.enabled' = 'true', "
            "'write.metadata.previous-versions-max' = '5')"
        )


def _record(metadata: Any, table: str) -> str | None:
    tag = metadata.ref(_PREFIX + table)
    if tag is None:
        return None
    return metadata.snapshot(tag.snapshotId()).summary().get(RECORD) or None


def _snapshot(handle: Any, record: str | None) -> Any:
    """A new, empty snapshot that says a record, in no table yet.

    It has no parent, as if it were the first of a branch: a catalog demands growing sequence
    numbers of those that have one, which swaps for two tables at once cannot both give.
    """
    append = handle.newFastAppend().toBranch(uuid.uuid4().hex)
    return append.set(RECORD, record or "").apply()


def _unnamed(base: Any, table: str) -> list[Any]:
    """The snapshots that no tag names once this table's has moved on."""
    named = {ref.snapshotId() for name, ref in _refs(base) if name != _PREFIX + table}
    return [each for each in base.snapshots() if each.snapshotId() not in named]


def _refs(metadata: Any) -> Iterator[tuple[str, Any]]:
    refs = metadata.refs()
    return ((str(name), refs.get(name)) for name in refs)


def _delete_lists(handle: Any, snapshots: list[Any]) -> None:
    """Deletes the files of snapshots that are gone; one that is left does no harm."""
    for each in snapshots:
        try:
            handle.io().deleteFile(each.manifestListLocation())
        except Py4JJavaError:
            continue

"""Stores lock records in the catalog itself, for warehouses that other machines also write to.

Records are tags of the table ``_cq_locks``, which has no rows. A raw table's tag names an empty
snapshot, and that snapshot's summary holds the record. A swap moves the tags of any number of
tables in one commit. A released table has no tag, so the metadata holds only what runs hold now. A
run's sign of life has its own tag.

Why a tag and not a property: every catalog refuses a commit whose base is stale, except REST.
There, the client sends its changes and their requirements, and the server applies them to the
table's state at that time. Iceberg derives the requirements from the changes
(``UpdateRequirements``). A changed property requires only that the table still has its UUID, so two
takers would both succeed. A moved tag requires that it still names the snapshot it was moved from.
A removed tag requires nothing, so one that must still be ours is first moved, then removed, in the
same commit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from loader.corruption import RECOVERY
from loader.errors import DamagedError, TableError
from loader.lake.lock_store import LockRecord, silent_for
from loader.spark.error_translation import translate_error

if TYPE_CHECKING:
    from loader.lake.lake import Lake

TABLE = "_cq_locks"
RECORD = "strandline.owner"
_PREFIX = "owner."
_RUN = "run."
_TRIES = 20
_MOVED = 1  # a max age in ms, only to make the tag differ: nothing expires this table's tags by age
# The commit was refused, or its outcome is unknown: reading the record again settles it.
_AGAIN = ("CommitFailedException", "CommitStateUnknownException")


class CatalogLockStore:
    """Records in tags of ``<schema>._cq_locks``."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def read(self, table: str) -> str | None:
        base = self._current()
        return _record(base, table) if base is not None else None

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        return bool(self.swap_all({table: (before, after)}))

    def swap_all(self, changes: Mapping[str, tuple[str | None, str | None]]) -> set[str]:
        if not changes:
            return set()
        self._create()
        for attempt in range(_TRIES):
            handle = self.lake.handle(TABLE)
            operations = handle.operations()
            base = operations.refresh()
            found = {table: _record(base, table) for table in changes}
            # swapped by an earlier attempt that only seemed to fail
            made = {t for t, (_, after) in changes.items() if attempt and found[t] == after}
            left = {t: a for t, (b, a) in changes.items() if t not in made and found[t] == b}
            if not left:
                return made
            records = {text: _snapshot(handle, text) for text in set(left.values()) if text}
            moved = {table: records[text] if text else None for table, text in left.items()}
            try:
                operations.commit(base, self.move_tags(base, moved))
            except Py4JJavaError as error:
                # Another process changed the table first, this record or another: read it again.
                _look_again(error, attempt)
                continue
            _delete_lists(handle, _list_untagged(base, [_PREFIX + table for table in moved]))
            return made | left.keys()
        return set()

    def sign(self, run_id: str) -> str | None:
        base = self._current()
        return _read_tag(base, _RUN + run_id) if base is not None else None

    def heartbeat(self, run_id: str, text: str | None) -> None:
        self._create()
        tag = _RUN + run_id
        for attempt in range(_TRIES):
            handle = self.lake.handle(TABLE)
            operations = handle.operations()
            base = operations.refresh()
            if _read_tag(base, tag) == text:
                return
            builder = self._builder(base)
            if text is None:
                builder.removeRef(tag)
            else:
                snapshot = _snapshot(handle, text)
                builder.addSnapshot(snapshot).setRef(tag, self._tag(snapshot))
            gone = _list_untagged(base, [tag])
            try:
                operations.commit(base, self._without(builder, gone))
            except Py4JJavaError as error:
                _look_again(error, attempt)
                continue
            _delete_lists(handle, gone)
            return

    def forget(self, run_id: str) -> None:
        base = self.lake.handle(TABLE).operations().current()
        records = (_read_tag(base, name) for name, _ in _refs(base) if name.startswith(_PREFIX))
        owners = (LockRecord.from_json(record) for record in records)
        if not any(owner is not None and owner.run_id == run_id for owner in owners):
            self.heartbeat(run_id, None)

    def sweep(self, age: float) -> int:
        """Deletes heartbeats and files of runs dead for over `age` seconds; returns how many."""
        base = self._current()
        if base is None:
            return 0
        owners = [
            LockRecord.from_json(_read_tag(base, n))
            for n, _ in _refs(base)
            if n.startswith(_PREFIX)
        ]
        named = {_RUN + owner.run_id for owner in owners if owner is not None}
        signs = [name for name, _ in _refs(base) if name.startswith(_RUN) and name not in named]
        old = [name for name in signs if (silent_for(_read_tag(base, name) or "") or 0) > age]
        for name in old:
            self.heartbeat(name.removeprefix(_RUN), None)
        return len(old) + self._sweep_files(age)

    def _sweep_files(self, age: float) -> int:
        """Deletes files that were written for commits that never happened."""
        jvm: Any = self.lake.spark._jvm
        action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(
            self.lake.spark._jsparkSession
        )
        before = int((time.time() - age) * 1000)
        action = action.deleteOrphanFiles(self.lake.handle(TABLE)).olderThan(before)
        try:
            return sum(1 for _ in action.execute().orphanFileLocations())
        except (Py4JError, PySparkException):  # Spark cannot list the folder; they do no harm
            return 0

    def move_tags(self, base: Any, snapshots: Mapping[str, Any]) -> Any:
        """Returns the metadata after a swap that moves the tables' tags to these snapshots.

        The same commit removes snapshots that no tag names any more, so the table does not grow.

        Args:
            snapshots: by table; None removes the tag.
        """
        builder = self._builder(base)
        given = {table: snapshot for table, snapshot in snapshots.items() if snapshot is not None}
        for snapshot in {each.snapshotId(): each for each in given.values()}.values():
            builder.addSnapshot(snapshot)
        for table, snapshot in given.items():
            builder.setRef(_PREFIX + table, self._tag(snapshot))
        for tag in [_PREFIX + table for table in snapshots if table not in given]:
            named = base.ref(tag)
            if named is not None:
                builder.setRef(tag, self._tag(base.snapshot(named.snapshotId()), _MOVED))
                builder.removeRef(tag)
        return self._without(
            builder, _list_untagged(base, [_PREFIX + table for table in snapshots])
        )

    def _builder(self, base: Any) -> Any:
        jvm: Any = self.lake.spark._jvm
        return jvm.org.apache.iceberg.TableMetadata.buildFrom(base)

    def _tag(self, snapshot: Any, age: int | None = None) -> Any:
        jvm: Any = self.lake.spark._jvm
        builder = jvm.org.apache.iceberg.SnapshotRef.tagBuilder(snapshot.snapshotId())
        return builder.maxRefAgeMs(age).build()

    def _without(self, builder: Any, snapshots: list[Any]) -> Any:
        jvm: Any = self.lake.spark._jvm
        gone = jvm.java.util.ArrayList()
        for old in snapshots:
            gone.add(old)
        return builder.removeSnapshots(gone).build()

    def _current(self) -> Any:
        """Returns the table's metadata; None if there is no such table.

        Raises:
            TableError: it is damaged; the error names this table, not the one to lock.
        """
        try:
            if not self.lake.exists(TABLE):
                return None
            return self.lake.handle(TABLE).operations().current()
        except (Py4JError, PySparkException) as problem:
            where = f"table {self.lake.schema}.{TABLE}"
            found = translate_error(problem, where)
            if not isinstance(found, DamagedError):
                raise
            raise TableError(
                found.what,
                where=where,
                remedy="It holds nothing but locks: drop it while no loader runs, and run again. "
                f"{RECOVERY}",
            ) from problem

    def _create(self) -> None:
        self.lake.spark.sql(
            f"create table if not exists {self.lake.name(TABLE)} (table_name string) using iceberg "
            "tblproperties ('write.metadata.delete-after-commit.enabled' = 'true', "
            "'write.metadata.previous-versions-max' = '5')"
        )


def _look_again(error: Py4JJavaError, attempt: int) -> None:
    """Waits before another attempt; raises the error if another attempt cannot help."""
    if not any(kind in str(error.java_exception) for kind in _AGAIN):
        raise error
    time.sleep(0.05 * (attempt + 1))


def _record(metadata: Any, table: str) -> str | None:
    return _read_tag(metadata, _PREFIX + table)


def _read_tag(metadata: Any, name: str) -> str | None:
    tag = metadata.ref(name)
    if tag is None:
        return None
    return metadata.snapshot(tag.snapshotId()).summary().get(RECORD) or None


def _snapshot(handle: Any, record: str) -> Any:
    """Makes an empty snapshot that holds a record; no table has it yet.

    It has no parent, as if it were the first of a branch. From snapshots with a parent, a catalog
    demands growing sequence numbers, and of two simultaneous swaps only one could provide them.
    """
    append = handle.newFastAppend().toBranch(uuid.uuid4().hex)
    return append.set(RECORD, record).apply()


def _list_untagged(base: Any, moved: Collection[str]) -> list[Any]:
    """Returns the snapshots that no tag names once these tags have moved."""
    named = {ref.snapshotId() for name, ref in _refs(base) if name not in moved}
    return [each for each in base.snapshots() if each.snapshotId() not in named]


def _refs(metadata: Any) -> Iterator[tuple[str, Any]]:
    refs = metadata.refs()
    return ((str(name), refs.get(name)) for name in refs)


def _delete_lists(handle: Any, snapshots: Sequence[Any]) -> None:
    """Deletes the files of removed snapshots; a leftover does no harm."""
    for each in snapshots:
        try:
            handle.io().deleteFile(each.manifestListLocation())
        except Py4JJavaError:
            continue

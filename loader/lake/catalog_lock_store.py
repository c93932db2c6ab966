"""Stores lock records in the catalog, for warehouses that several machines write to.

The records are stored as tags of the ``_cq_locks`` table (`docs/internals/locks-and-processes.md`).
A swap moves the tags of any number of tables in one commit, and writes no file except the table's
metadata. Each run also has a tag for its heartbeat.

Table properties are unsuitable for lock records. A REST catalog, unlike other catalogs, does not
reject a commit whose base is outdated. The client sends its changes together with requirements, and
the server applies the changes to the current metadata if the requirements are met. Iceberg derives
the requirements from the changes (``UpdateRequirements``). Setting a property requires only that
the table still has the same UUID, so two runs could lock the same table. Moving a tag requires that
the tag still refers to the same snapshot as before. Removing a tag requires nothing, so the loader
first moves a tag and then removes it in the same commit.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from loader.corruption import RECOVERY
from loader.errors import DamagedError, TableError
from loader.lake.lock_store import LockRecord, seconds_since
from loader.spark.error_translation import translate_error

if TYPE_CHECKING:
    from loader.lake.lake import Lake

TABLE = "_cq_locks"
RECORD = "strandline.owner"
_OWNER_PREFIX = "owner."
_RUN_PREFIX = "run."
_ATTEMPTS = 20
_REFUSALS = 3
_REFUSED_SECONDS = 3.0
"""A commit fails after at least this many refusals over at least this time.

Refusals count only while no other process commits.
"""
# The maximum age of a tag in ms. No process expires tags: the age only makes the tag differ.
_MOVED_AGE = 1
# The commit was rejected, or its outcome is unknown. The next attempt first reads the records.
_REFUSED = "CommitFailedException"
_RETRIED = (_REFUSED, "CommitStateUnknownException")


class CatalogLockStore:
    """Stores lock records and heartbeats as tags of ``<schema>._cq_locks``."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def read(self, table: str) -> str | None:
        return self.read_all([table])[table]

    def read_all(self, tables: Collection[str]) -> dict[str, str | None]:
        base = self._load_metadata()
        return {table: _read_record(base, table) if base is not None else None for table in tables}

    def swap(self, table: str, before: str | None, after: str | None) -> bool:
        return bool(self.swap_all({table: (before, after)}))

    def swap_all(self, changes: Mapping[str, tuple[str | None, str | None]]) -> set[str]:
        swapped: set[str] = set()
        tried: set[str] = set()

        def change(base: Any) -> Any:
            nonlocal swapped
            current = {table: _read_record(base, table) for table in changes}
            # An earlier attempt may have succeeded even if its commit raised an error.
            done = {table for table in tried if current[table] == changes[table][1]}
            pending = {
                table: after
                for table, (before, after) in changes.items()
                if table not in done and current[table] == before
            }
            swapped = done | pending.keys()
            tried.update(pending)
            if not pending:
                return None
            texts = {text for text in pending.values() if text}
            snapshots = {text: self._make_snapshot(base, text) for text in texts}
            moved = {table: snapshots[text] if text else None for table, text in pending.items()}
            return self.move_tags(base, moved)

        if changes:
            self._commit(change)
        return swapped

    def read_heartbeat(self, run_id: str) -> str | None:
        base = self._load_metadata()
        return _read_tag(base, _RUN_PREFIX + run_id) if base is not None else None

    def write_heartbeat(self, run_id: str, text: str | None) -> None:
        tag = _RUN_PREFIX + run_id

        def change(base: Any) -> Any:
            if _read_tag(base, tag) == text:
                return None
            builder = self._builder(base)
            if text is None:
                builder.removeRef(tag)
            else:
                snapshot = self._make_snapshot(base, text)
                builder.addSnapshot(snapshot).setRef(tag, self._tag(snapshot))
            return self._build_without(builder, _list_untagged(base, [tag]))

        self._commit(change)

    def remove_heartbeat(self, run_id: str) -> None:
        base = self.lake.handle(TABLE).operations().current()
        if run_id not in _list_owners(base):
            self.write_heartbeat(run_id, None)

    def delete_old(self, age: float) -> int:
        """Deletes the heartbeats and files of runs that died more than `age` seconds ago."""
        base = self._load_metadata()
        if base is None:
            return 0
        owners = _list_owners(base)
        runs = {
            name.removeprefix(_RUN_PREFIX): _read_tag(base, name) or ""
            for name, _ in _list_refs(base)
            if name.startswith(_RUN_PREFIX)
        }
        old = [run for run, text in runs.items() if (seconds_since(text) or 0) > age]
        old = [run for run in old if run not in owners]
        for run_id in old:
            self.write_heartbeat(run_id, None)
        return len(old) + self._delete_orphan_files(age)

    def _delete_orphan_files(self, age: float) -> int:
        """Deletes the files that failed commits left behind. Returns the number of files."""
        try:
            return self.lake.delete_orphan_files(TABLE, age)
        except (Py4JError, PySparkException):  # Spark cannot list the folder
            return 0  # the files are harmless

    def move_tags(self, base: Any, snapshots: Mapping[str, Any]) -> Any:
        """Builds metadata for ``_cq_locks`` in which the raw tables' tags refer to these snapshots.

        Removes snapshots that no tag refers to, so that the metadata does not grow.

        Args:
            snapshots: the snapshot for each table; None removes the tag.
        """
        builder = self._builder(base)
        moved = {table: snapshot for table, snapshot in snapshots.items() if snapshot is not None}
        for snapshot in {each.snapshotId(): each for each in moved.values()}.values():
            builder.addSnapshot(snapshot)
        for table, snapshot in moved.items():
            builder.setRef(_OWNER_PREFIX + table, self._tag(snapshot))
        for tag in [_OWNER_PREFIX + table for table in snapshots if table not in moved]:
            ref = base.ref(tag)
            if ref is not None:
                builder.setRef(tag, self._tag(base.snapshot(ref.snapshotId()), _MOVED_AGE))
                builder.removeRef(tag)
        tags = [_OWNER_PREFIX + table for table in snapshots]
        return self._build_without(builder, _list_untagged(base, tags))

    def _builder(self, base: Any) -> Any:
        return self.lake.jvm.org.apache.iceberg.TableMetadata.buildFrom(base)

    def _make_snapshot(self, base: Any, record: str) -> Any:
        """Creates an empty snapshot whose summary contains a record.

        The snapshot has no parent, like the first snapshot of a branch. With a parent, the catalog
        would require increasing sequence numbers, and one of two concurrent swaps would fail.
        """
        main = base.currentSnapshot()
        values = {
            "snapshot-id": secrets.randbits(63),
            "sequence-number": base.nextSequenceNumber(),
            "timestamp-ms": int(time.time() * 1000),
            "summary": {"operation": "append", RECORD: record},
            "manifest-list": main.manifestListLocation(),
            "schema-id": main.schemaId(),
        }
        if base.formatVersion() >= 3:
            values |= {"first-row-id": base.nextRowId(), "added-rows": 0}
        return self.lake.jvm.org.apache.iceberg.SnapshotParser.fromJson(json.dumps(values))

    def _tag(self, snapshot: Any, age: int | None = None) -> Any:
        refs = self.lake.jvm.org.apache.iceberg.SnapshotRef
        return refs.tagBuilder(snapshot.snapshotId()).maxRefAgeMs(age).build()

    def _build_without(self, builder: Any, snapshots: list[Any]) -> Any:
        removed = self.lake.jvm.java.util.ArrayList()
        for snapshot in snapshots:
            removed.add(snapshot)
        return builder.removeSnapshots(removed).build()

    def _load_metadata(self) -> Any:
        try:
            if not self.lake.exists(TABLE):
                return None
            return self.lake.handle(TABLE).operations().current()
        except (Py4JError, PySparkException) as problem:
            where = f"table {self.lake.schema}.{TABLE}"
            error = translate_error(problem, where)
            if not isinstance(error, DamagedError):
                raise
            raise TableError(
                error.what,
                where=where,
                remedy="It contains only locks: drop it while no loader runs, and run again. "
                f"{RECOVERY}",
            ) from problem

    def _commit(self, change: Callable[[Any], Any]) -> None:
        """Commits a change to the metadata. Retries if another process commits first.

        Raises a TableError if the catalog keeps refusing commits for another reason.

        Args:
            change: builds the new metadata from the current metadata. Returns None if there is
                nothing to change.
        """
        refused: list[tuple[str, float]] = []
        handle = self._create()
        for attempt in range(_ATTEMPTS):
            if attempt:
                handle = self.lake.handle(TABLE)
            operations = handle.operations()
            base = operations.refresh()
            changed = change(base)
            if changed is None:
                return
            try:
                operations.commit(base, changed)
                return
            except Py4JJavaError as error:
                # Another process may have changed a record, so the next attempt rereads them.
                reported = str(error.java_exception)
                is_last = attempt == _ATTEMPTS - 1
                if is_last or not any(kind in reported for kind in _RETRIED):
                    raise
                if _REFUSED in reported and _is_refused_for_long(base, refused):
                    raise TableError(
                        f"the catalog refuses lock records: {error.java_exception.getMessage()}",
                        where=f"table {self.lake.schema}.{TABLE}",
                        remedy="Check the catalog server's log. Locks need a catalog that accepts "
                        "tags of Iceberg tables",
                    ) from error
            time.sleep(0.05 * (attempt + 1))

    def _create(self) -> Any:
        self.lake.spark.sql(
            f"create table if not exists {self.lake.name(TABLE)} (table_name string) using iceberg "
            "tblproperties ('format-version' = '2', "
            "'write.metadata.delete-after-commit.enabled' = 'true', "
            "'write.metadata.previous-versions-max' = '5')"
        )
        handle = self.lake.handle(TABLE)
        if handle.currentSnapshot() is None:
            handle.newFastAppend().commit()
        return handle


def _is_refused_for_long(base: Any, refused: list[tuple[str, float]]) -> bool:
    """Records a refusal. Returns whether the catalog keeps refusing commits to current metadata.

    A single refusal proves nothing, because a server with a cache may briefly return outdated
    metadata.

    Args:
        refused: the metadata file and the time of each refusal so far. The new refusal is added.
    """
    location, now = base.metadataFileLocation(), time.monotonic()
    if location is None:
        return False
    refused.append((str(location), now))
    times = [at for file, at in refused if file == str(location)]
    return len(times) >= _REFUSALS and now - times[0] >= _REFUSED_SECONDS


def _read_record(metadata: Any, table: str) -> str | None:
    return _read_tag(metadata, _OWNER_PREFIX + table)


def _list_owners(metadata: Any) -> set[str]:
    tags = [name for name, _ in _list_refs(metadata) if name.startswith(_OWNER_PREFIX)]
    records = [LockRecord.from_json(_read_tag(metadata, tag)) for tag in tags]
    return {record.run_id for record in records if record is not None}


def _read_tag(metadata: Any, name: str) -> str | None:
    tag = metadata.ref(name)
    if tag is None:
        return None
    return metadata.snapshot(tag.snapshotId()).summary().get(RECORD) or None


def _list_untagged(base: Any, moved: Collection[str]) -> list[Any]:
    """Returns the snapshots that no tag except the `moved` tags refers to."""
    tagged = {ref.snapshotId() for name, ref in _list_refs(base) if name not in moved}
    return [each for each in base.snapshots() if each.snapshotId() not in tagged]


def _list_refs(metadata: Any) -> Iterator[tuple[str, Any]]:
    refs = metadata.refs()
    return ((str(name), refs.get(name)) for name in refs)

"""Locates the tables' lock files on this machine.

If the warehouse is a local folder, the lock files are next to the tables. Every user with write
access to the tables can then lock them. For a shared catalog, the lock files are in a folder that
only this user may write to. In a public folder such as /tmp, other users could block every lock or
create a malicious lock file.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from filelock import FileLock

from loader.errors import SpecError
from loader.lake.catalog_lock_store import CatalogLockStore
from loader.lake.lock_store import FileLockStore, LockStore, lock_file
from loader.names import file_name
from loader.spark.temporary_files import ensure_own_folder, home_folder

if TYPE_CHECKING:
    from loader.lake.lake import Lake

FOLDER = "STRANDLINE_LOCKS"
"""The environment variable that sets the lock folder of shared catalogs."""


class TableLocks:
    """The file locks and lock records of the tables in one namespace."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        setting = f"spark.sql.catalog.{lake.catalog}"
        self._catalog_type = lake.spark.conf.get(f"{setting}.type", None)
        self._warehouse = lake.spark.conf.get(f"{setting}.warehouse", None) or ""

    def lock(self, table: str, timeout: float) -> FileLock:
        """Returns a table's file lock. See :func:`loader.lake.locks.lock_table`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return lock_file(self.folder / f"{file_name(table)}.lock", timeout)

    @cached_property
    def store(self) -> LockStore:
        """The store of lock records, which is the catalog itself for shared catalogs."""
        if self._local_folder is not None:
            return FileLockStore(self._local_folder)
        return CatalogLockStore(self.lake.for_thread())

    @cached_property
    def folder(self) -> Path:
        """The folder of the lock files, either the namespace's or this user's folder."""
        if self._local_folder is not None:
            return self._local_folder
        return find_user_folder(self.lake.catalog, self._warehouse) / file_name(self.lake.schema)

    @cached_property
    def _local_folder(self) -> Path | None:
        warehouse = find_local_warehouse(self._catalog_type, self._warehouse)
        return warehouse / self.lake.schema if warehouse else None


_by_lake: WeakKeyDictionary[Lake, TableLocks] = WeakKeyDictionary()


def get_table_locks(lake: Lake) -> TableLocks:
    """Returns the locks of a lake's tables. Calls for one lake return the same object."""
    locks = _by_lake.get(lake)
    if locks is None:
        locks = _by_lake[lake] = TableLocks(lake)
    return locks


def find_local_warehouse(catalog_type: str | None, warehouse: str) -> Path | None:
    """Returns the folder of a local Hadoop warehouse, or None for other warehouses.

    As in Hadoop, the text after the scheme is the path, including `#`, `?` and `%`.

    Args:
        catalog_type: the catalog's `type` setting.
        warehouse: a path, or a URL with the scheme `file`.
    """
    url = re.fullmatch(r"file:(?://[^/]*)?(/.*)", warehouse, re.DOTALL)
    if catalog_type != "hadoop" or not warehouse:
        return None
    if url is not None:
        return Path(url[1])
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", warehouse) else Path(warehouse)


def find_user_folder(catalog: str, warehouse: str) -> Path:
    """Returns the lock folder of a shared catalog for all processes of this user.

    Raises:
        SpecError: if no folder can be created, or the existing folder belongs to another user.
    """
    digest = hashlib.sha256(f"{catalog}|{warehouse}".encode()).hexdigest()[:12]
    problem: OSError | None = None
    for folder in _candidates():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            ensure_own_folder(folder, "locks", f"name a folder of your own in {FOLDER}")
            return folder / digest
        except OSError as error:
            problem = error
    raise SpecError(
        f"cannot create a folder for locks: {problem}",
        where="locks",
        remedy=f"Set {FOLDER} to a folder that this user may write to",
    )


def _candidates() -> Iterator[Path]:
    configured = os.environ.get(FOLDER)
    if configured:
        yield Path(configured)
        return
    home = home_folder()
    if home is not None:
        yield home / ".cache" / "strandline" / "locks"
    yield Path(tempfile.gettempdir()) / f"strandline-{os.getuid()}"

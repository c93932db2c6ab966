"""Locates the tables' lock files on this machine.

If the warehouse is a local folder, they are beside the tables: every user who may write the tables
may lock them. For a shared catalog, they are in a folder of this user. In a folder that others may
write to, such as the temporary one, they could hold every lock, or create one first.
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
from loader.lake.catalog_owners import CatalogLockStore
from loader.lake.lease import Lease
from loader.lake.lock_store import FileLockStore, LockStore, lock_file
from loader.names import file_name
from loader.spark.temporary_files import ensure_own_folder, home_folder

if TYPE_CHECKING:
    from loader.lake.lake import Lake

FOLDER = "STRANDLINE_LOCKS"
"""The environment variable that names another folder."""


def lock_table(lake: Lake, table: str, timeout: float = 60) -> FileLock:
    """Returns a table's file lock; the system releases it when its process dies.

    If the warehouse is a local folder, the lock file is beside the table, as a Hadoop catalog
    cannot tell two writers apart there. Otherwise it is in a folder of this user.
    """
    return _locks_of(lake).lock(table, timeout)


def create_lease(lake: Lake, table: str, where: str, run_id: str) -> Lease:
    """Returns a table's lease, not yet taken; in a shared catalog, other machines see it too.

    Args:
        where: the table's name in messages.
    """
    return Lease(table, where, lock_table(lake, table), _locks_of(lake).owners, run_id)


def sweep_owners(lake: Lake, age: float) -> int:
    """Deletes leftovers of runs that died over `age` seconds ago; returns their number."""
    return _locks_of(lake).owners.sweep(age)


class TableLocks:
    """The file locks of one namespace's tables, and the records of who holds them."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        setting = f"spark.sql.catalog.{lake.catalog}"
        self._kind = lake.spark.conf.get(f"{setting}.type", None)
        self._warehouse = lake.spark.conf.get(f"{setting}.warehouse", None) or ""

    def lock(self, table: str, timeout: float) -> FileLock:
        """Returns a table's file lock; see :func:`lock_table`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / f"{file_name(table)}.lock"
        return lock_file(place, timeout)

    @cached_property
    def owners(self) -> LockStore:
        """The store of owners' records: the catalog itself, if other machines may write there."""
        if self._beside is not None:
            return FileLockStore(self._beside)
        return CatalogLockStore(self.lake.for_thread())

    @cached_property
    def folder(self) -> Path:
        """The namespace's own folder, or one of this user."""
        if self._beside is not None:
            return self._beside
        return of_this_user(self.lake.catalog, self._warehouse) / file_name(self.lake.schema)

    @cached_property
    def _beside(self) -> Path | None:
        warehouse = beside_the_tables(self._kind, self._warehouse)
        return warehouse / self.lake.schema if warehouse else None


_of_lakes: WeakKeyDictionary[Lake, TableLocks] = WeakKeyDictionary()


def _locks_of(lake: Lake) -> TableLocks:
    found = _of_lakes.get(lake)
    if found is None:
        found = _of_lakes[lake] = TableLocks(lake)
    return found


def beside_the_tables(kind: str | None, warehouse: str) -> Path | None:
    """Returns the warehouse's folder if it is a plain folder of this machine, else None.

    Everything after the scheme is the path, including `#`, `?` and `%`, as Hadoop reads it.

    Args:
        kind: the catalog's type.
        warehouse: a path, or a URL with the scheme `file`.
    """
    found = re.fullmatch(r"file:(?://[^/]*)?(/.*)", warehouse, re.DOTALL)
    if kind != "hadoop" or not warehouse:
        return None
    if found is not None:
        return Path(found[1])
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", warehouse) else Path(warehouse)


def of_this_user(catalog: str, warehouse: str) -> Path:
    """Returns the folder for a shared catalog's locks, the same for all processes of this user.

    Raises:
        SpecError: no folder can be created, or the existing one belongs to another user.
    """
    digest = hashlib.sha256(f"{catalog}|{warehouse}".encode()).hexdigest()[:12]
    problem: OSError | None = None
    for place in _places():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            ensure_own_folder(place, "locks", f"name a folder of your own in {FOLDER}")
            return place / digest
        except OSError as error:
            problem = error
    raise SpecError(
        f"cannot create a folder for locks: {problem}",
        where="locks",
        remedy=f"Set {FOLDER} to a folder that this user may write to",
    )


def _places() -> Iterator[Path]:
    given = os.environ.get(FOLDER)
    if given:
        yield Path(given)
        return
    home = home_folder()
    if home is not None:
        yield home / ".cache" / "strandline" / "locks"
    yield Path(tempfile.gettempdir()) / f"strandline-{os.getuid()}"

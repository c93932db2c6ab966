"""A state backend in local JSON files (``backend: local``), as in older versions of CloudQuery."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from loader.errors import StateError
from loader.lake.lock_files import lock_file
from loader.spark.safe_files import read_regular, replace_atomically
from loader.state import StateBackend, StateRow, build_second_writer_error
from loader.state.value import format_time, parse_time

_MAX_BYTES = 1 << 30
"""The maximum size of a file in bytes. Pruning usually keeps files far smaller."""
_FILE_NAME = re.compile(r"[a-z0-9._-]*-[0-9a-f]{32}\.json")


class LocalState(StateBackend):
    """A state backend that stores a file ``{"key": …, "versions": [{…}, …]}`` for each key.

    Files are replaced atomically: a new file is written, flushed to disk and renamed. File names
    end in a hash of the key. Otherwise keys that differ only in case, in slashes or at the end of a
    long name could share a file.

    If the loader runs in a container, the folder must be mounted, so that it is persistent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = f"state folder {folder}"

    def prepare(self) -> None:
        with self._translate_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob("*.json"):
                if not _FILE_NAME.fullmatch(path.name):
                    raise self._build_foreign_error(path)
            with tempfile.TemporaryFile(dir=self.folder):
                pass  # raises an error before the data commit if the folder is not writable

    def rows(self, key: str | None = None) -> list[StateRow]:
        with self._translate_errors():
            if key is not None:
                return self._read(self._find_path(key), key)
            rows: list[StateRow] = []
            for path in self.folder.glob("*.json"):
                rows += self._read(path)
        return sorted(rows, key=lambda row: (row.key, -row.version))

    def append(self, rows: Sequence[StateRow]) -> None:
        with self._translate_errors(), self._lock():
            new_rows: dict[str, list[StateRow]] = {}
            for row in rows:
                versions = new_rows.setdefault(row.key, self.rows(row.key))
                if any(existing.version == row.version for existing in versions):
                    raise build_second_writer_error(row, self.where)
                versions.append(row)
            for key, versions in new_rows.items():
                self._replace(key, versions)

    def prune(self, floors: Mapping[str, int]) -> None:
        with self._translate_errors(), self._lock():
            for key, floor in floors.items():
                self._replace(key, [row for row in self.rows(key) if row.version >= floor])

    def _find_path(self, key: str) -> Path:
        readable = re.sub(r"[^a-z0-9._-]+", "_", key.lower())[:80]
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self.folder / f"{readable}-{digest}.json"

    def _lock(self) -> FileLock:
        return lock_file(self.folder / ".lock", timeout=60)

    def _read(self, path: Path, key: str | None = None) -> list[StateRow]:
        try:
            text = read_regular(path, _MAX_BYTES).decode("utf-8")
        except FileNotFoundError:
            return []
        except UnicodeDecodeError:
            raise self._build_foreign_error(path) from None
        try:
            content: Any = json.loads(text)
            rows = [
                StateRow(
                    str(content["key"]),
                    str(row["value"]),
                    int(row["version"] or 0),
                    row["updated_at"],
                )
                for row in content["versions"]
            ]
        except (ValueError, KeyError, TypeError):
            raise self._build_foreign_error(path) from None
        if path.name != self._find_path(content["key"]).name or key not in (None, content["key"]):
            raise self._build_foreign_error(path)
        return sorted(rows, key=lambda row: -row.version)

    def _replace(self, key: str, rows: Sequence[StateRow]) -> None:
        versions = [
            {
                "updated_at": format_time(parse_time(row.updated_at)),
                "value": row.value,
                "version": row.version,
            }
            for row in sorted(rows, key=lambda row: row.version)
        ]
        text = json.dumps({"key": key, "versions": versions}, ensure_ascii=False, indent=1)
        path = self._find_path(key)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=self.folder, prefix=".", suffix=".tmp", delete=False
        ) as file:
            try:
                file.write(text + "\n")
                file.flush()
                # The file must be on disk when the method returns.
                replace_atomically(Path(file.name), path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def _build_foreign_error(self, path: Path) -> StateError:
        return StateError(
            f"{path.name} is damaged, or was not written by this loader",
            where=self.where,
            remedy="Move it away, or set `backend_spec.path` to a folder that only the loader "
            "uses; `loader state rebuild` rebuilds the cursors",
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except Timeout:
            raise StateError(
                "another process has locked it for a minute",
                where=self.where,
                remedy="Run again: the next run records what this one published",
            ) from None
        except OSError as problem:
            raise StateError(
                f"{problem.strerror or problem}",
                where=self.where,
                remedy="Check that the loader's user may write there, and that the disk has space",
            ) from problem

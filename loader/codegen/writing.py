"""Writes several files at once: all of them, or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from loader.errors import SpecError


def read(path: Path) -> str | None:
    """Reads a file's text with its line ends; None if there is no such file.

    Raises:
        SpecError: if it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise _refusal(path, "not UTF-8 text", "Save it as UTF-8") from None
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}", "Make it readable") from None


def write_all(files: Mapping[Path, str]) -> None:
    """Writes new and existing files, and creates their folders.

    First writes all of them under temporary names beside their places, where a full disk or a
    missing permission shows, then renames them. If a rename fails, undoes those before it.

    Raises:
        SpecError: if a file cannot be written; then all are as they were.
    """
    places = {path.resolve(): text for path, text in files.items()}
    before = {path: read(path) for path in places}
    done: list[Path] = []
    path = Path()
    try:
        for path, text in places.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(_beside(path), text)
            if before[path] is not None:
                shutil.copymode(path, _beside(path))
        for path in places:
            os.replace(_beside(path), path)
            done.append(path)
    except OSError as error:
        for path_done in done:
            _restore(path_done, before[path_done])
        problem = f"cannot be written: {error.strerror or error}; no file was changed"
        raise _refusal(path, problem, "Make the folder writable") from None
    finally:
        for path in places:
            with suppress(OSError):
                _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.codegen")


def _put(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _restore(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        _put(path, text)


def _refusal(path: Path, what: str, remedy: str) -> SpecError:
    return SpecError(what, where=str(path), remedy=remedy)

"""Puts files where other programs look for them: atomically, never over files that are not ours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_OPEN = "# >>> strandline: written by `loader setup`, which overwrites what is between the marks"
_CLOSE = "# <<< strandline"


def place(source: Path, target: Path) -> str:
    """Links `target` to `source`, or copies it if links are not available.

    Returns:
        What was done, for people.
    """
    source = source.absolute()
    if target.exists() and (target.samefile(source) or _same_copy(source, target)):
        return f"{target.name} is there"
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        verb = _link_or_copy(source, fresh)
        fresh.replace(target)
    finally:
        if fresh.is_symlink() or fresh.is_file():
            fresh.unlink()
    return f"{target.name} {verb}"


def link(source: Path, target: Path) -> str:
    """Links a folder, or copies it if links are not available; replaces an older link.

    Returns:
        What was done, for people.
    """
    source = source.absolute()
    if target.is_symlink():
        if target.exists() and target.samefile(source):
            return "is there"
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    return _link_or_copy(source, target)


def write_block(path: Path, block: str, name: str = "", last: bool = False) -> None:
    """Writes a marked block into a shell file and leaves the file's other lines alone.

    Args:
        name: tells several blocks of one file apart.
        last: it relies on what lines above it set, so it goes to the file's end.
    """
    text = path.read_text() if path.exists() else ""
    opening = _OPEN.replace("strandline:", f"strandline {name}:") if name else _OPEN
    marked = f"{opening}\n{block}{_CLOSE}\n"
    before, opened, rest = text.partition(f"{opening}\n")
    after = rest.partition(f"{_CLOSE}\n")[2] if opened else ""
    if last or not opened:
        before, after = _ended(before + after), ""
    _write(path, f"{before}{marked}{after}")


def write_own(path: Path, content: str) -> bool:
    """Writes a whole file, unless somebody else wrote the one that exists.

    Returns:
        Whether the file is ours.
    """
    if path.exists() and not path.read_text().startswith(_OPEN):
        return False
    _write(path, f"{_OPEN}\n{content}{_CLOSE}\n")
    return True


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return  # so it works in a folder that is read-only by now
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _link_or_copy(source: Path, target: Path) -> str:
    try:
        target.symlink_to(source)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, PermissionError) and os.name == "posix":
            raise  # the folder is not writable: a copy would fail as well, and say less
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, target)
        return "copied"
    return "linked"


def _same_copy(source: Path, target: Path) -> bool:
    return not target.is_symlink() and target.stat().st_size == source.stat().st_size


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"

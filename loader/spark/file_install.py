"""Links folders of this installation into a project, or copies them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link(source: Path, target: Path) -> str:
    """Links a folder, or copies it if links are not available; replaces an older link.

    Returns:
        A message about the result.
    """
    source = source.absolute()
    if target.is_symlink():
        if target.exists() and target.samefile(source):
            return "is there"
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.symlink_to(source)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, PermissionError) and os.name == "posix":
            raise  # the folder is not writable: a copy would fail as well, and say less
        shutil.copytree(source, target)
        return "copied"
    return "linked"

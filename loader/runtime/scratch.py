"""Where Spark puts rows that it sorts and shuffles: a folder that only this user may enter.

In Spark's own folders under the temporary one, every user of the machine can read them, and what a
killed process leaves stays for ever.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SETTING = "spark.local.dir"
_PREFIX = "strandline-scratch-"
_OLD = 3600.0  # seconds


def scratch(settings: Mapping[str, str], defaults: str) -> dict[str, str]:
    """Returns the setting for a new folder; none where somebody has chosen one, or on a cluster.

    Args:
        settings: the profile's.
        defaults: the text of `spark-defaults.conf`.
    """
    chosen = SETTING in settings or "SPARK_LOCAL_DIRS" in os.environ
    local = settings.get("spark.master", "").startswith("local")
    if chosen or not local or re.search(rf"^\s*{re.escape(SETTING)}\b", defaults, re.MULTILINE):
        return {}
    _sweep()
    return {SETTING: tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")}  # mode 0700


def deleted_in_the_end(jvm: Any, folder: str) -> None:
    """Makes Spark delete the folder when its JVM ends."""
    manager = jvm.org.apache.spark.util.ShutdownHookManager
    manager.registerShutdownDeleteDir(jvm.java.io.File(folder))


def _sweep() -> None:
    """Deletes what killed processes of this user left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError):
            found = folder.lstat()
            own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            pid = int(folder.name.removeprefix(_PREFIX).split("-")[0])
            if own and time.time() - found.st_mtime > _OLD and not _alive(pid):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

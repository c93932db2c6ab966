"""Where Spark puts rows that it sorts and shuffles: a folder that only this user may enter.

In Spark's own folders under the temporary one, every user of the machine can read them, and what a
killed process leaves stays for ever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from loader.runtime.private_folder import made

SETTING = "spark.local.dir"
_OLD = 3600.0  # seconds: the JVM may outlive a killed loader


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
    return {SETTING: str(made("scratch", age=_OLD))}


def deleted_in_the_end(jvm: Any, folder: str) -> None:
    """Makes Spark delete the folder when its JVM ends."""
    manager = jvm.org.apache.spark.util.ShutdownHookManager
    manager.registerShutdownDeleteDir(jvm.java.io.File(folder))

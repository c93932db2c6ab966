"""Gives Spark a private local directory for sorts and shuffles: only this user may enter it.

In Spark's own folders under the temporary one, every user of the machine can read them, and files
of a killed process are never removed. So do the native libraries that Java unpacks, such as LZ4's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from loader.spark.private_folder import create_folder

SETTING = "spark.local.dir"
_OPTIONS = "spark.driver.extraJavaOptions"
_TEMPORARY = "-Djava.io.tmpdir="
_OLD = 3600.0  # seconds: the JVM may outlive a killed loader


def scratch(settings: Mapping[str, str], defaults: str) -> dict[str, str]:
    """Returns the settings for a new folder; none if one is configured, or on a cluster.

    It is the folder for Java's temporary files, too, unless that one is configured.

    Args:
        settings: the profile's.
        defaults: the text of `spark-defaults.conf`.
    """
    chosen = SETTING in settings or "SPARK_LOCAL_DIRS" in os.environ
    local = settings.get("spark.master", "").startswith("local")
    if chosen or not local or _names(defaults, SETTING):
        return {}
    folder = str(create_folder("scratch", age=_OLD))
    options = settings.get(_OPTIONS, "")
    if _TEMPORARY in options or (not options and _names(defaults, _OPTIONS)):
        return {SETTING: folder}
    return {SETTING: folder, _OPTIONS: f'{options} "{_TEMPORARY}{folder}"'.strip()}


def _names(defaults: str, setting: str) -> bool:
    return re.search(rf"^\s*{re.escape(setting)}\b", defaults, re.MULTILINE) is not None


def delete_at_exit(jvm: Any, folder: str) -> None:
    """Makes Spark delete the folder when its JVM ends."""
    manager = jvm.org.apache.spark.util.ShutdownHookManager
    manager.registerShutdownDeleteDir(jvm.java.io.File(folder))

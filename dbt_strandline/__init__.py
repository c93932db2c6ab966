"""A dbt plugin that starts Spark's JVM like the loader, while dbt parses the project.

dbt imports each installed module whose name begins with `dbt_`, and creates its `plugins` before it
connects. With this plugin, `dbt build` uses the same Java, jars and fast start as `loader run`, and
the settings of the profile are not on a command line that other users can read. Set
`STRANDLINE_DBT_PLUGIN=off` to let PySpark start the JVM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import click
from dbt.plugins.manager import dbt_hook, dbtPlugin
from dbt.plugins.manifest import PluginNodes

SWITCH = "STRANDLINE_DBT_PLUGIN"
"""The environment variable that disables the plugin if it is `off`."""

# Settings that SET does not change, or whose change has no effect once Spark has started.
_FIXED = re.compile(r"spark\.(?!sql\.)|spark\.sql\.(?:catalog\.|extensions$|warehouse\.dir$)")
_CONNECTING = frozenset(
    {
        "build",
        "clone",
        "compile",
        "freshness",
        "generate",
        "retry",
        "run",
        "run-operation",
        "seed",
        "show",
        "snapshot",
        "test",
    }
)


class SparkStarter(dbtPlugin):
    """Starts the JVM for a Spark session with an Iceberg catalog; its errors do not stop dbt."""

    def initialize(self) -> None:
        """Starts the JVM without waiting for it."""
        self._settings: dict[str, str] | None = None
        try:
            self._settings = _begin()
        except Exception as error:
            _leave_to_spark(error)

    @dbt_hook  # type: ignore[untyped-decorator]
    def get_nodes(self) -> PluginNodes:
        """Connects PySpark to the JVM after dbt has parsed the project; adds no nodes."""
        if self._settings is not None:
            from loader.spark import jvm

            try:
                jvm.start(self._settings)
                _drop_fixed_settings()
            except Exception as error:
                _leave_to_spark(error)
        return PluginNodes()


def _begin() -> dict[str, str] | None:
    _drop_empty_settings()
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "false", "no"):
        return None
    conf = _read_target()
    if conf is None or not any("org.apache.iceberg" in value for value in conf.values()):
        return None
    from loader.spark import jvm
    from loader.spark.profile import find_secrets
    from loader.spark.session import settings
    from loader.spark.setup import provide_jars

    provide_jars(conf, (), lambda line: click.echo(line, err=True))
    wanted = settings(conf, find_secrets(conf, os.environ))
    jvm.begin(wanted)
    return wanted


def _drop_empty_settings() -> None:
    """Removes empty settings of Spark, as the loader does: their variables are not set.

    Keeps empty settings that the loader refuses, so that Spark reports an error.
    """
    from loader.spark.profile import NEVER_EMPTY

    given = _server_side_parameters()
    for key in [key for key, value in given.items() if value == ""]:
        if not NEVER_EMPTY.fullmatch(key):
            del given[key]


def _drop_fixed_settings() -> None:
    """Removes the settings that the running JVM has, and that no statement can change.

    dbt-spark passes all settings to Spark again before each statement, with a call to the JVM for
    each setting. This would take a seventh of the time of a build with nothing new.
    """
    from pyspark import SparkContext

    from loader.spark.class_path import JARS

    given = _server_side_parameters()
    given.pop(JARS, None)
    java: Any = SparkContext._jvm
    if java is None:  # PySpark connects to a JVM that another program started
        return
    get_property = java.java.lang.System.getProperty
    for key, value in [*given.items()]:
        if _FIXED.match(key) and get_property(key) == str(value):
            del given[key]


def _server_side_parameters() -> dict[str, Any]:
    """Returns the target's Spark settings, which dbt reads when it opens a session."""
    return getattr(_find_context()[1], "server_side_parameters", None) or {}


def _find_context() -> tuple[Mapping[str, Any], Any]:
    """Returns the context of dbt's command, and the credentials of its target."""
    context = click.get_current_context(silent=True)
    found: Mapping[str, Any] = context.obj if context and isinstance(context.obj, dict) else {}
    return found, getattr(found.get("profile"), "credentials", None)


def _read_target() -> dict[str, str] | None:
    """Returns the target's Spark settings; None if dbt will not open a Spark session."""
    found, credentials = _find_context()
    command = getattr(found.get("flags"), "WHICH", None)
    if command not in _CONNECTING or getattr(credentials, "type", None) != "spark":
        return None
    if getattr(credentials, "method", None) != "session":
        return None
    return {str(key): str(value) for key, value in _server_side_parameters().items()}


def _leave_to_spark(error: Exception) -> None:
    click.echo(f"warning: Spark starts without the loader's Java and jars: {error}", err=True)


plugins = [SparkStarter]

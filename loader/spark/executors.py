"""Observes the executors of a cluster. With a local master, the driver is the only executor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 15.0
"""How many seconds tasks must wait without an executor before a shortage is reported."""

_PAUSE = 1.0


def runs_on_cluster(spark: SparkSession) -> bool:
    """Returns whether the session's tasks run outside this process."""
    return not str(spark.sparkContext.master).startswith("local")


def count_executors(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # without the driver


def describe_shortage(spark: SparkSession) -> str:
    """Lists the possible reasons why no executor has started, without a full stop at the end."""
    conf = spark.sparkContext.getConf()
    memory = conf.get("spark.executor.memory", "1g")
    return (
        f"the cluster has no free cores: {spark.sparkContext.master} has started no executor. "
        "Other applications may hold all cores, such as a loader in a loop without "
        f"spark.cores.max; no worker may have {memory} of memory free (spark.executor.memory); or "
        "executors cannot reach the driver at "
        f"{conf.get('spark.driver.host', 'its host name')} (spark.driver.host)"
    )


@contextmanager
def report_shortage(warn: Callable[[str], object]) -> Iterator[None]:
    """While the block runs, warns if tasks wait for :data:`WAIT_SECONDS` without an executor.

    Always observes this process's current session, even after the session is replaced.

    Args:
        warn: prints a warning. Called from another thread, once for each shortage.
    """
    ended = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(warn, ended), name="watch-executors", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(warn: Callable[[str], object], ended: threading.Event) -> None:
    began: float | None = None
    is_reported = False
    while not ended.wait(_PAUSE):
        shortage = _find_shortage()
        if shortage is None:
            began, is_reported = None, False
            continue
        began = time.monotonic() if began is None else began
        if not is_reported and time.monotonic() - began >= WAIT_SECONDS:
            warn(shortage)
            is_reported = True


def _find_shortage() -> str | None:
    """Returns an explanation if tasks are waiting but there is no executor."""
    from loader.spark.session import find_session

    try:
        spark = find_session()
        if spark is None or not runs_on_cluster(spark):
            return None
        has_tasks = bool(spark.sparkContext.statusTracker().getActiveStageIds())
        return describe_shortage(spark) if has_tasks and not count_executors(spark) else None
    except Exception:  # the session is being replaced, or its JVM exited
        return None

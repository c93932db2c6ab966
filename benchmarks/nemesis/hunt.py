"""Runs schedules one after another, with the same server, Spark and worker processes."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.nemesis.findings import Violation
from benchmarks.nemesis.schedule import Schedule
from benchmarks.nemesis.trial import Arena, Tally, Trial
from benchmarks.nemesis.workers import Workers

__all__ = ["Hunt", "Tally"]


class Hunt:
    """Carries out schedules one after another, each from an empty state.

    Attributes:
        tally: what all schedules did.
    """

    def __init__(self, arena: Arena, spark: SparkSession, folder: Path) -> None:
        self.arena = arena
        self.spark = spark
        self.folder = folder
        self.workers = Workers()
        self.tally = Tally()

    def violation(self, schedule: Schedule) -> str | None:
        """Carries out a schedule. Returns the violation that it finds, or None.

        An unexpected exception is a violation, too.
        """
        trial = Trial(schedule, self.arena, self.spark, self.workers, self.folder)
        try:
            trial.carry_out()
        except Violation as found:
            return str(found)
        except Exception:
            return traceback.format_exc()
        finally:
            self.tally.add(trial.tally)
            shutil.rmtree(trial.place, ignore_errors=True)
        return None

    def close(self) -> None:
        """Stops the worker processes."""
        self.workers.close()

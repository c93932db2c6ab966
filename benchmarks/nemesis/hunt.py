"""Schedule after schedule, on one database server, one Spark and processes to be killed."""

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
    """Carries schedules out, one after another, each from nothing.

    Attributes:
        tally: what all of them did.
    """

    def __init__(self, arena: Arena, spark: SparkSession, folder: Path) -> None:
        self.arena = arena
        self.spark = spark
        self.folder = folder
        self.workers = Workers()
        self.tally = Tally()

    def violation(self, schedule: Schedule) -> str | None:
        """What did not hold in a schedule; None where everything did.

        An exception that nobody expected is a violation, too.
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
        """Ends the processes that were to be killed."""
        self.workers.close()

"""A separate process that runs `loader` commands on demand, with Spark already started.

Reads one JSON object per line, ``{"arguments": […], "environment": {…}}``, and answers with one:
``{"code": …, "output": …}``. Commands do the same here as in the `loader` program, but do not wait
for Spark to start. The program's argument is the folder of profiles.yml.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from click.testing import CliRunner

from loader.cli import main
from loader.lake import locks
from loader.lake.locks import Heartbeat, Lease
from loader.spark.profile import load_profile
from loader.spark.session import session

ROOT = Path(__file__).resolve().parents[2]
EXPIRY = "STRANDLINE_TEST_EXPIRY"
"""A variable of a request: seconds without a heartbeat after which a lease expires."""


def _set_expiry(seconds: float) -> None:
    """Makes leases expire after this time, and adapts the interval of heartbeats."""
    Lease.__init__.__defaults__ = (seconds, *(Lease.__init__.__defaults__ or ())[1:])
    Heartbeat.__init__.__defaults__ = (seconds / 6,)


def serve() -> None:
    """Answers requests until its input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output must not look like an answer
    target = os.environ.get("STRANDLINE_TARGET", "embedded")
    profile = load_profile("strandline", target, ROOT, profiles_dir=sys.argv[1])
    spark = session(profile)
    spark.range(1).count()
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    print(json.dumps({"ready": os.getpid(), "jvm": pid}), file=answers, flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        os.environ.update(wanted["environment"])
        _set_expiry(float(wanted["environment"].get(EXPIRY, locks.EXPIRY)))
        result = CliRunner().invoke(main, wanted["arguments"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        reported = {"code": result.exit_code, "output": result.output}
        print(json.dumps(reported), file=answers, flush=True)


if __name__ == "__main__":
    serve()

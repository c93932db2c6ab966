"""A process that runs `loader` and `dbt` on request, and can be killed while they run.

Reads one JSON object per line, ``{"program": …, "arguments": […], "environment": {…}}``. Answers
each with an object ``{"code": …, "output": …}``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from click.testing import CliRunner

from loader.cli import main
from loader.spark.profile import load_profile
from loader.spark.session import session
from tests.sync.project import ROOT


def serve() -> None:
    """Answers requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output must not look like an answer
    profile = load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    spark = session(profile)
    spark.range(1).count()
    jvm: Any = spark._jvm
    ready = {"ready": os.getpid(), "jvm": jvm.java.lang.ProcessHandle.current().pid()}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        os.environ.update(wanted["environment"])
        run = _loader if wanted["program"] == "loader" else _dbt
        print(json.dumps(run(wanted["arguments"])), file=answers, flush=True)


def _loader(arguments: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return {"code": result.exit_code, "output": result.output}


def _dbt(arguments: list[str]) -> dict[str, Any]:
    from dbt.cli.main import dbtRunner

    outcome = dbtRunner().invoke(arguments)
    return {"code": 0 if outcome.success else 1, "output": str(outcome.exception or "")}


if __name__ == "__main__":
    serve()

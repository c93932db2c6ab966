"""`dbt build` inside this process, on the Spark session that the loader uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Built:
    """The result of a build.

    Attributes:
        models: models built.
        passed: tests passed.
        warned: the kinds of tests that warned, with the number of rows that they found.
        wrong: what failed or was skipped, with dbt's message.
    """

    models: int
    passed: int
    warned: dict[str, int]
    wrong: list[str]


def build(project: Path, folder: Path) -> Built:
    """Builds and tests all models; dbt's own output goes to `folder`/logs/dbt.log."""
    from dbt.cli.main import dbtRunner  # takes three seconds

    places = ["--project-dir", str(project), "--profiles-dir", str(project / "profiles")]
    places += ["--target-path", str(folder / "target"), "--log-path", str(folder / "logs")]
    command = [
        "build",
        "--target",
        "embedded",
        "--quiet",
        "--no-use-colors",
        "--no-use-colors-file",
        *places,
    ]
    ended = dbtRunner().invoke(command)
    if ended.exception is not None:
        return Built(0, 0, {}, [str(ended.exception)])
    results = list(ended.result.results)
    warned: Counter[str] = Counter()
    for result in results:
        if str(result.status) == "warn":
            warned[result.node.test_metadata.name] += result.failures or 0
    kinds = Counter((str(r.node.resource_type), str(r.status)) for r in results)
    good = {"success", "pass", "warn", "no-op"}  # no-op: an exposure, which is not built
    return Built(
        models=kinds["model", "success"],
        passed=kinds["test", "pass"],
        warned=dict(warned),
        wrong=[
            f"{r.node.name}: {r.status}. {' '.join((r.message or '').split())}"[:400]
            for r in results
            if str(r.status) not in good
        ],
    )

"""Runs `dbt build` in this process, with the loader's Spark session."""

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
        warned: the number of failing rows of each generic test that warned.
        wrong: failed and skipped nodes, with dbt's message.
    """

    models: int
    passed: int
    warned: dict[str, int]
    wrong: list[str]


def build(root: Path, folder: Path) -> Built:
    """Builds and tests all models of demo/dbt; dbt logs to `folder`/logs/dbt.log.

    Args:
        root: the repository, which is the dbt package.
        folder: the demo's folder.
    """
    from dbt.cli.main import dbtRunner  # takes three seconds

    installed = folder / "dbt_packages" / "strandline"  # as `dbt deps` installs a local package
    if not installed.exists():
        installed.parent.mkdir()
        installed.symlink_to(root, target_is_directory=True)
    paths = ["--project-dir", str(root / "demo" / "dbt"), "--profiles-dir", str(root / "profiles")]
    paths += ["--target-path", str(folder / "target"), "--log-path", str(folder / "logs")]
    command = [
        "build",
        "--target",
        "embedded",
        "--quiet",
        "--no-use-colors",
        "--no-use-colors-file",
        *paths,
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
    successful = {"success", "pass", "warn", "no-op"}  # no-op: an exposure, which is not built
    return Built(
        models=kinds["model", "success"],
        passed=kinds["test", "pass"],
        warned=dict(warned),
        wrong=[
            f"{r.node.name}: {r.status}. {' '.join((r.message or '').split())}"[:400]
            for r in results
            if str(r.status) not in successful
        ],
    )

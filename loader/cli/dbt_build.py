"""``loader run --build``: runs `dbt build` after a sync, in the same process and Spark session."""

from __future__ import annotations

import importlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.cli.console import Output
from loader.cli.results import BuildResult
from loader.errors import SpecError
from loader.spark.profile import read_profile_name
from loader.spec.redaction import excerpt, redact_foreign

if TYPE_CHECKING:
    from loader.spark.profile import Profile

_SELECTIONS = (
    *("--select", "-s", "--models", "-m", "--selector", "--exclude"),
    *("--resource-type", "--resource-types", "--exclude-resource-type", "--exclude-resource-types"),
)
_STATE_SELECTOR = re.compile(r"\b(?:state|result|source_status):")
_SUCCESS = frozenset({"success", "pass", "no-op"})
_FAILURE = frozenset({"error", "fail", "runtime error", "partial success"})
_DBT_LOGGING = ("dbt_common.events.functions", "dbt.events.logging")
_DEBUG_LEVELS = ("debug", "test")
# dbt's options whose values the spec determines, because sync and build use the same Spark session.
_FIXED_OPTIONS = {"--profile": "profile", "--target": "target", "-t": "target"}


@dataclass(frozen=True)
class Build:
    """A `dbt build` of the project next to a spec.

    Attributes:
        project: the folder of dbt_project.yml.
        arguments: the user's arguments for dbt.
    """

    project: Path
    arguments: tuple[str, ...] = ()

    @classmethod
    def create(cls, folder: Path, arguments: Sequence[str]) -> Build:
        """Returns the build that a command line describes, and starts importing dbt.

        The import takes several seconds, so it runs in the background. Raises a SpecError if dbt is
        not installed or there is no project.
        """
        project = Path(_find_option_value(arguments, "--project-dir") or folder).absolute()
        if find_spec("dbt") is None or find_spec("dbt.adapters.spark") is None:
            raise SpecError(
                "dbt-spark is not installed",
                where="--build",
                remedy="Run `pip install 'strandline[embedded]'`",
            )
        if not (project / "dbt_project.yml").is_file():
            raise SpecError(
                f"there is no dbt_project.yml in {project}",
                where="--build",
                remedy="Run `loader init` there, or set the folder: --build -- --project-dir DIR",
            )
        threading.Thread(target=_load, name="load-dbt", daemon=True).start()
        return cls(project, tuple(arguments))

    @property
    def target_path(self) -> Path:
        """The folder to which dbt writes its results, unless dbt_project.yml sets another one."""
        option = _find_option_value(self.arguments, "--target-path")
        return self.project / (option or os.environ.get("DBT_TARGET_PATH") or "target")

    def check(self, profile: Profile) -> None:
        """Raises a SpecError if the profile or target of the build differs from the loader's."""
        folder = _find_option_value(self.arguments, "--profiles-dir")
        if folder is not None and Path(folder).absolute() != profile.path.parent.absolute():
            raise SpecError(
                f"the loader's profiles.yml is in {profile.path.parent}",
                where="--build, --profiles-dir",
                remedy="Sync and build use the same Spark session: set profiles_dir in the "
                "destination of loader.yml, or run `dbt build` by itself",
            )
        expected = {"profile": profile.name, "target": profile.target}
        for option, kind in _FIXED_OPTIONS.items():
            value = _find_option_value(self.arguments, option)
            if value is not None and value != expected[kind]:
                raise SpecError(
                    f"the {kind} {value} differs from the loader's, {expected[kind]}",
                    where=f"--build, {option}",
                    remedy="Sync and build use the same Spark session: set it in the destination "
                    "of loader.yml, or run `dbt build` by itself",
                )
        name = read_profile_name(self.project)
        if (
            name is not None
            and name != profile.name
            and not _find_option_value(self.arguments, "--profile")
        ):
            raise SpecError(
                f"its profile is {name}, the loader's is {profile.name}",
                where=str(self.project / "dbt_project.yml"),
                remedy="Sync and build use the same Spark session: set the same profile in "
                "dbt_project.yml and loader.yml, or run `dbt build` by itself",
            )

    def run(self, output: Output, profile: Profile, folder: Path) -> BuildResult:
        """Runs the build, and prints its result.

        Args:
            folder: the spec's folder; `PWD` is set to it while dbt reads its profile.
        """
        began = time.monotonic()
        with _set_pwd(folder), redact_log():
            ended = _create_runner().invoke(self.command(output, profile, folder))
        results = getattr(ended.result, "results", None) or []
        # Counts all models and tests, but counts a hook only if it failed.
        by_status = Counter(
            str(result.status)
            for result in results
            if result.node.resource_type != "operation" or str(result.status) in _FAILURE
        )
        facts: dict[str, Any] = {
            "succeeded": sum(by_status[status] for status in _SUCCESS),
            "warned": by_status["warn"],
            "failed": sum(by_status[status] for status in _FAILURE),
            "skipped": by_status["skipped"],
            "seconds": round(time.monotonic() - began, 1),
        }
        counts = ", ".join(f"{facts[k]} {k}" for k in ("succeeded", "warned", "failed", "skipped"))
        failures = {
            str(result.node.unique_id): redact_foreign(str(result.message or ""))
            for result in results
            if str(result.status) in _FAILURE
        }
        seconds = {str(result.node.unique_id): result.execution_time for result in results}
        if ended.exception is not None:
            unfinished = _explain_unfinished(ended.exception)
            unfinished.__cause__ = ended.exception
            output.error(unfinished)
            return BuildResult(
                2, **facts, failures=failures, node_seconds=seconds, error=unfinished
            )
        output.table("build", tuple(facts), [tuple(facts.values())] if output.json else [])
        output.say(f"dbt build: {counts}, in {facts['seconds']} s.")
        if ended.success and not by_status and self._has_selection_by_name():
            nothing = _nothing_selected(self.arguments)
            output.error(nothing)
            return BuildResult(1, **facts, error=nothing)
        code = 0 if ended.success else 1
        return BuildResult(code, **facts, failures=failures, node_seconds=seconds)

    def _has_selection_by_name(self) -> bool:
        """Returns whether it is an error if the arguments select no nodes.

        With selectors such as `state:`, it is not an error, because there may be nothing to build.
        """
        selections = [_find_option_value(self.arguments, option) for option in _SELECTIONS]
        return any(selections) and not any(map(_STATE_SELECTOR.search, self.arguments))

    def command(self, output: Output, profile: Profile, folder: Path) -> list[str]:
        """Returns dbt's arguments.

        Passes the profile and the target only if dbt would otherwise use different ones, because
        dbt reparses the whole project if an option differs from the previous build.
        """
        # The loader's arguments come last, because dbt uses the last value of an option.
        command = ["build", *self.arguments, "--project-dir", str(self.project)]
        command += ["--profiles-dir", str(profile.path.parent.absolute())]
        if os.environ.get("DBT_PROFILE") or read_profile_name(self.project) != profile.name:
            command += ["--profile", profile.name]
        if _default_target(profile, folder) != profile.target:
            command += ["--target", profile.target]
        if output.json:
            # dbt.log stays in text format, because JSON would be seven times as large.
            command[1:1] = ["--log-format-file", "debug"]
            command += ["--log-format", "json"]
        if output.quiet:
            command.append("--quiet")
        if output.is_silent:
            command += ["--log-level", "none"]  # dbt.log keeps its own level
        if not output.out.is_terminal:
            command.append("--no-use-colors")
        return command


def _load() -> None:
    # Ignores errors: the build imports the same modules later and then reports the reason.
    with suppress(Exception):
        _create_runner()
        importlib.import_module("dbt.adapters.spark")


def _create_runner() -> Any:
    from dbt.cli.main import dbtRunner

    return dbtRunner()


@contextmanager
def _set_pwd(folder: Path) -> Iterator[None]:
    """Sets `PWD` for dbt's profile. Restores `PWD`, and the current folder, which dbt changes."""
    current, before = os.getcwd(), os.environ.get("PWD")
    os.environ["PWD"] = str(folder.absolute())
    try:
        yield
    finally:
        os.chdir(current)
        if before is None:
            del os.environ["PWD"]
        else:
            os.environ["PWD"] = before


@contextmanager
def redact_log() -> Iterator[None]:
    """Removes secrets from dbt's output and log. dbt itself removes only `DBT_ENV_SECRET_*`.

    Replaces dbt's function `env_scrubber` in the two modules that use it. Also replaces dbt's
    function that writes a line, which composes and scrubs debug events even if it does not write
    them. With `--log-format json`, this takes a sixth of a build's time.
    """
    modules: list[Any] = [importlib.import_module(name) for name in _DBT_LOGGING]
    originals = [module.env_scrubber for module in modules]
    logger: Any = importlib.import_module("dbt_common.events.logger")._Logger
    write_line = logger.write_line

    def write_enabled_line(self: Any, event: Any) -> None:
        if event.info.level not in _DEBUG_LEVELS or self.level.value in _DEBUG_LEVELS:
            write_line(self, event)

    for module, scrub in zip(modules, originals, strict=True):
        module.env_scrubber = lambda text, scrub=scrub: redact_foreign(scrub(text))
    logger.write_line = write_enabled_line
    try:
        yield
    finally:
        logger.write_line = write_line
        for module, scrub in zip(modules, originals, strict=True):
            module.env_scrubber = scrub


def _find_option_value(arguments: Sequence[str], option: str) -> str | None:
    """Returns the value of a dbt option, given as a separate word or after `=`."""
    value = None
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            value = arguments[i + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
        elif len(option) == 2 and argument.startswith(option) and len(argument) > 2:
            value = argument[2:]
    return value


def _default_target(profile: Profile, folder: Path) -> str | None:
    """Returns the target that dbt uses without --target; None if it cannot be determined."""
    from loader.spark.profile import load_profile

    try:
        default = load_profile(profile.name, None, folder, profiles_dir=str(profile.path.parent))
    except SpecError:  # the default target needs a variable that is not set
        return None
    return default.target


def _nothing_selected(arguments: Sequence[str]) -> SpecError:
    return SpecError(
        f"nothing in the project matches {' '.join(arguments)}",
        where="dbt build",
        remedy="Correct the arguments after `--`; `dbt ls` lists all nodes",
    )


def _explain_unfinished(error: BaseException) -> SpecError:
    if isinstance(error, KeyboardInterrupt):
        return SpecError(
            "it was interrupted",
            where="dbt build",
            remedy="Models that are already built stay; run it again",
        )
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return SpecError(
        excerpt(" ".join(lines[:3]), 500).rstrip(".") or type(error).__name__,
        where="dbt build",
        remedy="Correct the dbt project, or the arguments after `--`",
    )

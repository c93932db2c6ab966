"""``loader run --build``: runs `dbt build` in the process and the Spark of the run before it."""

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
from loader.errors import SpecError
from loader.spark.profile import read_profile_name
from loader.spec.redaction import excerpt, redact_foreign

if TYPE_CHECKING:
    from loader.spark.profile import Profile

_SELECTIONS = (
    *("--select", "-s", "--models", "-m", "--selector", "--exclude"),
    *("--resource-type", "--resource-types", "--exclude-resource-type", "--exclude-resource-types"),
)
_SINCE = re.compile(r"\b(?:state|result|source_status):")
_GOOD = frozenset({"success", "pass", "no-op"})
_BAD = frozenset({"error", "fail", "runtime error", "partial success"})
_DBT_LOGGING = ("dbt_common.events.functions", "dbt.events.logging")
# dbt's options that the spec has decided for this process: one Spark, one profile and target.
_OURS = {"--profile": "profile", "--target": "target", "-t": "target"}


@dataclass(frozen=True)
class Build:
    """`dbt build` of the project beside a spec.

    Attributes:
        project: the folder of dbt_project.yml.
        arguments: further ones for dbt, as they were given.
    """

    project: Path
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path, arguments: Sequence[str]) -> Build:
        """Returns the build for a command line; starts to load dbt, which takes seconds.

        Args:
            folder: the spec's.

        Raises:
            SpecError: if dbt is not installed or there is no project.
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
                remedy="Run `loader init` there, or name the folder: --build -- --project-dir DIR",
            )
        threading.Thread(target=_load, name="load-dbt", daemon=True).start()
        return cls(project, tuple(arguments))

    def check(self, profile: Profile) -> None:
        """Refuses a build on another Spark than the loader's.

        Raises:
            SpecError: names what differs.
        """
        folder = _find_option_value(self.arguments, "--profiles-dir")
        if folder is not None and Path(folder).absolute() != profile.path.parent.absolute():
            raise SpecError(
                f"the loader's profiles.yml is in {profile.path.parent}",
                where="--build, --profiles-dir",
                remedy="One process has one Spark: set profiles_dir in the destination of "
                "loader.yml, or run `dbt build` by itself",
            )
        named = {"profile": profile.name, "target": profile.target}
        for option, kind in _OURS.items():
            given = _find_option_value(self.arguments, option)
            if given is not None and given != named[kind]:
                raise SpecError(
                    f"the {kind} {given} is not the loader's, {named[kind]}",
                    where=f"--build, {option}",
                    remedy="One process has one Spark: set it in the destination of loader.yml, "
                    "or run `dbt build` by itself",
                )
        own = read_profile_name(self.project)
        if (
            own is not None
            and own != profile.name
            and not _find_option_value(self.arguments, "--profile")
        ):
            raise SpecError(
                f"its profile is {own}, the loader's is {profile.name}",
                where=str(self.project / "dbt_project.yml"),
                remedy="One process has one Spark: name the same profile in both, "
                "or run `dbt build` by itself",
            )

    def run(self, output: Output, profile: Profile, folder: Path) -> int:
        """Builds, reports; returns 0, 1 if something failed, or 2 if dbt did not finish.

        Args:
            folder: the spec's; it is the profile's `PWD`, as it was for the loader.
        """
        began = time.monotonic()
        with _at(folder), redact_log():
            ended = _runner().invoke(self.command(output, profile, folder))
        results = getattr(ended.result, "results", None) or []
        # A hook that ran well is none of the models and tests that people count.
        by_status = Counter(
            str(result.status)
            for result in results
            if result.node.resource_type != "operation" or str(result.status) in _BAD
        )
        facts = {
            "succeeded": sum(by_status[status] for status in _GOOD),
            "warned": by_status["warn"],
            "failed": sum(by_status[status] for status in _BAD),
            "skipped": by_status["skipped"],
            "seconds": round(time.monotonic() - began, 1),
        }
        counts = ", ".join(f"{facts[k]} {k}" for k in ("succeeded", "warned", "failed", "skipped"))
        if ended.exception is not None:
            output.error(_explain_unfinished(ended.exception))
            return 2
        output.table("build", tuple(facts), [tuple(facts.values())] if output.json else [])
        output.say(f"dbt build: {counts}, in {facts['seconds']} s.")
        if ended.success and not by_status and self._has_selection_by_name():
            output.error(_nothing_selected(self.arguments))
            return 1
        return 0 if ended.success else 1

    def _has_selection_by_name(self) -> bool:
        """Whether dbt was to build something; what has changed since may be nothing."""
        chosen = [_find_option_value(self.arguments, option) for option in _SELECTIONS]
        return any(chosen) and not any(_SINCE.search(one) for one in self.arguments)

    def command(self, output: Output, profile: Profile, folder: Path) -> list[str]:
        """Returns dbt's arguments.

        A profile or a target on the command line makes dbt parse the whole project again, if the
        `dbt build` before it had none, and again the other way round. So they are given only if dbt
        would choose others.
        """
        # Ours come last: the last one counts.
        command = ["build", *self.arguments, "--project-dir", str(self.project)]
        command += ["--profiles-dir", str(profile.path.parent.absolute())]
        if os.environ.get("DBT_PROFILE") or read_profile_name(self.project) != profile.name:
            command += ["--profile", profile.name]
        if _default_target(profile, folder) != profile.target:
            command += ["--target", profile.target]
        if output.json:
            command += ["--log-format", "json"]
        if output.quiet:
            command.append("--quiet")
        if not output.out.is_terminal:
            command.append("--no-use-colors")
        return command


def _load() -> None:
    # If loading fails, the build itself reports why.
    with suppress(Exception):
        _runner()
        importlib.import_module("dbt.adapters.spark")


def _runner() -> Any:
    from dbt.cli.main import dbtRunner

    return dbtRunner()


@contextmanager
def _at(folder: Path) -> Iterator[None]:
    """Sets `PWD`, which the profile reads; restores it and the folder, which dbt changes."""
    here, before = os.getcwd(), os.environ.get("PWD")
    os.environ["PWD"] = str(folder.absolute())
    try:
        yield
    finally:
        os.chdir(here)
        if before is None:
            del os.environ["PWD"]
        else:
            os.environ["PWD"] = before


@contextmanager
def redact_log() -> Iterator[None]:
    """Removes secrets from what dbt prints and from its log; it removes those of `DBT_ENV_SECRET_`.

    dbt takes its own function for that from these two modules, and no other.
    """
    modules: list[Any] = [importlib.import_module(name) for name in _DBT_LOGGING]
    own = [module.env_scrubber for module in modules]
    for module, scrub in zip(modules, own, strict=True):
        module.env_scrubber = lambda text, scrub=scrub: redact_foreign(scrub(text))
    try:
        yield
    finally:
        for module, scrub in zip(modules, own, strict=True):
            module.env_scrubber = scrub


def _find_option_value(arguments: Sequence[str], option: str) -> str | None:
    """Returns the value of one of dbt's options, written as two words or with `=`."""
    found = None
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            found = arguments[i + 1]
        elif argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
        elif len(option) == 2 and argument.startswith(option) and len(argument) > 2:
            found = argument[2:]
    return found


def _default_target(profile: Profile, folder: Path) -> str | None:
    """Returns the target that dbt chooses if none is given; None if it is unknown."""
    from loader.spark.profile import load_profile

    try:
        found = load_profile(profile.name, None, folder, profiles_dir=str(profile.path.parent))
    except SpecError:  # its default target needs a variable that is not set
        return None
    return found.target


def _nothing_selected(arguments: Sequence[str]) -> SpecError:
    return SpecError(
        f"nothing in the project matches {' '.join(arguments)}",
        where="dbt build",
        remedy="Correct the arguments after `--`; `dbt ls` lists what there is",
    )


def _explain_unfinished(error: BaseException) -> SpecError:
    if isinstance(error, KeyboardInterrupt):
        return SpecError(
            "it was interrupted",
            where="dbt build",
            remedy="What was built stays; run it again",
        )
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return SpecError(
        excerpt(" ".join(lines[:3]), 500).rstrip(".") or type(error).__name__,
        where="dbt build",
        remedy="Correct the dbt project, or the arguments after `--`",
    )

"""The global options, and the spec, profile and Spark that every command opens with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from loader.cli.console import Output
from loader.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loader.spark.profile import Profile
    from loader.spec.plugins import LakeOptions
    from loader.spec.spec import Spec
    from loader.sync.pipeline import Pipeline
    from loader.sync.status_readers import StatusReaders

Result = TypeVar("Result")


@dataclass
class Settings:
    """The global options, which stand before a command."""

    config: Path = Path("loader.yml")
    form: str = "text"
    quiet: bool = False
    debug: bool = False
    output: Output = field(default_factory=Output)
    profile: Profile | None = None
    master: str | None = None  # instead of the profile's own

    def spec(self, needs_source: bool = True) -> Spec:
        """Reads the spec; from then on its secrets are removed from all output."""
        from loader.spec.spec import load_spec

        spec = load_spec(self.config, needs_source=needs_source)
        self.output.redact = spec.redactor.redact
        return spec


@contextmanager
def open_pipeline(settings: Settings, spec: Spec | None = None) -> Iterator[Pipeline]:
    """Opens the spec, its profile and Spark, in that order: cheap mistakes are reported first."""
    spec = spec or settings.spec()
    profile = _begin_java(settings, spec)
    from loader.sync.pipeline import Pipeline  # takes a while, in which Java starts

    yield Pipeline(spec, _start_spark(settings, profile))


@contextmanager
def open_pipeline_with_served(settings: Settings, spec: Spec | None = None) -> Iterator[Pipeline]:
    """Opens the same for commands that also look at what `loader serve` has appended.

    Raises:
        LoaderError: if there is no source, neither in the spec nor in its lakes.
    """
    with open_pipeline(settings, spec or settings.spec(needs_source=False)) as pipeline:
        from loader.sync.pushed_tables import add_served

        def warn(where: str, text: str) -> None:
            settings.output.warning(f"{where}: {text}", about=where)

        add_served(pipeline, str(settings.config), warn)
        yield pipeline


def read_progress(settings: Settings, read: Callable[[Sequence[StatusReaders]], Result]) -> Result:
    """Reads state and ledger: in a local folder without Spark, otherwise by a Spark of one thread.

    Args:
        read: reads what a command needs. It may be called twice, so it prints nothing.

    Raises:
        LoaderError: as :func:`open_pipeline_with_served` does.
    """
    from loader.lake.folder_tables import SparkNeededError
    from loader.spark.profile import refuse_moved_project
    from loader.sync.status_readers import list_readers_by_spark, list_readers_in_folder

    spec = settings.spec(needs_source=False)
    profile = profile_of(settings, spec)
    refuse_moved_project(profile, spec.folder)
    with suppress(SparkNeededError):
        return read(list_readers_in_folder(spec, profile))
    settings.master = "local[1]"
    with open_pipeline_with_served(settings, spec) as pipeline:
        return read(list_readers_by_spark(pipeline))


def restart_pipeline(settings: Settings, pipeline: Pipeline) -> Pipeline:
    """Starts Spark again after its JVM has ended; returns the pipeline of the same spec on it."""
    from loader.spark.jvm import forget_ended
    from loader.sync.pipeline import Pipeline

    assert settings.profile is not None
    forget_ended()
    again = Pipeline(pipeline.spec, _start_spark(settings, settings.profile))
    again.paused_sources = pipeline.paused_sources
    return again


def profile_of(settings: Settings, spec: Spec) -> Profile:
    """Loads the target whose Spark a spec is for.

    Raises:
        SpecError: if it does not exist, or the destinations of the spec's sources name several.
    """
    from loader.spark.profile import load_profile
    from loader.spec.plugins import LakeDestination

    lakes = [spec.destination(source.destinations[0]).lake for source in spec.sources]
    if not lakes:
        # of several, the first: `loader serve` writes there, too, by default
        lakes = [one.lake for one in spec.destinations if isinstance(one, LakeDestination)][:1]
    if not lakes:
        raise SpecError(
            "there is neither a source nor a lake",
            where=str(settings.config),
            remedy="Add a document with `kind: source` and a destination with `path: spark`",
        )
    first = lakes[0]
    for lake in lakes:
        if (lake.profile, lake.target) != (first.profile, first.target):
            raise SpecError(
                "the sources' destinations name different profiles or targets",
                where=str(settings.config),
                remedy="Put them into two specs: one process has one Spark",
            )
    profile = load_profile(
        first.profile, first.target, spec.folder, first.profiles_dir, redactor=spec.redactor
    )
    if settings.master is None:
        return profile
    return replace(profile, conf={**profile.conf, "spark.master": settings.master})


def open_session(settings: Settings, spec: Spec, lake: LakeOptions) -> SparkSession:
    """Opens the Spark of one destination."""
    from loader.spark.profile import load_profile

    profile = load_profile(
        lake.profile, lake.target, spec.folder, lake.profiles_dir, redactor=spec.redactor
    )
    return _start_spark(settings, profile)


def _begin_java(settings: Settings, spec: Spec) -> Profile:
    """Begins to start Java, and reports mistakes in connectors' options while it does."""
    from loader.spark.profile import refuse_moved_project
    from loader.spark.session import begin
    from loader.spark.setup import provide_jars

    profile = profile_of(settings, spec)
    refuse_moved_project(profile, spec.folder)
    urls = [str(source.spec.get("url")) for source in spec.sources if source.path == "jdbc"]
    provide_jars(profile.conf, urls, settings.output.say)
    begin(profile)
    from loader.sources.entry_points import find_connector

    for source in spec.sources:
        source.options(find_connector(source.path, f"{source.where}.path").options_model)
    refuse_two_readers(spec)
    return profile


def refuse_two_readers(spec: Spec) -> None:
    """Refuses sources that would read what has one reader.

    Raises:
        SpecError: names both.
    """
    from loader.sources.entry_points import find_connector

    taken: dict[tuple[str, ...], str] = {}
    for source in spec.sources:
        found = find_connector(source.path, f"{source.where}.path")
        alone = found.find_exclusive_resource(source.name, source.options(found.options_model))
        if alone is None:
            continue
        other = taken.setdefault((source.path, *alone.identity), source.name)
        if other != source.name:
            raise SpecError(
                f"the source {other} reads {alone.shown}, too",
                where=f"{source.where}.spec.{alone.option}",
                remedy=f"Name another `{alone.option}` in one of them",
            )


def _start_spark(settings: Settings, profile: Profile) -> SparkSession:
    from loader.spark.named_steps import step
    from loader.spark.session import SUBSTITUTION, session, silence_drivers

    settings.profile = profile
    if profile.conf.get(SUBSTITUTION, "false").lower() != "false":
        settings.output.warning(
            f"{profile.path}, target {profile.target}: {SUBSTITUTION} is on, and the loader turns "
            "it off for itself: anybody who names a column in a source could read the environment. "
            'Set it to "false" for dbt, too'
        )
    with step("starting Spark"):
        spark = session(profile)
    # Spark logs the stack trace of every failed task; our error shows it once.
    spark.sparkContext.setLogLevel("WARN" if settings.debug else "OFF")
    if settings.debug:
        silence_drivers(spark)
    return spark

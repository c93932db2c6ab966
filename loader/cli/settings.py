"""The global options, and functions that open spec, profile and Spark for a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
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

LOCAL = "local[1]"
"""The Spark master of commands that need no executors, because they use only a few rows."""


@dataclass
class Settings:
    """The global options, which precede the command.

    Attributes:
        profile: dbt's profile; None until Spark is started.
        master: overrides the profile's ``spark.master``.
    """

    config: Path = Path("loader.yml")
    output: Output = field(default_factory=Output)
    profile: Profile | None = None
    master: str | None = None

    def spec(self, needs_source: bool = True) -> Spec:
        """Reads the spec, and redacts its secrets in all later output."""
        from loader.spec.spec import load_spec

        spec = load_spec(self.config, needs_source=needs_source)
        self.output.redact = spec.redactor.redact
        return spec


@contextmanager
def open_pipeline(settings: Settings, spec: Spec | None = None) -> Iterator[Pipeline]:
    """Opens spec, profile and Spark in this order, so mistakes are found before Spark starts."""
    spec = spec or settings.spec()
    profile = _begin_java(settings, spec)
    from loader.sync.pipeline import Pipeline  # this import is slow, so Java starts in the meantime

    spark = _start_spark(settings, profile)
    from loader.spark.executors import report_shortage, runs_on_cluster

    with report_shortage(settings.output.warning) if runs_on_cluster(spark) else nullcontext():
        yield Pipeline(spec, spark)


@contextmanager
def open_pipeline_with_pushed_tables(
    settings: Settings, spec: Spec | None = None
) -> Iterator[Pipeline]:
    """Opens a pipeline that includes the tables that other programs have pushed.

    Raises a LoaderError if neither the spec nor its lakes contain a source.
    """
    with open_pipeline(settings, spec or settings.spec(needs_source=False)) as pipeline:
        from loader.sync.pushed_tables import add_pushed_tables

        def warn(where: str, text: str) -> None:
            settings.output.warning(f"{where}: {text}", about=where)

        add_pushed_tables(pipeline, str(settings.config), warn)
        yield pipeline


def read_progress(settings: Settings, read: Callable[[Sequence[StatusReaders]], Result]) -> Result:
    """Reads state and ledger. Starts Spark with one thread, unless both are in a local folder.

    `read` may be called twice, so it must not print. Raises a LoaderError in the same cases as
    :func:`open_pipeline_with_pushed_tables`.
    """
    from loader.lake.folder_tables import SparkNeededError
    from loader.spark.profile import refuse_moved_project
    from loader.sync.status_readers import list_readers_by_spark, list_readers_in_folder

    spec = settings.spec(needs_source=False)
    profile = profile_of(settings, spec)
    refuse_moved_project(profile, spec.folder)
    with suppress(SparkNeededError):
        return read(list_readers_in_folder(spec, profile))
    settings.master = LOCAL
    with open_pipeline_with_pushed_tables(settings, spec) as pipeline:
        return read(list_readers_by_spark(pipeline))


def restart_pipeline(settings: Settings, pipeline: Pipeline) -> Pipeline:
    """Restarts Spark after its JVM has exited, and returns a pipeline for the same spec."""
    from loader.spark.jvm import forget_ended
    from loader.sync.pipeline import Pipeline

    assert settings.profile is not None
    forget_ended()
    restarted = Pipeline(pipeline.spec, _start_spark(settings, settings.profile))
    restarted.paused_sources = pipeline.paused_sources
    return restarted


def reopen_without_executors(settings: Settings, pipeline: Pipeline) -> Pipeline:
    """Stops Spark, and returns a pipeline for the same spec with a local Spark session."""
    from loader.sync.pipeline import Pipeline

    assert settings.profile is not None
    pipeline.spark.stop()
    settings.master = LOCAL
    conf = {**settings.profile.conf, "spark.master": LOCAL}
    return Pipeline(pipeline.spec, _start_spark(settings, replace(settings.profile, conf=conf)))


def profile_of(settings: Settings, spec: Spec) -> Profile:
    """Loads the target of dbt's profile that a spec's sources use.

    Raises a SpecError if the target does not exist, or the spec's sources use several targets.
    """
    from loader.spark.profile import load_profile
    from loader.spec.plugins import LakeDestination

    lakes = [spec.destination(source.destinations[0]).lake for source in spec.sources]
    if not lakes:
        # The first lake is also the default for commands that push tables.
        lakes = [lake.lake for lake in spec.destinations if isinstance(lake, LakeDestination)][:1]
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
                "the sources' destinations use different profiles or targets",
                where=str(settings.config),
                remedy="Split the spec: one process can use only one Spark session",
            )
    profile = load_profile(
        first.profile, first.target, spec.folder, first.profiles_dir, redactor=spec.redactor
    )
    if settings.master is None:
        return profile
    return replace(profile, conf={**profile.conf, "spark.master": settings.master})


def open_session(settings: Settings, spec: Spec, lake: LakeOptions) -> SparkSession:
    from loader.spark.profile import load_profile

    profile = load_profile(
        lake.profile, lake.target, spec.folder, lake.profiles_dir, redactor=spec.redactor
    )
    return _start_spark(settings, profile)


def _begin_java(settings: Settings, spec: Spec) -> Profile:
    """Starts Java in the background, and validates connector options in the meantime."""
    from loader.spark.profile import find_misspelt_variables, refuse_moved_project
    from loader.spark.session import begin
    from loader.spark.setup import provide_jars

    profile = profile_of(settings, spec)
    refuse_moved_project(profile, spec.folder)
    text = ""
    with suppress(OSError):  # a program may build the spec without a file
        text = settings.config.read_text(encoding="utf-8", errors="replace")
    for name, known in find_misspelt_variables(profile, text, os.environ).items():
        settings.output.warning(f"nothing reads the variable {name}. Did you mean `{known}`?")
    urls = [str(source.spec.get("url")) for source in spec.sources if source.path == "jdbc"]
    provide_jars(profile.conf, urls, settings.output.say)
    begin(profile)
    from loader.sources.entry_points import find_connector

    for source in spec.sources:
        source.options(find_connector(source.path, f"{source.where}.path").options_model)
    refuse_two_readers(spec)
    return profile


def refuse_two_readers(spec: Spec) -> None:
    """Raises a SpecError if two sources use the same exclusive resource, such as a slot."""
    from loader.sources.entry_points import find_connector

    readers: dict[tuple[str, ...], str] = {}
    for source in spec.sources:
        connector = find_connector(source.path, f"{source.where}.path")
        options = source.options(connector.options_model)
        resource = connector.find_exclusive_resource(source.name, options)
        if resource is None:
            continue
        other = readers.setdefault((source.path, *resource.identity), source.name)
        if other != source.name:
            raise SpecError(
                f"the source {other} also reads {resource.shown}",
                where=f"{source.where}.spec.{resource.option}",
                remedy=f"Set a different `{resource.option}` in one of the two sources",
            )


def _start_spark(settings: Settings, profile: Profile) -> SparkSession:
    from loader.spark.named_steps import step
    from loader.spark.session import SUBSTITUTION, session, silence_drivers

    settings.profile = profile
    if profile.conf.get(SUBSTITUTION, "false").lower() != "false":
        settings.output.warning(
            f"{profile.path}, target {profile.target}: {SUBSTITUTION} is on. The loader turns it "
            "off, because a column's name in a source could otherwise read environment variables. "
            'Also set it to "false" for dbt'
        )
    with step("starting Spark"):
        spark = session(profile)
    # Spark logs the stack trace of every failed task; the loader's error contains it once.
    spark.sparkContext.setLogLevel("WARN" if settings.output.debug else "OFF")
    if settings.output.debug:
        silence_drivers(spark)
    return spark

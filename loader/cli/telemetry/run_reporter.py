"""Produces the reports on finished runs that options and environment variables request."""

from __future__ import annotations

import datetime as dt
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loader.cli.console import list_names
from loader.cli.results import RunResult, TableStatus

if TYPE_CHECKING:
    from loader.cli.dbt_build import Build
    from loader.cli.report import ReportWriter
    from loader.cli.settings import Settings
    from loader.cli.telemetry.openlineage import OpenLineage
    from loader.cli.telemetry.opentelemetry import OpenTelemetry
    from loader.cli.telemetry.webhook import Webhook
    from loader.sync.pipeline import Pipeline
    from loader.sync.run_context import Watch
    from loader.sync.runner import Outcome

PAUSE = 300.0
"""After a failed report, a loop waits this many seconds before it retries this kind of report."""


class RunReporter:
    """Writes metrics and the page of `loader report`, exports traces, and sends messages.

    Makes only the reports that are requested. If a report fails, prints a warning, because the rows
    are already published.

    Args:
        metrics_file: the file for Prometheus; None for no file.
        page: the file for the page of `loader report`; None for no page.

    Raises:
        SpecError: if the file for Prometheus is not writable, or if a variable is invalid.
    """

    def __init__(
        self,
        settings: Settings,
        metrics_file: Path | None,
        page: Path | None,
        environment: Mapping[str, str],
    ) -> None:
        self._output = settings.output
        self._metrics_file = metrics_file
        self._opentelemetry: OpenTelemetry | None = None
        self._openlineage: OpenLineage | None = None
        self._webhook: Webhook | None = None
        self._page: ReportWriter | None = None
        self._outcomes: dict[str, Outcome] = {}  # the outcomes of this run
        self._paused: dict[str, float] = {}  # maps a kind of report to the time of its next attempt
        if page is not None:
            from loader.cli.report import ReportWriter

            self._page = ReportWriter(settings, page)
        if metrics_file is not None:
            from loader.cli.telemetry.metrics import check_writable

            check_writable(metrics_file)
        if _wants_opentelemetry(environment):
            self._opentelemetry = self._create_opentelemetry()
        if _wants_openlineage(environment):
            self._openlineage = self._create_openlineage(environment)
        if any(name.startswith("STRANDLINE_WEBHOOK_") for name in environment):
            from loader.cli.telemetry.webhook import Webhook

            self._webhook = Webhook.from_environment(environment, settings.config)

    def use_target(self, build: Build) -> None:
        """Makes the page show the results in the target folder of a dbt build."""
        if self._page is not None:
            self._page.target_path = build.target_path

    def follow(self, watch: Watch, done: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """Starts the trace of a run. Returns the function to call for each finished table."""

        def end(outcome: Outcome) -> None:
            self._outcomes[outcome.table] = outcome
            done(outcome)

        return self._opentelemetry.follow(watch, end) if self._opentelemetry is not None else end

    def report(self, pipeline: Pipeline, result: RunResult, seconds: float) -> None:
        """Reports a finished run. `seconds` is the duration of the run, including its build."""
        outcomes, self._outcomes = self._outcomes, {}
        lineage, webhook, page = self._openlineage, self._webhook, self._page
        if lineage is not None:
            events, unknown = lineage.build_events(pipeline, outcomes.values())
            if unknown:
                self._output.warning(f"OpenLineage: no events about {list_names(unknown)}")
            self._attempt("OpenLineage", pipeline, lambda: lineage.send(events))
        if self._metrics_file is not None or self._opentelemetry is not None:
            self._report_metrics(pipeline, result, seconds)
        if page is not None:
            page.write_after_run(pipeline)
        if webhook is not None:
            self._attempt("webhook", pipeline, lambda: webhook.report(result))

    def _report_metrics(self, pipeline: Pipeline, result: RunResult, seconds: float) -> None:
        from loader.cli.telemetry.metrics import measure, write_file

        now = dt.datetime.now(dt.timezone.utc)
        samples = measure(result, self._read_statuses(pipeline), seconds, now)
        path, opentelemetry = self._metrics_file, self._opentelemetry
        if path is not None:
            try:
                write_file(path, samples)
            except OSError as error:
                self._output.warning(f"the metrics were not written to {path}: {error.strerror}")
        if opentelemetry is not None:
            opentelemetry.end_run(samples, str(result.errors[0]) if result.errors else None)
            self._attempt("OpenTelemetry", pipeline, opentelemetry.send)

    def _attempt(self, kind: str, pipeline: Pipeline, report: Callable[[], object]) -> None:
        """Sends a report. After a failure, warns and pauses this kind of report for a while."""
        if time.monotonic() < self._paused.get(kind, 0.0):
            return
        try:
            report()
        except Exception as error:
            self._paused[kind] = time.monotonic() + PAUSE
            what = pipeline.redact_error(error, kind).what
            self._output.warning(f"{kind}: the report was not sent: {what}")

    def _read_statuses(self, pipeline: Pipeline) -> list[TableStatus]:
        from loader.cli.status import list_last_attempts
        from loader.sync.status_readers import list_readers_by_spark

        try:
            rows = list_last_attempts(list_readers_by_spark(pipeline))
        except Exception as error:
            what = pipeline.redact_error(error, "ledger").what
            self._output.warning(f"the metrics of tables are missing: {what}")
            return []
        return [TableStatus(*row) for row in rows if pipeline.spec.may_contain(row[0])]

    def _create_opentelemetry(self) -> OpenTelemetry | None:
        packages = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        if not self._is_installed("OpenTelemetry", packages):
            return None
        from loader.cli.telemetry.opentelemetry import OpenTelemetry

        return OpenTelemetry()

    def _create_openlineage(self, environment: Mapping[str, str]) -> OpenLineage | None:
        if not self._is_installed("OpenLineage", ("openlineage.client",)):
            return None
        from loader.cli.telemetry.openlineage import OpenLineage

        try:
            return OpenLineage(environment.get("OPENLINEAGE_NAMESPACE") or "strandline")
        except Exception as error:  # its text may contain a URL with a password
            self._output.warning(
                "OpenLineage is not used, because its client cannot be configured "
                f"({type(error).__name__}): check OPENLINEAGE_URL or OPENLINEAGE_CONFIG"
            )
            return None

    def _is_installed(self, name: str, packages: Sequence[str]) -> bool:
        """Returns whether packages are installed, and warns if not.

        A missing package is not an error, because the variables may be set for all programs on a
        machine.
        """
        try:
            missing = [each for each in packages if importlib.util.find_spec(each) is None]
        except ModuleNotFoundError:
            missing = list(packages)
        if missing:
            self._output.warning(
                f"{name} is not used, because the package {missing[0]} is not installed: "
                f"pip install 'strandline[{name.lower()}]'"
            )
        return not missing


def _wants_opentelemetry(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    signals = ("", "_TRACES", "_METRICS")
    return any(environment.get(f"OTEL_EXPORTER_OTLP{signal}_ENDPOINT") for signal in signals)


def _wants_openlineage(environment: Mapping[str, str]) -> bool:
    if environment.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return False
    return any(
        name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG") or name.startswith("OPENLINEAGE__")
        for name in environment
    )

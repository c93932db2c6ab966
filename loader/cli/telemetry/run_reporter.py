"""Reports each finished run as the options and the environment request it."""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loader.cli.results import RunResult, TableStatus
from loader.errors import LoaderError

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

_WEBHOOK = "STRANDLINE_WEBHOOK_URL"


class RunReporter:
    """Writes the page of `loader report` and metrics, exports traces, and sends messages.

    Does nothing unless requested.

    A failed report is a warning, because the rows are published.

    Args:
        metrics_file: the file for Prometheus; None for no file.
        page: the file for the page of `loader report`; None for no page.

    Raises:
        SpecError: if the file cannot be written or a variable is invalid.
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
        self._outcomes: dict[str, Outcome] = {}  # those of this run
        self._page: ReportWriter | None = None
        if page is not None:
            from loader.cli.report import ReportWriter

            self._page = ReportWriter(settings, page)
        if metrics_file is not None:
            from loader.cli.telemetry.prometheus_file import check_writable

            check_writable(metrics_file)
        if any(name.startswith("OTEL_EXPORTER_OTLP") for name in environment):
            self._opentelemetry = self._create_opentelemetry(environment)
        if any(name.startswith("OPENLINEAGE") for name in environment):
            self._openlineage = self._create_openlineage(environment)
        if environment.get(_WEBHOOK):
            from loader.cli.telemetry.webhook import Webhook

            self._webhook = Webhook.from_environment(environment)

    def prepare(self, pipeline: Pipeline, build: Build | None) -> None:
        """Reads what failed before this run, which the webhook needs to report changes only."""
        if build is not None and self._page is not None:
            self._page.target_path = build.target_path
        if self._webhook is None:
            return
        from loader.cli.telemetry.webhook import list_failing, read_failed_nodes

        statuses = ((each.table, each.status) for each in self._read_statuses(pipeline))
        self._webhook.failing = list_failing(statuses)
        if build is not None:
            self._webhook.failing |= read_failed_nodes(build.target_path)

    def follow(self, watch: Watch, done: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """Begins the trace of a run. Returns the function to call for each finished table."""

        def end(outcome: Outcome) -> None:
            self._outcomes[outcome.table] = outcome
            done(outcome)

        return self._opentelemetry.follow(watch, end) if self._opentelemetry is not None else end

    def report(self, pipeline: Pipeline, result: RunResult, seconds: float) -> None:
        """Reports a finished run.

        Args:
            seconds: the time that the run took, with its build.
        """
        outcomes, self._outcomes = self._outcomes, {}
        if self._openlineage is not None:
            try:
                self._openlineage.send(pipeline, outcomes.values())
            except Exception as error:
                what = pipeline.redact_error(error, "OpenLineage").what
                self._output.warning(f"the OpenLineage events were not sent: {what}")
        if self._metrics_file is not None or self._opentelemetry is not None:
            self._report_metrics(pipeline, result, seconds)
        if self._page is not None:
            self._page.write_after_run(pipeline)
        if self._webhook is not None:
            changes, failing = self._webhook.find_changes(result)
            try:
                if changes:
                    self._webhook.send(changes)
                self._webhook.failing = failing
            except LoaderError as error:
                self._output.warning(str(error))

    def _report_metrics(self, pipeline: Pipeline, result: RunResult, seconds: float) -> None:
        from loader.cli.telemetry.metrics import measure

        now = dt.datetime.now(dt.timezone.utc)
        samples = measure(result, self._read_statuses(pipeline), seconds, now)
        if self._metrics_file is not None:
            from loader.cli.telemetry.prometheus_file import write_file

            try:
                write_file(self._metrics_file, samples)
            except OSError as error:
                self._output.warning(
                    f"the metrics were not written to {self._metrics_file}: {error.strerror}"
                )
        if self._opentelemetry is not None:
            error_text = str(result.errors[0]) if result.errors else None
            self._opentelemetry.end_run(samples, error_text)

    def _read_statuses(self, pipeline: Pipeline) -> list[TableStatus]:
        from loader.cli.status import list_last_attempts
        from loader.sync.status_readers import list_readers_by_spark

        try:
            rows = list_last_attempts(list_readers_by_spark(pipeline))
        except Exception as error:
            what = pipeline.redact_error(error, "ledger").what
            self._output.warning(f"the metrics of tables are missing: {what}")
            return []
        return [TableStatus(*row) for row in rows]

    def _create_opentelemetry(self, environment: Mapping[str, str]) -> OpenTelemetry | None:
        packages = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        if not self._is_installed("OpenTelemetry", packages):
            return None
        from loader.cli.telemetry.opentelemetry import OpenTelemetry, is_requested

        return OpenTelemetry() if is_requested(environment) else None

    def _create_openlineage(self, environment: Mapping[str, str]) -> OpenLineage | None:
        if not self._is_installed("OpenLineage", ("openlineage.client",)):
            return None
        from loader.cli.telemetry.openlineage import OpenLineage, is_requested

        if not is_requested(environment):
            return None
        namespace = environment.get("OPENLINEAGE_NAMESPACE")
        return OpenLineage(namespace) if namespace else OpenLineage()

    def _is_installed(self, name: str, packages: Sequence[str]) -> bool:
        """Returns whether packages are installed, and warns if not.

        The variables may be set for all programs of a machine, so this is not an error.
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

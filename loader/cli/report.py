"""``loader report``: writes one HTML page that shows whether tables and tests are in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, TypeVar

import click

from loader.cli.console import escape_invisible
from loader.cli.options import read_duration
from loader.cli.settings import LOCAL, Settings, open_pipeline, profile_of, read_progress
from loader.errors import LoaderError

if TYPE_CHECKING:
    from loader.report.history import SourceHistory
    from loader.report.proofs import Proof
    from loader.sync.pipeline import Pipeline
    from loader.sync.status_readers import StatusReaders

Read = TypeVar("Read")

DAYS = 30
_REFRESH = 15
_PORT = 8686
_PAGE = "report.html"


@click.command(short_help="Writes a page that shows the state of tables and tests.")
@click.option(
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The file to write; default {_PAGE}. Not with --serve.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3660),
    default=DAYS,
    show_default=True,
    help="How many days the report covers.",
)
@click.option(
    "--stale-after",
    metavar="AGE",
    callback=read_duration,
    help="Report a table as stale if its last successful sync is older: '26h'. Default: three "
    "times the usual interval between its syncs.",
)
@click.option(
    "--target-path",
    type=click.Path(file_okay=False, path_type=Path),
    help="dbt's target folder, with run_results.json. Default: DBT_TARGET_PATH, or `target` next "
    "to loader.yml.",
)
@click.option(
    "--keys/--no-keys",
    default=True,
    help="Run the SQL of failing tests again to show the keys of failing rows. This starts Spark.",
)
@click.option(
    "--serve", is_flag=True, help="Show the page on this machine, and keep it up to date."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"With --serve: the port; default {_PORT}."
)
@click.pass_obj
def report(
    settings: Settings,
    path: Path | None,
    days: int,
    stale_after: float | None,
    target_path: Path | None,
    keys: bool,
    serve: bool,
    port: int | None,
) -> None:
    """Writes one HTML file about tables, proofs and comparisons. It needs no server or network.

    With --serve, serves the page at a local address and writes no file.
    """
    if port is not None and not serve:
        raise click.UsageError("--port requires --serve.")
    if path is not None and serve:
        raise click.UsageError("--serve writes no file: remove --output.")
    path = path or Path(_PAGE)
    writer = ReportWriter(settings, path, days, stale_after, target_path, keys)
    if serve:
        _serve(writer, _PORT if port is None else port)
        return
    sentence = writer.write()
    settings.output.event("report", "", path=str(path), sentence=sentence)
    settings.output.say(f"{sentence} The report is in {path}.")


def check_writable(path: Path) -> None:
    """Raises a LoaderError if no file can be created in the folder of `path`."""
    try:
        TemporaryFile(dir=path.absolute().parent).close()
    except OSError as error:
        raise _build_write_error(path, error) from None


def replace_page(path: Path, page: str) -> None:
    """Replaces an HTML page atomically, so that readers never see a partial page.

    Raises a LoaderError if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise _build_write_error(path, error) from None


def _build_write_error(path: Path, error: OSError) -> LoaderError:
    return LoaderError(
        f"it cannot be written: {error.strerror}",
        where=str(path),
        remedy="Choose a file in an existing folder",
    )


@dataclass
class ReportWriter:
    """Collects and writes the report.

    Attributes:
        days: the number of days that the report covers.
        stale_after: the age in seconds at which a table becomes stale. If None, it is derived from
            the usual interval between the table's syncs.
        target_path: dbt's target folder; None means the default.
        keys: whether to read the keys of failing rows.
    """

    settings: Settings
    path: Path
    days: int = DAYS
    stale_after: float | None = None
    target_path: Path | None = None
    keys: bool = True

    def __post_init__(self) -> None:
        # The time of the dbt results whose failing rows were last read, and the proofs with these
        # rows.
        self._explained: tuple[str, Sequence[Proof]] = ("", ())

    def write_after_run(self, pipeline: Pipeline) -> None:
        """Writes the file after a run. If this fails, only prints a warning."""
        try:
            self.write(pipeline)
        except Exception as error:
            readable = pipeline.redact_error(error, "report")
            self.settings.output.warning(f"no report was written: {readable}")

    def write(self, pipeline: Pipeline | None = None) -> str:
        """Writes the file, and returns the verdict. Uses the Spark of a run's pipeline."""
        page, sentence = self.render(pipeline)
        replace_page(self.path, page)
        return sentence

    def render(
        self, pipeline: Pipeline | None = None, refresh: int | None = None
    ) -> tuple[str, str]:
        from loader.report.contents import build_report, choose_periods
        from loader.report.history import read_history
        from loader.report.page import render_page
        from loader.report.proofs import (
            add_stored_proofs,
            find_unexplained,
            read_results,
            read_stored_proofs,
        )

        now = time.time_ns() // 1000
        since, length = choose_periods(now, self.days)
        results = read_results(self._find_target())

        def read(readers: Sequence[StatusReaders]) -> tuple[list[SourceHistory], list[Proof]]:
            stored = read_stored_proofs(readers, results)
            return read_history(readers, since, length), stored

        histories, stored = self._read(read, pipeline)
        if results is not None and self.keys and find_unexplained(results):
            # The SQL of a test may be slow, so it runs only once after each build.
            if self._explained[0] != results.at:
                self._explained = results.at, self._read_keys(results.proofs, pipeline)
            results = replace(results, proofs=self._explained[1])
        results = add_stored_proofs(results, stored)
        found = build_report(histories, results, now, since, length, self.stale_after)
        redact = self.settings.output.redact
        config = str(self.settings.config)
        page = render_page(found, lambda text: escape_invisible(redact(text)), config, refresh)
        return page, found.sentence

    def _read(
        self,
        read: Callable[[Sequence[StatusReaders]], Read],
        pipeline: Pipeline | None,
    ) -> Read:
        from loader.lake.folder_tables import SparkNeededError
        from loader.sync.status_readers import list_readers_by_spark, list_readers_in_folder

        if pipeline is None:
            return read_progress(self.settings, read)
        assert self.settings.profile is not None
        with suppress(SparkNeededError):
            return read(list_readers_in_folder(pipeline.spec, self.settings.profile))
        return read(list_readers_by_spark(pipeline))

    def _read_keys(self, proofs: Sequence[Proof], pipeline: Pipeline | None) -> Sequence[Proof]:
        from loader.report.proofs import read_failing_rows

        if pipeline is not None:
            return read_failing_rows(pipeline.spark, proofs)
        spec = self.settings.spec(needs_source=False)
        if (
            not profile_of(self.settings, spec)
            .conf.get("spark.master", "local")
            .startswith("local")
        ):
            self.settings.master = LOCAL  # a few rows need no cluster
        with open_pipeline(self.settings, spec) as opened:
            return read_failing_rows(opened.spark, proofs)

    def _find_target(self) -> Path:
        if self.target_path is not None:
            return self.target_path
        folder = self.settings.config.absolute().parent
        return folder / (os.environ.get("DBT_TARGET_PATH") or "target")


def _serve(writer: ReportWriter, port: int) -> None:
    from loader.cli.signals import stop_on_signal
    from loader.report.serve import HOST, ReportServer

    writer.render()  # reports mistakes before a browser is opened
    output = writer.settings.output

    def render() -> str:
        try:
            return writer.render(refresh=_REFRESH)[0]
        except LoaderError as error:
            output.error(error)
            raise

    try:
        server = ReportServer(port, render, _REFRESH - 5)
    except OSError as error:
        raise LoaderError(
            f"the port cannot be used: {error.strerror}",
            where=f"{HOST}:{port}",
            remedy="Choose another port with --port, or 0 for any free port",
        ) from None
    output.event("listening", f"The report is at {server.address}", address=server.address)
    with server, stop_on_signal(server.shutdown, lambda: None):
        server.serve_forever()

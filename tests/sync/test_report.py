"""`loader report` shows the same contents of a ledger, whether it is read with Spark or not."""

from __future__ import annotations

import datetime as dt
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.cli.daemon import Daemon
from loader.cli.run_once import RunRequest
from loader.cli.settings import Settings, open_pipeline
from loader.cli.telemetry.run_reporter import RunReporter
from loader.lake.ledger import FAILED, LOCKED, NOTHING_NEW, SYNCED, Ledger, SyncRecord, now
from loader.reconcile.history import VerificationHistory, VerifiedBucket
from loader.report.history import DAY, HOUR, read_history
from loader.spark.profile import load_profile
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.status_readers import list_readers_by_spark, list_readers_in_folder
from tests.sync.project import ROOT, Project
from tests.sync.test_daemon import Script


@pytest.fixture(scope="module")
def drop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A source of files with two tables, one of which fails."""
    project = Project(tmp_path_factory.mktemp("report"), spark, "raw_of_report")
    for name, text in {"orders": "id\n1\n2\n", "broken": "id\nx\n"}.items():
        folder = project.folder / "data" / name
        folder.mkdir(parents=True)
        (folder / "one.csv").write_text(text)
    options = {name: {"column_types": "id int"} for name in ("orders", "broken")}
    own = {"path": "data", "format": "csv", "table_options": options}
    project.add("drop", "file", list(options), own)
    return project


def test_before_the_first_run(drop: Project) -> None:
    page = _write_report(drop)
    assert page.count("Nothing has been synced yet: run `loader run`.") == 1
    assert "<svg" not in page


def test_a_run_writes_the_same_report_as_the_command(drop: Project) -> None:
    path = drop.folder / "run.html"
    assert drop.loader("run", "--report", str(path)).code == 1  # a table fails
    for page in (path.read_text(), _write_report(drop)):
        assert _find_summary(page) == "Something is wrong: 1 table fails."
        assert re.search(r"drop\.broken</a> has never been synced successfully", page)
        assert "up to date" in page
    # If the report cannot be written, the run warns, and its exit code does not change.
    nowhere = drop.loader(
        "run", "-s", "drop.orders", "--report", str(drop.folder / "no" / "r.html")
    )
    assert nowhere.code == 0
    assert "no report was written" in nowhere.warnings[-1]
    assert drop.loader("report", "--output", str(drop.folder / "no" / "r.html")).errors == [
        f"{drop.folder / 'no' / 'r.html'}: it cannot be written: No such file or directory. "
        "Choose a file in an existing folder"
    ]
    assert not list(drop.folder.glob(".*.html*"))


def test_the_daemon_writes_a_report_after_each_round(drop: Project) -> None:
    path, found = drop.folder / "loop.html", list[bool]()

    def record_and_delete() -> None:
        found.append(path.exists())
        path.unlink(missing_ok=True)

    script = Script([record_and_delete, record_and_delete, record_and_delete])
    settings = Settings(drop.folder / "loader.yml", output=script)
    with open_pipeline(settings) as pipeline:
        reporter = RunReporter(settings, None, path, {})
        request = RunRequest(select=("drop.orders",), reporter=reporter)
        Daemon(settings, pipeline, request, every=script.every, stopped=script.stop).run()
    assert found == [False, True, True]


def test_invalid_arguments_and_dbt_results_are_reported(drop: Project) -> None:
    assert "--port requires --serve" in drop.loader("report", "--port", "1").text
    assert "remove --output" in drop.loader("report", "--serve", "--output", "r.html").text
    for option in ("--report", "--metrics-file"):
        assert f"remove {option}" in drop.loader("run", "--dry-run", option, "r.html").text
    assert drop.loader("report", "--days", "0").code == 2
    (drop.folder / "target").mkdir(exist_ok=True)
    (drop.folder / "target" / "run_results.json").write_text("{")
    [error] = drop.loader("report", "--output", str(drop.folder / "r.html")).errors
    assert error.startswith(f"{drop.folder}/target/run_results.json: dbt's results cannot be read")
    (drop.folder / "target" / "run_results.json").unlink()


def test_both_readers_return_the_same_totals(drop: Project) -> None:
    some = random.Random(5)
    began = now() - dt.timedelta(days=9)
    syncs, buckets = [], []
    for number in range(400):
        at = began + dt.timedelta(microseconds=some.randrange(9 * DAY))
        status = some.choice((SYNCED, NOTHING_NEW, FAILED, LOCKED))
        syncs.append(
            SyncRecord(
                "run",
                "drop",
                some.choice(("orders", "broken", "großes")),
                status=status,
                rows_appended=some.choice((None, 0, 10**10)),
                rows_redelivered=some.choice((None, 3)),
                rows_below_cursor=some.choice((None, 2)),
                rows_at_cursor=some.choice((None, 1)),
                rows_cursor_unmoved=some.choice((None, 1)),
                started_at=some.choice((None, at - dt.timedelta(seconds=some.randrange(9)))),
                finished_at=at,
                schema_changes=some.choice((None, "added x int")),
                error=some.choice(("it is down", "out of\nspace")) if status == FAILED else None,
                complete_until=some.choice(
                    (
                        None,
                        at - dt.timedelta(seconds=9),
                        dt.datetime(1970, 1, 2, tzinfo=dt.timezone.utc),
                    )
                ),
            )
        )
        buckets.append(
            VerifiedBucket(
                "run",
                "drop",
                "orders",
                number % 4,
                4,
                at,
                rows_source=9,
                rows_snapshot=9,
                missed_updates=some.choice((0, 5)),
                missed_deletes=some.choice((0, 1)),
                repaired=some.choice((True, False)),
                batch=some.choice((None, 7)),
            )
        )
    Ledger(drop.lake()).append_all(syncs)
    VerificationHistory(drop.lake()).append(buckets)

    spec = load_spec(drop.folder / "loader.yml", needs_source=False)
    profile = load_profile("strandline", None, ROOT, str(ROOT / "profiles"))
    for length, days in ((HOUR, 2), (DAY, 5)):
        since = (round(began.timestamp() * 1e6) + (9 - days) * DAY) // length * length
        [folder] = read_history(list_readers_in_folder(spec, profile), since, length)
        [spark] = read_history(list_readers_by_spark(Pipeline(spec, drop.spark)), since, length)
        assert [*map(_as_text, folder.syncs)] == [*map(_as_text, spark.syncs)]
        assert folder.comparisons == spark.comparisons
        assert folder.newest == spark.newest
        in_time = [r for r in syncs if r.finished_at and r.finished_at.timestamp() * 1e6 >= since]
        expected = sum(record.rows_appended or 0 for record in in_time)
        # An earlier test has appended the two rows of the CSV file.
        assert sum(each.rows_appended for each in folder.syncs) == expected + 2
        unknown = {each.lag for each in folder.syncs} - {9_000_000}
        assert unknown == {None}
        repaired = sum(each.repaired for each in folder.comparisons)
        assert repaired == sum(
            bucket.all_repaired
            for bucket in buckets
            if bucket.verified_at.timestamp() * 1e6 >= since
        )


def _as_text(each: Any) -> str:
    return str(each)


def _write_report(project: Project) -> str:
    path = project.folder / "report.html"
    ran = project.loader("report", "--output", str(path))
    assert ran.code == 0, ran.text
    [event] = ran.events
    page = Path(event["path"]).read_text(encoding="utf-8")
    assert event["sentence"].replace("`", "") in page.replace("`", "")
    return page


def _find_summary(page: str) -> str:
    [sentence] = re.findall(r"<h1.*<span>(.+?)</span></h1>", page)
    return str(sentence)

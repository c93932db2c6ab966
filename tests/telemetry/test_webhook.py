"""A webhook receives one message when something starts to fail, and one when it recovers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loader.cli.results import BuildResult, RunResult, TableResult
from loader.cli.telemetry import webhook
from loader.cli.telemetry.webhook import Changes, Webhook
from loader.errors import LoaderError, SpecError, TableError
from tests.services import Database
from tests.sync.project import Project
from tests.telemetry.receiver import Receiver, receive


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receive() as receiver:
        monkeypatch.setenv(webhook.URL, f"{receiver.url}/services/s3cret-token")
        yield receiver


def _bodies(receiver: Receiver) -> list[Any]:
    return [json.loads(body) for body in receiver.bodies]


def test_a_failure_and_a_recovery_are_each_sent_once(
    shop: Project, postgres_database: Database, receiver: Receiver
) -> None:
    shop.run()
    postgres_database.execute("alter table orders drop column version")
    for _ in range(2):  # like two processes, each run loads what is failing from the file
        assert shop.loader("run").code == 1
    [failed] = _bodies(receiver)
    assert list(failed["failed"]) == ["shop.orders"]
    assert "version" in failed["failed"]["shop.orders"]
    assert failed["recovered"] == []
    assert failed["text"].startswith("Strandline: 1 failing\nshop.orders fails: ")
    postgres_database.execute("alter table orders add column version bigint default 9")
    shop.run()
    shop.run()
    [_, recovered] = _bodies(receiver)
    assert recovered["recovered"] == ["shop.orders"]
    assert recovered["text"] == "Strandline: 1 recovered\nshop.orders has recovered"


def test_a_message_that_is_not_accepted_is_a_warning_without_the_url(
    shop: Project,
    postgres_database: Database,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop.run()
    postgres_database.execute("alter table orders drop column version")
    receiver.answers = [404]
    ran = shop.loader("run")
    assert ran.code == 1
    reported = "webhook: the report was not sent: "
    assert f"{reported}the server responded with status 404" in ran.warnings
    monkeypatch.setenv(webhook.URL, "http://127.0.0.1:9/s3cret-token")
    again = shop.loader("run")  # the message was not sent, so it is tried again
    assert f"{reported}ConnectionError" in again.warnings
    for text in (ran.text, again.text):
        assert "s3cret" not in text


def test_a_request_to_an_overloaded_server_is_repeated(receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    Webhook(receiver.url).send(Changes({"shop.orders": "an error"}, ()))
    assert len(receiver.bodies) == 3


def test_slack_gets_its_format(receiver: Receiver) -> None:
    slack = Webhook.from_environment(
        {webhook.URL: "https://hooks.slack.com/services/T/B/x"}, Path("loader.yml")
    )
    assert slack is not None
    assert slack.form == "slack"
    assert "services" not in repr(slack)
    Webhook(receiver.url, "slack").send(Changes({"shop.orders": "an error"}, ("shop.items",)))
    [body] = _bodies(receiver)
    assert body == {
        "text": "Strandline: 1 failing, 1 recovered\nshop.orders fails: an error\n"
        "shop.items has recovered"
    }


def test_a_daemon_sends_changes_of_tables_sources_and_the_build() -> None:
    hook = Webhook("http://localhost")
    error = TableError("it is gone", where="table shop.orders")
    failed = TableResult("shop.orders", "failed", error=error)
    source = TableError("it is down", where="source crm")

    def changes(result: RunResult) -> tuple[list[str], list[str]]:
        found, hook.failing = hook.find_changes(result)
        return sorted(found.failed), sorted(found.recovered)

    red = BuildResult(1, failed=1, failures={"test.a": "1 row"}, node_seconds={"test.a": 0.1})
    skipped = BuildResult(1, failed=1, failures={"test.b": "1"}, node_seconds={"test.a": 0.0})
    green = BuildResult(0, node_seconds={"test.a": 0.1, "test.b": 0.1})
    assert changes(RunResult((failed,), (error, source), red)) == (
        ["shop.orders", "source crm", "test.a"],
        [],
    )
    assert changes(RunResult((failed,), (error, source), red)) == ([], [])
    locked = TableResult("shop.orders", "locked", error=error)
    assert changes(RunResult((locked,), (error,), skipped)) == (["test.b"], [])
    fine = TableResult("shop.orders", "nothing new")
    crm = TableResult("crm.deals", "synced")
    assert changes(RunResult((fine, crm), (), green)) == (
        [],
        ["shop.orders", "source crm", "test.a", "test.b"],
    )


def test_a_source_that_is_paused_has_not_recovered() -> None:
    hook = Webhook("http://localhost", failing={"source crm", "runs.orders"})
    other = TableResult("shop.orders", "nothing new")
    assert not hook.find_changes(RunResult((other,)))[0]
    back = TableResult("crm.deals", "synced")
    assert hook.find_changes(RunResult((back,)))[0].recovered == ("source crm",)


def test_a_damaged_file_of_failures_is_ignored(tmp_path: Path) -> None:
    variables = {webhook.URL: "http://localhost"}
    (tmp_path / ".strandline").mkdir()
    (tmp_path / ".strandline" / "failing.json").write_text("{")
    hook = Webhook.from_environment(variables, tmp_path / "loader.yml")
    assert hook is not None
    assert hook.failing == set()
    hook.failing = {"shop.orders"}
    hook.report(RunResult((TableResult("shop.items", "synced"),)))
    assert hook.failing == {"shop.orders"}


@pytest.mark.parametrize("url", ["https://hooks..slack.com/s3cret", "http://[::1/s3cret"])
def test_an_unusable_url_is_an_error_that_does_not_show_it(url: str, tmp_path: Path) -> None:
    def send() -> None:
        hook = Webhook.from_environment({webhook.URL: url}, tmp_path / "loader.yml")
        assert hook is not None
        hook.send(Changes({"shop.orders": "an error"}, ()))

    with pytest.raises(LoaderError) as raised:
        send()
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({webhook.URL: "hooks.slack.com/s3cret"}, webhook.URL),
        ({webhook.URL: "https://x/s3cret", webhook.FORMAT: "teams"}, webhook.FORMAT),
    ],
)
def test_invalid_variables_are_named_without_the_url(variables: dict[str, str], where: str) -> None:
    with pytest.raises(SpecError) as raised:
        Webhook.from_environment(variables, Path("loader.yml"))
    assert raised.value.where == where
    assert "s3cret" not in str(raised.value)


def test_a_long_list_is_shortened() -> None:
    text = Changes({f"shop.t{i}": "e" for i in range(30)}, ()).format_text()
    assert text.splitlines()[-1] == "and 10 more changes"
    assert len(text.splitlines()) == 22

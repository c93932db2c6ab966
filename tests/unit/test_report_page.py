"""The report's page runs only its own scripts, and its server answers only local requests."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import loader.report
from loader.report.contents import Report
from loader.report.page import render_page
from loader.report.serve import ReportServer
from tests.report.simulation import REPORTS, report_of_a_year, report_with_incidents

VENDOR = Path(loader.report.__file__).parent / "vendor"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'><!--{{ 7*7 }}"


class _Page(HTMLParser):
    """Collects the tags and the scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":  # type: ignore[attr-defined]
            self.scripts[-1] += data
        self.text.append(data)


def _poison(value: Any) -> Any:
    """Returns the report with every text from a source or from dbt made hostile."""
    if isinstance(value, str):
        return value if value in ("", "good", "warn", "bad", "none") else HOSTILE + value
    if isinstance(value, list | tuple):
        return type(value)(map(_poison, value))
    if is_dataclass(value) and not isinstance(value, type):
        kept = ("id", "kind", "level", "state", "status", "strip", "series", "totals", "at")
        changed = {
            each.name: _poison(getattr(value, each.name))
            for each in fields(value)
            if each.name not in kept
        }
        return replace(value, **changed)
    return value


def test_hostile_text_is_escaped() -> None:
    report = report_with_incidents()
    plain, poisoned = _Page(render_page(report)), _Page(render_page(_poison(report), spec=HOSTILE))
    assert poisoned.tags == plain.tags
    assert poisoned.scripts == plain.scripts
    assert "alert(1)" not in "".join(poisoned.scripts)
    assert not [name for name, _ in poisoned.attributes if name.startswith("on")]
    text = "".join(poisoned.text)
    assert text.count(HOSTILE) > 30


def test_secrets_are_removed_from_all_text() -> None:
    """Every text on the page passes through the function that removes secrets."""
    report = _poison(report_with_incidents())
    page = render_page(report, lambda text: text.replace("alert(1)", "[masked]"), HOSTILE)
    assert "[masked]" in page
    assert "alert(1)" not in page


def test_the_policy_allows_only_the_scripts_of_the_page() -> None:
    text = render_page(report_of_a_year())
    page = _Page(text)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    data, *scripts = page.scripts
    for script in scripts:
        digest = hashlib.sha256(script.encode()).digest()
        assert f"'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; ")
    assert json.loads(data)["step"] == 86400
    assert not [name for name, _ in page.attributes if name == "style"]
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", text)


@pytest.mark.parametrize("name", REPORTS)
def test_every_page_has_one_summary_and_valid_links(name: str) -> None:
    report = REPORTS[name]()
    page = render_page(report)
    assert page.count("<h1") == 1
    assert report.sentence.replace("`", "") in page.replace("`", "")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_no_script_contains_a_closing_tag() -> None:
    for path in (VENDOR / "uPlot.iife.min.js", VENDOR.parent / "page.js"):
        assert "</script" not in path.read_text(encoding="utf-8").lower()
        assert "<!--" not in path.read_text(encoding="utf-8")


def test_vendored_files_are_unchanged() -> None:
    listed = dict(
        reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines()
    )
    assert {path.name for path in VENDOR.iterdir()} == {*listed, "README.md", "SHA256SUMS"}
    for name, checksum in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == checksum


@pytest.fixture
def server() -> Iterator[ReportServer]:
    """A server whose page shows how often it was rendered before. The third rendering fails."""
    count = iter(range(100))

    def render() -> str:
        number = next(count)
        if number == 2:
            raise RuntimeError("the lake is gone: secret")
        return f"page {number}"

    with ReportServer(0, render, refresh=3600) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()


def _get(server: ReportServer, host: str | None = None, path: str = "/") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    headers = {} if host is None else {"Host": host}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_server_answers_only_requests_to_this_machine(server: ReportServer) -> None:
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert _get(server) == (200, "page 0")
    assert _get(server, f"localhost:{port}") == (200, "page 0")
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "", f"127.0.0.1.x:{port}"):
        assert _get(server, host)[0] == 403, host
    assert _get(server, path="/loader.yml")[0] == 404


def test_the_server_renders_again_when_the_page_is_old(server: ReportServer) -> None:
    assert [_get(server)[1] for _ in range(2)] == ["page 0", "page 0"]
    server._refresh = 0
    assert _get(server) == (200, "page 1")
    status, text = _get(server)
    assert (status, "secret" in text) == (503, False)
    assert _get(server) == (200, "page 3")


def test_a_served_page_refreshes_itself() -> None:
    def data(report: Report, refresh: int | None) -> dict[str, Any]:
        page = render_page(report, refresh=refresh)
        found: dict[str, Any] = json.loads(_Page(page).scripts[0])
        return found

    assert data(report_of_a_year(), 15)["refresh"] == 15
    assert data(report_of_a_year(), None)["refresh"] is None

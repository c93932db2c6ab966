"""Sends a message to a webhook when tables or builds start to fail, and when they recover.

``STRANDLINE_WEBHOOK_URL`` contains the URL, and ``STRANDLINE_WEBHOOK_FORMAT`` the format of the
body, ``json`` or ``slack``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from loader.cli.results import BuildResult, RunResult
from loader.errors import LoaderError, SpecError
from loader.formatting import format_count
from loader.lake.ledger import FAILED, LOCKED
from loader.spec.redaction import excerpt

URL = "STRANDLINE_WEBHOOK_URL"
FORMAT = "STRANDLINE_WEBHOOK_FORMAT"

_FORMATS = ("json", "slack")
_SLACK_HOST = "hooks.slack.com"
_TIMEOUT = 10  # seconds
_RETRY = Retry(
    total=3,
    backoff_factor=1,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("POST",),
    raise_on_status=False,
    respect_retry_after_header=False,  # a server could request a pause of several hours
)
_MOST_LINES = 20
_BUILD = "dbt build"
_FILE = Path(".strandline") / "failing.json"


@dataclass(frozen=True)
class Changes:
    """The tables and dbt nodes that started to fail (with their errors) or that recovered."""

    failed: Mapping[str, str]
    recovered: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.failed or self.recovered)

    def format_text(self) -> str:
        """Returns a summary, followed by a line for each of the first changes."""
        lines = [f"{name} fails: {error}" for name, error in self.failed.items()]
        lines += [f"{name} has recovered" for name in self.recovered]
        counts = []
        if self.failed:
            counts.append(f"{len(self.failed)} failing")
        if self.recovered:
            counts.append(f"{len(self.recovered)} recovered")
        more = len(lines) - _MOST_LINES
        if more > 0:
            lines[_MOST_LINES:] = [f"and {format_count(more, 'more change')}"]
        return "\n".join([f"Strandline: {', '.join(counts)}", *lines])


@dataclass
class Webhook:
    """A webhook, and the tables and dbt nodes that were failing after the previous run.

    Attributes:
        file: the file that stores `failing` for the next process.
    """

    url: str = field(repr=False)
    form: str = "json"
    file: Path | None = None
    failing: set[str] = field(default_factory=set)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], spec: Path) -> Webhook | None:
        """Returns the webhook that the environment configures; None if there is none.

        Args:
            spec: the path of loader.yml. The names of failing tables and nodes are stored in its
                folder.

        Raises:
            SpecError: if a variable is invalid. The message does not contain the URL, which is a
                secret.
        """
        url = environment.get(URL, "")
        if not url:
            return None
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SpecError(
                "it is not a URL that begins with http:// or https://",
                where=URL,
                remedy="Copy the webhook's URL from the program that receives it",
            )
        default = "slack" if parts.hostname == _SLACK_HOST else "json"
        form = environment.get(FORMAT) or default
        if form not in _FORMATS:
            raise SpecError(
                f"{form!r} is not a format",
                where=FORMAT,
                remedy=f"Set {' or '.join(_FORMATS)}",
            )
        file = spec.absolute().parent / _FILE
        failing: set[str] = set()
        with suppress(OSError, ValueError):  # nothing has been stored yet, or the file is damaged
            failing = set(map(str, json.loads(file.read_text(encoding="utf-8"))))
        return cls(url, form, file, failing)

    def report(self, result: RunResult) -> None:
        """Sends a message if a table or dbt node started to fail or recovered.

        Raises:
            LoaderError: if the message was not accepted. The next run sends it again.
            OSError: if the names of failing tables and nodes cannot be stored.
        """
        changes, failing = self.find_changes(result)
        if changes:
            self.send(changes)
        if failing != self.failing:
            self.failing = failing
            if self.file is not None:
                self.file.parent.mkdir(exist_ok=True)
                self.file.write_text(json.dumps(sorted(failing)), encoding="utf-8")

    def find_changes(self, result: RunResult) -> tuple[Changes, set[str]]:
        """Returns the changes since the previous run, and the names of everything now failing."""
        errors = {
            table.table: _describe(table.error) for table in result.tables if table.status == FAILED
        }
        known = {id(table.error) for table in result.tables}
        errors |= {
            error.where: _describe(error) for error in result.errors if id(error) not in known
        }
        passed = {table.table for table in result.tables if table.status not in (FAILED, LOCKED)}
        if result.build is not None:
            errors |= _list_build_errors(result.build)
            if result.build.error is None:
                # A skipped node takes no time.
                passed |= {name for name, time in result.build.node_seconds.items() if time > 0}
                passed.add(_BUILD)
        # A source that is paused, or whose tables are unknown, has no tables in the result.
        passed |= {f"source {table.table.partition('.')[0]}" for table in result.tables}
        passed |= {"run"} if not result.errors else set()
        recovered = (self.failing & passed) - errors.keys()
        new = {name: text for name, text in errors.items() if name not in self.failing}
        return Changes(new, tuple(sorted(recovered))), (self.failing - recovered) | errors.keys()

    def send(self, changes: Changes) -> None:
        """Posts a message, and retries if the server is overloaded or unreachable.

        Raises a LoaderError, without the URL, if the message was not accepted.
        """
        text = changes.format_text()
        body: dict[str, Any] = {"text": text}
        if self.form == "json":
            body |= {"failed": dict(changes.failed), "recovered": list(changes.recovered)}
        with requests.Session() as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(max_retries=_RETRY))
            try:
                # Does not read the body of the response, which could be endless.
                with session.post(
                    self.url, json=body, timeout=_TIMEOUT, allow_redirects=False, stream=True
                ) as answer:
                    if answer.status_code < 300:
                        return
                    what = f"the server responded with status {answer.status_code}"
            except (requests.RequestException, HTTPError, ValueError) as error:
                what = type(error).__name__  # the text contains the URL
        raise LoaderError(
            what,
            where=URL,
            remedy="Check the URL, and that this machine can reach its server",
        )


def _list_build_errors(build: BuildResult) -> dict[str, str]:
    if build.error is not None:
        return {_BUILD: _describe(build.error)}
    return {name: _shorten(text) for name, text in build.failures.items()}


def _describe(error: LoaderError | None) -> str:
    return _shorten(str(error)) if error is not None else ""


def _shorten(text: str) -> str:
    return excerpt(" ".join(text.split()), 500)

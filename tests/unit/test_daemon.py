"""The daemon (`run --every`): error reports, backoff, and reloading the spec."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loader.cli import daemon as looping
from loader.cli.daemon import Daemon, backoff_seconds
from loader.cli.dbt_build import _find_option_value
from loader.errors import LoaderError, SpecError, TableError
from loader.spec.spec import load_spec
from loader.sync.runner import Outcome


class _Output:
    """Records what the daemon reports.

    Attributes:
        errors: all reported errors.
        failed: the tables that failed in the last round.
    """

    def __init__(self) -> None:
        self.redact = str
        self.errors: list[LoaderError] = []
        self.failed: list[str] = []

    def error(self, error: LoaderError) -> None:
        self.errors.append(error)

    def event(self, kind: str, text: str, **facts: Any) -> None:
        self.failed = facts.get("failed", self.failed)


def _loop(secret: str = "") -> tuple[Daemon, _Output]:
    output: Any = _Output()
    redactor = SimpleNamespace(redact=lambda text: text.replace(secret or "\0", "***"))
    spec = SimpleNamespace(redactor=redactor, sources=(SimpleNamespace(name="shop"),))
    pipeline: Any = SimpleNamespace(spec=spec, paused_sources=frozenset())
    settings: Any = SimpleNamespace(output=output)
    wanted: Any = SimpleNamespace(build=None)
    return Daemon(settings, pipeline, wanted, 1.0), output


def test_all_errors_of_a_source_are_reported() -> None:
    loop, output = _loop()
    wrong = [
        Outcome(
            "source shop, tables", source="shop", error=TableError(f"no {t}", where="source shop")
        )
        for t in ("ordrs", "custmers")
    ]
    for _ in range(2):
        assert loop._report_round(1, wrong, None, 0.1)
        assert [error.what for error in output.errors] == ["no ordrs", "no custmers"]
        assert len(output.failed) == 2


def test_two_sources_of_a_reloaded_spec_cannot_share_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each source would advance the slot past changes that the other has not read."""
    one = """
kind: source
spec:
  name: {name}
  path: jdbc
  tables: [orders]
  destinations: [lake]
  spec: {{url: "jdbc:postgresql://h/shop", table_options: {{orders: {{sync_mode: cdc}}}}}}
---
"""
    lake = "kind: destination\nspec: {name: lake, path: spark, spec: {profile: strandline}}\n"
    text = one.format(name="my-shop") + one.format(name="my_shop") + lake
    (tmp_path / "loader.yml").write_text(text)
    loop, _ = _loop()
    loop.settings.profile = None
    monkeypatch.setattr(looping, "profile_of", lambda *_: None)
    with pytest.raises(
        SpecError, match="my-shop also reads the replication slot strandline_my_shop"
    ):
        loop._rebuild_pipeline(load_spec(tmp_path / "loader.yml"))


def test_secrets_of_the_running_spec_stay_hidden() -> None:
    loop, output = _loop("s3cret")
    loop._redacts = [str] * 4
    assert output.redact("the key s3cret") == "the key ***"


@pytest.mark.parametrize(
    ("failures", "every", "seconds"),
    [(1, 30, 30), (2, 30, 60), (4, 30, 240), (5, 30, 300), (5000, 0.5, 300), (7, 3600, 3600)],
)
def test_the_backoff_grows_to_five_minutes_or_one_interval(
    failures: int, every: float, seconds: float
) -> None:
    assert backoff_seconds(failures, every) == seconds


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["--select", "x"], None),
        (["--target", "prod"], "prod"),
        (["--target=prod"], "prod"),
        (["-t", "prod"], "prod"),
        (["-tprod"], "prod"),
        (["-t", "dev", "-tprod"], "prod"),
        (["-t"], None),
    ],
)
def test_every_way_to_set_a_target_is_recognised(arguments: list[str], target: str | None) -> None:
    assert (
        _find_option_value(arguments, "--target") or _find_option_value(arguments, "-t")
    ) == target

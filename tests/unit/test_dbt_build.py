"""`loader run --build`: the arguments passed to dbt, and no secrets in dbt's output."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dbt_common.events.logger import _JsonLogger

from loader.cli.console import Output
from loader.cli.dbt_build import Build, _create_runner, redact_log
from loader.spark.profile import Profile, load_profile
from loader.spec.redaction import Redactor

PROFILES = """\
shop:
  target: "{{ env_var('SHOP_TARGET', 'dev') }}"
  outputs:
    dev: {type: spark, method: session, host: NA, schema: mart}
    prod: {type: spark, method: session, host: NA, schema: mart}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DBT_PROFILE", "DBT_TARGET", "SHOP_TARGET"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "profiles.yml").write_text(PROFILES)
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    return tmp_path


def given(project: Path, profile: Profile) -> list[str]:
    return Build(project).command(Output(), profile, project)


def test_dbt_gets_no_profile_and_no_target_that_it_chooses_itself(project: Path) -> None:
    """With these options, a later `dbt build` without them would parse the whole project again."""
    command = given(project, load_profile("shop", None, project))
    assert "--profiles-dir" in command
    assert not {"--profile", "--target"} & set(command)


def test_dbt_prints_json_and_logs_text(project: Path) -> None:
    """As JSON, dbt.log would be seven times as large."""
    profile = load_profile("shop", None, project)
    arguments = ("--log-format-file", "json")
    command = Build(project, arguments).command(Output("json"), profile, project)
    formats = [value for option, value in pairwise(command) if option == "--log-format-file"]
    assert formats == ["debug", "json"], "the user's option comes last, so that dbt uses it"
    assert command[command.index("--log-format") + 1] == "json"


def test_dbt_gets_a_target_that_it_would_not_choose(project: Path) -> None:
    command = given(project, load_profile("shop", "prod", project))
    assert command[command.index("--target") + 1] == "prod"
    assert "--profile" not in command


@pytest.mark.parametrize("named", ["profile: other", "profile: \"{{ env_var('P') }}\"", ""])
def test_dbt_gets_the_profile_if_its_project_does_not_name_it(project: Path, named: str) -> None:
    (project / "dbt_project.yml").write_text(f"name: shop\n{named}\n")
    command = given(project, load_profile("shop", None, project))
    assert command[command.index("--profile") + 1] == "shop"


def test_a_variable_of_dbt_does_not_choose_another_profile(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBT_PROFILE", "other")
    command = given(project, load_profile("shop", None, project))
    assert command[command.index("--profile") + 1] == "shop"


def test_a_variable_of_dbt_that_names_the_target_counts_for_both(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBT_TARGET", "prod")
    assert "--target" not in given(project, load_profile("shop", None, project))
    command = given(project, load_profile("shop", "dev", project))
    assert command[command.index("--target") + 1] == "dev"


@pytest.mark.parametrize("is_json", [False, True])
def test_what_dbt_prints_and_logs_has_no_secret(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_json: bool,
) -> None:
    composed = _record_composed_lines(monkeypatch)
    redactor = Redactor()
    redactor.add("q7-secret")
    (project / "models").mkdir()
    model = "{{ log('it is q7-secret of shop', info=true) }} select 1 as id"
    (project / "models/a.sql").write_text(model)
    config = "name: shop\nprofile: shop\nversion: '1.0.0'\nconfig-version: 2\n"
    (project / "dbt_project.yml").write_text(config)
    command = ["parse", "--project-dir", str(project), "--profiles-dir", str(project)]
    command += ["--log-path", str(project / "logs"), "--no-use-colors", "--no-partial-parse"]
    if is_json:
        command += ["--log-format-file", "debug", "--log-format", "json"]
    with redact_log():
        assert _create_runner().invoke(command).success
    log = (project / "logs/dbt.log").read_text()
    assert not log.lstrip().startswith("{")
    for text in (capsys.readouterr().out, log):
        assert "it is *** of shop" in text
        assert "q7-secret" not in text
    assert composed == ({"info"} if is_json else set())


def _record_composed_lines(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns a set to which the level of every event that dbt writes as JSON will be added."""
    levels: set[str] = set()
    create_line = _JsonLogger.create_line

    def record(self: _JsonLogger, event: Any) -> str:
        levels.add(event.info.level)
        return str(create_line(self, event))

    monkeypatch.setattr(_JsonLogger, "create_line", record)
    return levels

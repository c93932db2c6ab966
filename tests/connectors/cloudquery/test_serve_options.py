"""`loader serve` listens where only its user may connect; child processes see no secrets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import pytest

from loader.cdc.debezium import launcher
from loader.connectors.cloudquery import bridge_server
from loader.connectors.cloudquery.serve import choose_address, serve
from loader.errors import SpecError
from loader.spark import temporary_files
from loader.spark.child_environment import child_environment


def test_it_listens_where_only_this_user_may_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_files, "home_folder", lambda: tmp_path)
    place = Path(choose_address(None, "unix").removeprefix("unix:"))
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert place.is_relative_to(tmp_path)
    place.parent.chmod(0o777)
    with pytest.raises(SpecError, match="others may write to"):
        choose_address(None, "unix")


def test_a_port_needs_an_option() -> None:
    """A port has no owner: every user of the machine can connect to it and write rows."""
    for address in ("localhost:7778", "127.0.0.1:0", ":7778", "[::1]:7778"):
        with pytest.raises(SpecError, match="--network tcp"):
            choose_address(address, "unix")
        assert choose_address(address, "tcp") == address
    assert choose_address(None, "tcp") == "localhost:7778"
    assert choose_address("cq-abc.sock", "unix") == "unix:cq-abc.sock"
    assert choose_address("/run/a:1", "unix") == "unix:/run/a:1"


def test_an_idle_timeout_is_a_duration() -> None:
    assert (
        serve.make_context("serve", ["--idle-timeout", "90 minutes"]).params["idle_timeout"] == 5400
    )
    assert serve.make_context("serve", []).params["idle_timeout"] == 3600
    for text in ("", "x", "0 s", "-1 hour", "7"):
        with pytest.raises(click.BadParameter, match="duration"):
            serve.make_context("serve", ["--idle-timeout", text])


def test_child_processes_see_no_secrets_of_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hidden")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Da=b")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    script = tmp_path / "python"
    code = (
        "import json, os; print(json.dumps({'listening': dict(os.environ)}), flush=True); input()"
    )
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    script.chmod(0o755)
    with bridge_server.start_bridge_server("unix:x", str(script), 1.0) as bridge:
        seen: Any = bridge.address
    for environment in (seen, child_environment(), launcher._build_environment()):
        assert "SHOP_PASSWORD" not in environment
        assert environment["HTTPS_PROXY"] == "http://proxy:3128"
    assert "JAVA_TOOL_OPTIONS" not in seen
    assert launcher._build_environment()["JAVA_TOOL_OPTIONS"] == "-Da=b"

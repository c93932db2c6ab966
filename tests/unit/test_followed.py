"""A snapshot whose tables are read in two ways passes every question on."""

from __future__ import annotations

import inspect

from loader.sources import Snapshot
from loader.sources.jdbc.cdc.composite_snapshot import FollowedSnapshot
from loader.sources.jdbc.cdc.log import Log
from loader.sources.jdbc.snapshot import JdbcSnapshot


def _own(kind: type[Snapshot]) -> set[str]:
    asked = {name for name, _ in inspect.getmembers(Snapshot, inspect.isfunction)}
    return {name for name in asked if getattr(kind, name) is not getattr(Snapshot, name)}


def test_what_either_answers_is_passed_on() -> None:
    assert _own(Log) | _own(JdbcSnapshot) <= _own(FollowedSnapshot)
    assert "more" in _own(Log)

"""A connector's state may contain values of masked columns, so it is stored encrypted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.connectors.program import Program, items


def _configure(program: Program, key: str | None, *fields: str, state: str = "STREAM") -> None:
    masked = {"mask": {"name": "hash"}, "primary_key": "name"}
    program.configure(
        config={"state_fields": fields, "state": state},
        table_options={"items": masked if key else {}},
    )
    if key is not None:
        program.project.sources[-1]["mask_key"] = key
        program.project.write()


def _find(folder: Path, text: bytes) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if text in path.read_bytes()]


@pytest.mark.parametrize("state", ["STREAM", "GLOBAL"])
def test_states_are_encrypted_with_the_mask_key(
    program: Program, warehouse: Path, state: str
) -> None:
    folder = warehouse / program.project.schema
    program.stream("items", items(1, name="planted 1"))
    program.stream("others", items(1, 2))
    _configure(program, "the first key of the test", "name", state=state)
    program.run()
    for table in ("items", "others"):
        mark = program.project.state(f"api.{table}")["mark"]
        assert {*mark} == {"protocol", "kind", "shared", "number", "encrypted"}
    assert _find(folder, b'"encrypted')
    assert not _find(folder, b"planted")

    # the connector resumes, and an equal state is not stored again
    before = program.project.state("api.items")
    program.run()
    assert program.project.state("api.items") == before
    assert "planted 1" in json.dumps(program.calls()[-1]["state"])
    program.rows["items"] += items(2, name="planted 2")
    program.run()
    assert program.project.state("api.items") != before
    assert not _find(folder, b"planted")
    assert len(program.raw("items")) == 2


def test_a_state_cannot_be_read_with_another_key(program: Program) -> None:
    program.stream("items", items(1))
    program.stream("others", items(1, 2))
    _configure(program, "the first key of the test", "name")
    program.run()
    for key, reason in (
        ("the second key of the test", "encrypted with another mask_key"),
        (None, "it is encrypted, but the source has no mask_key"),
    ):
        _configure(program, key, "name")
        [error] = program.project.loader("run", "--select", "others").errors
        assert error.startswith("table api.others: the connector's stored state cannot be read: it")
        assert reason in error
        assert "--full-refresh" in error
    program.run("--full-refresh", "--select", "others")
    assert "state" in program.project.state("api.others")["mark"]
    program.run("--select", "others")

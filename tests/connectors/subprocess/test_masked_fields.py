"""Wildcards that mask fields without a column: a change is detected as a change of `_rest`."""

from __future__ import annotations

from typing import Any

from tests.connectors.program import Program, items


def configure(program: Program, mask: dict[str, Any]) -> None:
    program.configure("items", table_options={"items": {"mask": mask}})


def test_wildcards_that_change_after_fields_were_loaded(program: Program) -> None:
    program.stream("items", items(1))
    configure(program, {"name": "redact"})
    program.run()
    # while `_rest` is empty, another wildcard cannot change its values
    configure(program, {"name": "redact", "phone*": "redact"})
    program.rows["items"] += [{**items(2)[0], "phone_1": "0049"}]
    program.run()
    assert program.raw("items", "name, _rest") == [
        ("***", None, 1),
        ("***", '{"phone_1":"***"}', 2),
    ]
    # another mask of the same fields does not change them, either
    configure(program, {"PHONE*": None, "name": "redact"})
    program.run()
    for masks in ({"name": "redact"}, {"name": "redact", "phone*": "redact", "e*": "redact"}):
        configure(program, masks)
        for command in ("check", "run"):
            [error] = program.project.loader(command).errors
            assert "have changed: _rest" in error
    [warning] = [w for w in program.project.run("--full-refresh").warnings if "masks" in w]
    assert "_rest" in warning
    program.rows["items"] += [{**items(3)[0], "email": "a@x.org"}]
    program.run()
    assert program.raw("items", "_rest")[-1][0] == '{"email":"***"}'
    configure(program, {})
    [error] = program.project.loader("run").errors
    assert "have changed: name, _rest" in error

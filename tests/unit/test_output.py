"""Text from a source is printed literally: no terminal escapes, no markup, no extra lines."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from loader.cli.console import Output
from loader.cli.progress import Progress
from loader.errors import TableError
from loader.spec.redaction import Redactor

HOSTILE = "t\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eor[bold]d[/]ers\nerror: all is lost"
SHOWN = r"t\x1b]0;owned\x07\x1b[2J\x0d\x9b31m\u202eor[bold]d[/]ers\x0aerror: all is lost"


def _event(output: Output) -> None:
    output.event("done", HOSTILE, table=HOSTILE)


def _warn(output: Output) -> None:
    output.warning(HOSTILE)


def _error(output: Output) -> None:
    output.error(TableError(HOSTILE, where=HOSTILE, remedy=HOSTILE))


def _table(output: Output) -> None:
    output.table("table", ("table", "rows"), [(HOSTILE, 1)])


INVISIBLE = (
    "\xad\u061c\u180e\u200b\u200c\u200d\u200e\u2060\u2064\u206a\ufeff\ufffa\U000e0001\U000e0041"
)


def test_invisible_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Names that look the same are shown differently if they differ in invisible characters."""
    Output().warning(INVISIBLE)
    Output().say(INVISIBLE)
    Output("json").warning(INVISIBLE)
    printed = "".join(capsys.readouterr())
    assert not set(printed) & set(INVISIBLE)
    assert r"\xad\u061c\u180e\u200b\u200c\u200d\u200e\u2060" in printed
    assert r"\ufffa\U000e0001\U000e0041" in printed
    assert json.loads(printed.splitlines()[-2])["text"] == INVISIBLE
    Output().warning("नमस्ते عربی Größe 東京 👍🏽")
    assert "नमस्ते عربی Größe 東京 👍🏽" in capsys.readouterr().err


@pytest.mark.parametrize("show", [_event, _warn, _error, _table])
def test_text_from_a_source_is_escaped(
    show: Callable[[Output], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show(Output())
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert not set(printed) & set("\x1b\x07\r\x9b\u202e")


def test_say_keeps_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    Output().say(HOSTILE)
    assert capsys.readouterr().out == SHOWN.replace(r"\x0a", "\n") + "\n"


def test_live_lines_escape_names() -> None:
    output = Output()
    output.err = Console(file=io.StringIO(), force_terminal=True, width=200)
    progress = Progress(output, lambda table: None)
    progress.report_phase(HOSTILE, "reading", 5)
    console = Console(file=io.StringIO(), width=200)
    console.print(progress._render())
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert SHOWN in printed
    assert "\x1b]0" not in printed


def test_json_lines_show_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x9b31m\x85\u202e\u2028\x7f\ud800é"
    Output("json").warning(hostile)
    printed = capsys.readouterr().out
    assert not set(printed) & set(hostile) - {"é", "3", "1", "m"}
    [line] = printed.splitlines()
    assert json.loads(line)["text"] == hostile


@pytest.mark.parametrize("secret", ['p\u00e4"s\\w', "pass-w\u00f6rt"])
def test_secrets_that_were_escaped_are_hidden_in_json(
    secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A connector may log its configuration as JSON or as a Python repr."""
    redactor = Redactor()
    redactor.add(secret)
    output = Output("json", redact=redactor.redact)
    for text in (json.dumps({"a": secret}), repr(secret), repr({"a": secret}), secret):
        output.event("said", text, text=text, more=[{"text": text}], path=Path(text))
        output.warning(text)
        output.error(TableError(text))
    printed = "".join(capsys.readouterr())
    assert "***" in printed
    assert len(printed.splitlines()) == 12
    for line in printed.splitlines():
        texts = str(json.loads(line))
        assert not any(part in texts for part in ("p\u00e4", "u00e4", "pass-w")), line


def test_a_note_of_several_rows_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("shop.a", 1, "no index"), ("shop.b", 2, None), ("shop.c", 3, "no index")]
    Output().table("check", ("table", "n", "notes"), [*rows, ("d", 4, "coarse")], below="notes")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["shop.a, shop.c: no index", "d: coarse"]
    assert len(lines) == 7

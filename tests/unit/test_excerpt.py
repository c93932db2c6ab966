"""Long texts are shortened with `excerpt`, which never shows part of a secret."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.spec.redaction import MASK, Redactor, excerpt

ROOT = Path(__file__).resolve().parents[2]
SECRET = "tok_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

CUT = {
    "cli/daemon.py": "a list of functions",
    "cli/run_once.py": "the columns of a table",
    "names.py": "a name that the spec must not have",
    "errors.py": "a list of errors",
    "report/contents.py": "lists",
    "report/tables.py": "lists",
    "report/proofs.py": "a list of rows",
    "rows/cursor.py": "a number",
    "spark/temporary_files.py": "the machine's name",
    "sources/contents.py": "a digest",
    "sources/file/json_precision.py": "a number",
    "spec/secret_forms.py": "the keys of an index",
    "cdc/slot.py": "a slot's name",
    "connectors/subprocess/log_relay.py": "compared, not shown",
    "state/local.py": "a file's name",
    "sync/runner.py": "secrets were removed before",
}
"""Modules that cut values without `excerpt`, and what they cut. None of it is a secret."""


@given(st.integers(0, 600), st.integers(1, 600))
def test_no_part_of_a_secret_across_the_cut_is_shown(before: int, longest: int) -> None:
    redactor = Redactor()
    redactor.add(SECRET)
    shown = excerpt("x" * before + SECRET + "y" * 100, longest)
    assert "tok" not in shown
    assert len(shown) <= max(longest, before + len(MASK))
    assert shown.startswith("x" * min(before, longest))
    assert redactor.redact(shown) == shown


@pytest.mark.parametrize(
    "text", ["https://user:{}-at-the-end@host/x", 'password="{}"', '{{"api_key": "{}"}}']
)
def test_secrets_are_detected_by_position_before_the_cut(text: str) -> None:
    whole = text.format(SECRET)
    for longest in range(whole.index(SECRET) + 1, whole.index(SECRET) + len(SECRET)):
        assert "tok" not in excerpt(whole, longest)


def test_a_secret_longer_than_the_part_that_is_searched() -> None:
    redactor = Redactor()
    redactor.add("k" * 100_000)
    assert excerpt("a " + "k" * 100_000 + " b", 500) == "a ***"
    many = " ".join(["k" * 100_000] * 3)  # the third one begins before the cut
    assert excerpt(many, 250_000) == "*** *** ***"


def test_no_other_code_cuts_texts() -> None:
    found = {
        path.relative_to(ROOT / "loader").as_posix(): _find_cuts(path.read_text(encoding="utf-8"))
        for path in (ROOT / "loader").rglob("*.py")
    }
    cuts = {name: texts for name, texts in found.items() if texts}
    assert {n: texts for n, texts in cuts.items() if n not in CUT} == {}, "use excerpt()"
    assert set(CUT) <= set(cuts), "these cut nothing any more"


def _find_cuts(text: str) -> list[str | None]:
    """Returns the slices that end at a constant, or at a number above 30."""
    cuts = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            end = node.slice.upper
            number = isinstance(end, ast.Constant) and isinstance(end.value, int) and end.value > 30
            if number or (isinstance(end, ast.Name) and end.id.isupper()):
                cuts.append(ast.get_source_segment(text, node))
    return cuts

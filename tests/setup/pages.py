"""Reads code blocks from the pages of the documentation that tests execute."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """Returns the code blocks of a page, unchanged."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def named(text: str, language: str, name: str) -> str:
    """Returns the block whose first line is a comment with this file name, without that line."""
    [found] = [b for b in blocks(text, language) if b.splitlines()[0].endswith(f" {name}")]
    return found.partition("\n")[2]


def commands(text: str) -> list[str]:
    """Returns the commands in a page's blocks, without comments."""
    lines = [
        line.partition("  #")[0].strip() for b in blocks(text, "bash") for line in b.split("\n")
    ]
    return [line for line in lines if line]

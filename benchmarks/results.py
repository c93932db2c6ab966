"""Writes RESULTS.md, with a section for each measured row. A new measurement replaces it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parent / "RESULTS.md"
_HEAD = """\
# Results

`make bench` writes this file, one section for each row that it measured; [README.md](README.md)
says how, and what each row is. A goal with × is a share of the peer's figure.

"""
_TABLE = """\
| | ours | peer | | ratio | goal | |
|---|---:|---|---:|---:|---:|---|
"""
_SECTION = re.compile(r"^## (\d+)\. ", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """One of the loader's figures, with a peer's figure if there is one.

    Attributes:
        ours, theirs: the medians; None if not measured.
        peer: the tool that `theirs` belongs to.
        goal: the highest ratio that meets the goal; without a peer, the highest figure.
        unit: the unit of both figures.
    """

    what: str
    ours: float | None
    peer: str = ""
    theirs: float | None = None
    goal: float | None = None
    unit: str = "s"

    @property
    def ratio(self) -> float | None:
        """The loader's figure as a share of the peer's."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None if there is no goal or no figure."""
        judged = self.ratio if self.peer else self.ours
        return None if self.goal is None or judged is None else judged <= self.goal

    def row(self) -> str:
        """The figure as a row of the table."""
        goal = "" if self.goal is None else f"≤ {self.goal:g} {'×' if self.peer else self.unit}"
        cells = (
            self.what,
            _shown(self.ours, self.unit),
            self.peer,
            _shown(self.theirs, self.unit),
            "" if self.ratio is None else f"{self.ratio:.2f} ×",
            goal,
            {None: "", True: "met", False: "**not met**"}[self.met],
        )
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Section:
    """The measurement of a row.

    Attributes:
        taken: when, how often and on which machine the row was measured.
        note: further remarks on the figures.
    """

    number: int
    title: str
    lines: Sequence[Line]
    taken: str
    note: str = ""

    def text(self) -> str:
        """The text of the section in the file."""
        rows = "".join(f"{line.row()}\n" for line in self.lines)
        note = f"\n{self.note}\n" if self.note else ""
        return f"## {self.number}. {self.title}\n\n{self.taken}\n\n{_TABLE}{rows}{note}"


def write(section: Section, file: Path = FILE) -> None:
    """Writes a section to the file. Replaces an earlier section with the same number."""
    known = _sections(file.read_text()) if file.exists() else {}
    known[section.number] = section.text()
    file.write_text(_HEAD + "\n".join(known[number] for number in sorted(known)))


def _sections(text: str) -> dict[int, str]:
    found = list(_SECTION.finditer(text))
    starts = [match.start() for match in found]
    return {
        int(match.group(1)): text[start:end].rstrip("\n") + "\n"
        for match, start, end in zip(found, starts, [*starts[1:], len(text)], strict=False)
    }


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 3 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()

"""The demo's output: at most 100 columns wide, with the same text in a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_WIDTH = 100
_PICTURED = (4, 5)
"""The steps in the picture of docs/start.md: the source changes, and a sync finds the changes."""


class NotAsClaimed(Exception):
    """A claim of the demo is wrong."""


class Screen:
    """Headings, paragraphs, commands, tables, and claims that are checked before they are shown."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # Print a question mark if the terminal cannot encode ✓.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        terminal = Console(highlight=False)
        width = min(terminal.width, _WIDTH) if terminal.is_terminal else _WIDTH
        self._console = Console(highlight=False, width=width)
        self._drawn = Console(
            highlight=False, width=_WIDTH, record=True, file=io.StringIO(), force_terminal=True
        )
        self._step = 0

    def _print(self, renderable: RenderableType) -> None:
        if self._step in _PICTURED:
            self._drawn.print(renderable)
        # rich pads lines with spaces.
        with self._console.capture() as captured:
            self._console.print(renderable)
        for line in captured.get().splitlines():
            print(line.rstrip(), flush=True)

    def picture(self, path: Path) -> None:
        """Writes the pictured steps as an SVG."""
        # a fixed id, because a random id would change the file in each run
        svg = self._drawn.export_svg(title="make demo", unique_id="demo", clear=False)
        # without the fonts that a reader's browser would load from another server
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        path.write_text(svg, encoding="utf-8")

    def title(self, text: str) -> None:
        """Prints the first line."""
        self._print(Text(text, style="bold"))

    def step(self, text: str) -> None:
        """Prints a numbered heading."""
        self._print("")
        self._step += 1
        self._print(Text(f"{self._step}. {text}", style="bold cyan"))

    def say(self, text: str) -> None:
        """Prints a paragraph."""
        self._print(Padding(Text(" ".join(text.split())), (0, 0, 0, 3), expand=False))

    def item(self, mark: str, text: str, style: str = "") -> None:
        """Prints a line of a list; wrapped text is indented."""
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(mark, style=style), Text(" ".join(text.split())))
        self._print(Padding(line, (0, 0, 0, 3), expand=False))

    def command(self, text: str) -> None:
        """Prints a command line."""
        self._print(Padding(Text(f"$ {text}", style="bold"), (0, 0, 0, 3), expand=False))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Prints a table with right-aligned numbers."""
        texts = [[_format_value(value) for value in row] for row in rows]
        raw = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for index, column in enumerate(columns):
            numeric = all(row[index].replace(",", "").replace("-", "").isdigit() for row in texts)
            raw.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in texts:
            raw.add_row(*map(Text, row))
        self._print("")
        self._print(Padding(raw, (0, 0, 0, 3), expand=False))
        self._print("")

    def claim(self, true: bool, text: str) -> None:
        """Prints a claim.

        Raises:
            NotAsClaimed: if the claim is not true.
        """
        if not true:
            raise NotAsClaimed(" ".join(text.split()))
        self.item("✓", text, "bold green")

    def failed(self, text: str) -> None:
        """Prints an error."""
        self.item("✗", text, "bold red")


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)

"""Draws docs/pictures/*.svg: `make pictures`. A test compares them with this module.

Each picture has colours for light and for dark, and its own background, so that it is readable
wherever a page shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"

# name: (light, dark)
_COLOURS = {
    "paper": ("#ffffff", "#151a21"),
    "panel": ("#f3f5f7", "#212830"),
    "ink": ("#1f2328", "#e6ebf1"),
    "soft": ("#57606a", "#a3aeba"),
    "grid": ("#dfe4e9", "#333c47"),
    "line": ("#9aa4ae", "#5c6773"),
    "blue": ("#0b62c4", "#6cb2ff"),
    "bluebg": ("#dceeff", "#12304f"),
    "green": ("#1a7431", "#5fd27a"),
    "greenbg": ("#dcf5e2", "#143420"),
    "red": ("#bd1f2a", "#ff8a83"),
    "redbg": ("#ffe6e4", "#431a1c"),
    "amber": ("#8a5a00", "#f0bd4f"),
    "amberbg": ("#fff3cd", "#3d2f0d"),
}
_BASE = (
    "text { font: 14px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif } "
    ".s { font-size: 12.5px } .b { font-weight: 600 } .m { text-anchor: middle } "
    ".e { text-anchor: end } "
    ".h { paint-order: stroke; stroke-width: 5px } "
    ".c { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 13px }"
)


def _style() -> str:
    def rules(index: int) -> str:
        return " ".join(
            f".f-{name} {{ fill: {pair[index]} }} .k-{name} {{ stroke: {pair[index]} }}"
            for name, pair in _COLOURS.items()
        )

    return f"{_BASE}\n{rules(0)}\n@media (prefers-color-scheme: dark) {{ {rules(1)} }}"


class Drawing:
    """Collects the shapes of one picture."""

    def __init__(self, width: int, height: int, title: str, text: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="title text">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="text">{escape(text)}</desc>',
            f"<style>\n{_style()}\n</style>",
            f'<rect width="{width}" height="{height}" rx="8" class="f-paper"/>',
        ]

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: str = "line",
        fill: str = "panel",
    ) -> None:
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" '
            f'class="f-{fill} k-{colour}" stroke-width="1.5"/>'
        )

    def text(self, x: float, y: float, lines: str, colour: str = "ink", style: str = "") -> None:
        """Writes lines below each other. `style`: s(mall), b(old), c(ode), m(iddle), e(nd)."""
        for index, line in enumerate(lines.split("\n")):
            self._parts.append(
                f'<text x="{x}" y="{y + 18 * index}" class="f-{colour} {style}">'
                f"{escape(line)}</text>"
            )

    def line(
        self, points: str, colour: str = "line", *, dashed: bool = False, arrow: bool = False
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{points}" fill="none" class="k-{colour}" stroke-width="1.8"{dash}/>'
        )
        if arrow:
            (x0, y0), (x, y) = (tuple(map(float, p.split(","))) for p in points.split()[-2:])
            dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
            left, right = (
                (x - 8 * dx - 4.5 * dy, y - 8 * dy - 4.5 * dx),
                (
                    x - 8 * dx + 4.5 * dy,
                    y - 8 * dy + 4.5 * dx,
                ),
            )
            corners = " ".join(f"{a:g},{b:g}" for a, b in ((x, y), left, right))
            self._parts.append(f'<polygon points="{corners}" class="f-{colour}"/>')

    def dot(self, x: float, y: float, colour: str) -> None:
        self._parts.append(f'<circle cx="{x}" cy="{y}" r="6" class="f-{colour}"/>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def draw_window() -> str:
    """A transaction that commits after a sync, and the two windows of the next sync."""
    d = Drawing(
        900,
        500,
        "The window and the late row",
        "Transaction A sets updated_at to 10:00 and commits at 10:03, after sync 1 at 10:02. A "
        "plain cursor reads from 10:01 and loses the row. The window of Strandline begins "
        "at 09:59, a minute before A began, and finds it.",
    )

    def x(minute: float) -> float:
        return 190 + 105 * (minute + 1)

    d.text(20, 34, "What happens in the database", style="b")
    for minute in range(-1, 6):
        d.line(f"{x(minute)},62 {x(minute)},215", "grid")
        label = f"{9 if minute < 0 else 10:02d}:{minute % 60:02d}"
        d.text(x(minute), 54, label, "soft", "s m")
    for name, y, start, end, colour in (
        ("A", 80, 0, 3, "amber"),
        ("B", 120, 1, 1.35, "blue"),
        ("C", 160, 3.5, 4, "blue"),
    ):
        d.text(170, y + 19, f"transaction {name}", style="e")
        d.box(x(start), y, x(end) - x(start), 28, colour, f"{colour}bg")
        d.dot(x(end), y + 14, colour)
    for minute, name in ((2, "sync 1"), (5, "sync 2")):
        d.line(f"{x(minute)},66 {x(minute)},232", "green", dashed=True)
        d.text(x(minute), 250, name, "green", "b m")
    d.text(x(0) + 10, 99, "updated_at = 10:00", "amber", "c")
    d.text(x(3) + 14, 99, "commits at 10:03", "amber", "s h k-paper")
    d.text(x(1.35) + 14, 139, "updated_at = 10:01", "blue", "c h k-paper")
    d.text(x(4) + 14, 179, "10:03:30", "blue", "c")
    d.text(
        x(2),
        270,
        "reads B. Stores the cursor 10:01,\nand that A has been open since 10:00",
        "soft",
        "s m",
    )
    d.text(x(5) + 30, 270, "reads the window below", "soft", "s e")

    d.text(20, 326, "What sync 2 reads, by updated_at", style="b")
    d.text(170, 379, "a plain cursor", style="e")
    d.box(x(1), 360, x(5) - x(1), 30, "red", "redbg")
    d.text(x(1) + 14, 380, "from 10:01: the row of A is lost", "red", "s")
    d.text(170, 429, "Strandline", style="e")
    d.box(x(-1), 410, x(5) - x(-1), 30, "green", "greenbg")
    d.text(x(1) + 14, 430, "from 09:59, before A began", "green", "s")
    for minute, name, colour in ((0, "A", "amber"), (1, "B", "blue"), (3.5, "C", "blue")):
        d.line(f"{x(minute)},358 {x(minute)},448", colour, dashed=True)
        d.text(x(minute), 352, name, colour, "b m")
        d.dot(x(minute), 425, colour)
    d.text(x(0), 470, "is found", "amber", "s m")
    d.text(x(1), 470, "is redelivered:", "blue", "s m")
    d.text(x(1), 486, "dropped", "blue", "s m")
    d.text(x(3.5), 470, "is new", "blue", "s m")
    return d.svg()


def draw_protocol() -> str:
    """The steps of a sync, what they write, and what a crash leaves behind."""
    d = Drawing(
        940,
        406,
        "The protocol of a sync",
        "The steps lock, recover, window, extract, publish, record, unlock. Publish makes one "
        "commit with rows, cursor and ledger row. Record then writes the state and the ledger. "
        "After a crash, the next run recovers both from the commit.",
    )
    steps = (
        ("lock", "one run\nper table"),
        ("recover", "state = newest\ncommit"),
        ("window", "from the cursor\nto a fixed end"),
        ("extract", "drops rows that\nraw contains"),
        ("publish", "one commit,\nall or nothing"),
        ("record", "state and\nledger"),
        ("unlock", "for the\nnext run"),
    )
    left, width, gap = 20, 114, 17
    middle = [left + (width + gap) * index + width / 2 for index in range(len(steps))]
    for index, (name, text) in enumerate(steps):
        here = middle[index] - width / 2
        colour = {"publish": "green"}.get(name, "line")
        d.box(here, 24, width, 84, colour, "greenbg" if name == "publish" else "panel")
        d.text(middle[index], 48, name, style="b m")
        d.text(middle[index], 72, text, "soft", "s m")
        if index:
            d.line(f"{here - gap},66 {here},66", arrow=True)

    d.line(f"{middle[4]},108 {middle[4]},176", "green", arrow=True)
    d.box(370, 176, 330, 104, "green", "greenbg")
    d.text(535, 200, "the commit of batch 7 in raw.orders", style="b m")
    d.text(390, 226, "rows", "ink", "c")
    d.text(500, 226, "_cq_batch = 7", "ink", "c")
    d.text(390, 246, "state", "ink", "c")
    d.text(500, 246, "cursor 10:03:30", "ink", "c")
    d.text(390, 266, "ledger row", "ink", "c")
    d.text(500, 266, "3 read, 2 appended", "ink", "c")

    d.line(f"{middle[5]},108 {middle[5]},150 800,150 800,176", "blue", arrow=True)
    d.box(725, 176, 195, 44, "blue", "bluebg")
    d.text(822, 203, "raw._cq_state", style="c m")
    d.box(725, 236, 195, 44, "blue", "bluebg")
    d.text(822, 263, "raw._cq_syncs", style="c m")
    d.line("822,220 822,236", "blue", arrow=True)

    d.line(f"370,228 {middle[1]},228 {middle[1]},108", "amber", dashed=True, arrow=True)
    d.text(
        20,
        262,
        "The next run reads the newest commit and\nbrings state and ledger up to date.",
        "amber",
        "s",
    )

    d.text(20, 326, "If the run is killed …", style="b")
    for index, (when, what) in enumerate(
        (
            (
                "before the commit",
                "no reader sees a row of the batch. The next run reads its window again",
            ),
            (
                "after the commit",
                "the rows are there, once. The next run continues from their cursor",
            ),
        )
    ):
        place = (middle[4 + index] + middle[3 + index]) / 2
        d.line(f"{place},14 {place},118", "red", dashed=True)
        d.text(place, 136, str(index + 1), "red", "b s m")
        d.text(40, 356 + 26 * index, f"{index + 1}  {when}", "red", "b s")
        d.text(205, 356 + 26 * index, what, "ink", "s")
    return d.svg()


def draw_generations() -> str:
    """Three versions of one key: the generation is compared before the cursor."""
    d = Drawing(
        900,
        400,
        "Versions and generations",
        "Three versions of the key 1. Generation 1 has two versions, of which one has a wrong "
        "cursor in 2099. A full refresh begins generation 2 and reads the row again with the "
        "cursor 2025-01-02. The version of generation 2 is the newest.",
    )
    d.text(20, 34, "Three versions of id 1 in the raw table", style="b")
    for y, name, note in (
        (70, "generation 2", "a full refresh has\nread the row again"),
        (190, "generation 1", "batches 1 and 2"),
    ):
        d.box(20, y, 620, 100)
        d.text(36, y + 30, name, style="b")
        d.text(36, y + 54, note, "soft", "s")
    cards = (
        (190, 205, "2025-01-01", "open", "batch 1", "line"),
        (480, 205, "2099-01-01", "shut", "batch 2", "red"),
        (300, 85, "2025-01-02", "sent", "batch 3", "green"),
    )
    for x, y, cursor, status, batch, colour in cards:
        d.box(x, y, 140, 70, colour, "paper" if colour == "line" else f"{colour}bg")
        d.text(x + 12, y + 22, status, style="b")
        d.text(x + 128, y + 22, batch, "soft", "s e")
        d.text(x + 12, y + 44, "updated_at", "soft", "s")
        d.text(x + 12, y + 61, cursor, style="c")
    d.text(480, 309, "the writer's clock was wrong", "red", "s")
    d.line("190,332 640,332", arrow=True)
    d.text(190, 354, "a higher cursor is newer …", "soft", "s")
    d.text(190, 372, "… but only within one generation", "soft", "s")
    d.line("440,120 690,120", "green", arrow=True)
    d.box(690, 80, 190, 80, "green", "greenbg")
    d.text(785, 104, "the latest table", style="b m")
    d.text(785, 128, "id 1, sent", style="c m")
    d.text(785, 148, "2025-01-02", style="c m")
    d.text(
        690,
        206,
        "Versions are compared by\n1. generation\n2. cursor\n3. batch\n4. position in the batch",
        "ink",
        "s",
    )
    return d.svg()


def draw_tests() -> str:
    """The tables of a lake, and the tests beside what they read."""
    d = Drawing(
        940,
        698,
        "What each test looks at",
        "matches_raw compares the raw table with the latest table. batches_complete compares the "
        "raw table, its commits and the ledger. state_consistent compares the state and the raw "
        "table. The other tests read one table each.",
    )

    def table(x: int, y: int, width: int, height: int, name: str, note: str) -> None:
        d.box(x, y, width, height)
        d.text(x + width / 2, y + 24, name, style="b m")
        d.text(x + width / 2, y + 44, note, "soft", "s m")

    def test(x: int, y: int, name: str, text: str, colour: str = "blue") -> None:
        d.box(x, y, 210, 48, colour, f"{colour}bg")
        d.text(x + 105, y + 20, name, colour, "c b m")
        d.text(x + 105, y + 38, text, "ink", "s m")

    table(20, 20, 110, 300, "source", "databases, files")
    table(215, 20, 240, 300, "raw table", "all versions, in batches")
    table(680, 20, 240, 300, "latest table", "or history")
    for start, end, name in ((130, 215, "loader run"), (455, 680, "dbt build")):
        d.line(f"{start},46 {end},46", arrow=True)
        d.text((start + end) / 2, 38, name, "soft", "s m")
    test(230, 80, "no_cursor_ties", "is the newest version clear?")
    test(230, 138, "cursor_plausible", "missing, future, decreasing?")
    test(230, 196, "row_hash_valid", "was a value changed later?")
    test(230, 254, "no_duplicates", "delivered more than once?", "amber")
    test(695, 80, "unique_key", "has each key one row?")
    d.line("455,220 680,220", "blue", dashed=True)
    test(463, 196, "matches_raw", "is each row right?")

    table(20, 446, 240, 118, "_cq_reconciled", "comparisons with the source")
    table(350, 446, 240, 232, "ledger, _cq_syncs", "one row for each sync")
    table(680, 446, 240, 60, "state, _cq_state", "the stored cursors")
    d.line("75,320 75,446", dashed=True)
    d.line("240,320 240,446", dashed=True)
    d.text(86, 378, "loader reconcile", "soft", "s")
    d.text(86, 396, "compares both", "soft", "s")
    d.line("425,320 425,446", "blue", dashed=True)
    d.line("440,320 440,340 800,340 800,446", "blue", dashed=True)
    test(365, 364, "batches_complete", "raw, commits, ledger equal?")
    test(695, 364, "state_consistent", "is the cursor that of raw?")
    test(35, 502, "reconciled_recently", "all keys, lately?", "amber")
    test(365, 502, "inclusive_cursor", "no gap between two syncs?")
    test(365, 560, "complete_recently", "all commits until when?", "amber")
    test(365, 618, "volume_plausible", "as many rows as usual?", "amber")
    d.box(680, 546, 18, 18, "blue", "bluebg")
    d.text(708, 560, "a failure is an error", "soft", "s")
    d.box(680, 574, 18, 18, "amber", "amberbg")
    d.text(708, 588, "a failure is a warning", "soft", "s")
    return d.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "window": draw_window,
    "protocol": draw_protocol,
    "generations": draw_generations,
    "tests": draw_tests,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")

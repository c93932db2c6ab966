"""Renders the table of docs/types.md: each type of each database, with an example as loaded.

`make docs-types` writes it; `tests/sync/test_types.py` tests its rows.
"""

from __future__ import annotations

from pathlib import Path

from tests.sync.test_types import CREATED, DERBY, MARIADB, POSTGRESQL

PAGE = Path(__file__).parent.parent / "docs" / "types.md"
_BEGIN = "| database | type |"
_OWN = {line.split()[2]: line.partition(" as ")[2] for line in CREATED}


def rendered() -> str:
    """Returns the text of the page."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    lines = [f"{_BEGIN} example | arrives as | its value |", "|---|---|---|---|---|"]
    for database, types in (("PostgreSQL", POSTGRESQL), ("MariaDB", MARIADB), ("Derby", DERBY)):
        for kind, value, arrives, shown in types:
            of = f" ({_OWN[kind]})" if kind in _OWN else ""
            cells = (f"{kind}{of}", value, arrives, "null" if shown is None else shown)
            lines.append(f"| {database} | {' | '.join(map(_code, cells))} |")
    return text + "\n".join(lines) + "\n"


def _code(text: str) -> str:
    shown = text.replace("|", r"\|")
    return f"`{shown}`" if shown else ""


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")

"""Renders the report as one HTML file that needs no server and no network.

Names, errors and keys come from sources, so they are not trusted: the template escapes every value,
the data of the charts contains only numbers, and the page's Content-Security-Policy permits only
its own scripts and styles, by their hashes.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loader import __version__
from loader.formatting import format_count
from loader.report.contents import Report
from loader.report.history import DAY
from loader.report.problems import format_age
from loader.report.tables import TableReport

_FOLDER = Path(__file__).parent
_SECOND = 1_000_000
_SEPARATE_BARS = 120
"""The number of periods above which adjacent periods with the same result share a bar."""
_THINNEST = 1 / 160
"""The minimum width of a failure as a share of the strip's width, so that it stays visible."""
_SPACE = "\u00a0"
_NAMES = {"ok": "synced", "mixed": "partly failed", "failed": "failed", "none": "no sync"}

_ICONS = {
    level: "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    f"%3Ccircle cx='8' cy='8' r='7' fill='%23{colour}'/%3E%3C/svg%3E"
    for level, colour in (
        ("good", "19754a"),
        ("warn", "d99a1b"),
        ("bad", "c8372d"),
        ("none", "8a8780"),
    )
}
"""The icons for the browser's tab, in the colour of the verdict."""


def render_page(
    report: Report,
    clean: Callable[[str], str] = str,
    spec: str = "loader.yml",
    refresh: int | None = None,
) -> str:
    """Returns the page.

    Args:
        clean: removes secrets and invisible characters from a string.
        refresh: the number of seconds after which the page reloads itself; None if it does not.
    """
    environment = create_environment(_FOLDER, clean)
    now = report.until
    environment.filters.update(
        ago=lambda micros: f"{format_age((now - micros) / _SECOND)} ago",
        age=format_age,
        count=format_count,
        day=lambda micros: _to_time(micros).strftime("%-d %b %Y"),
        iso=lambda micros: _to_time(micros).strftime("%Y-%m-%dT%H:%M:%SZ"),
        moment=lambda micros: _to_time(micros).strftime("%-d %b %Y, %H:%M UTC"),
        number=_format_number,
        seconds=_format_seconds,
        share=_format_share,
        size=lambda count: f"{count / 2**20:,.1f} MB",
    )
    scripts = [read_asset("vendor/uPlot.iife.min.js"), read_asset("page.js")]
    styles = [read_asset("vendor/uPlot.min.css"), read_asset("page.css")]
    return environment.get_template("page.html").render(
        report=report,
        scripts=[Markup(each) for each in scripts],
        styles=[Markup(each) for each in styles],
        policy=Markup(build_policy(scripts, styles)),
        data=_build_data(report, refresh),
        draw_strip=lambda table: _draw_strip(table, report.periods),
        describe_strip=lambda table: _describe_strip(table, report.length),
        per="day" if report.length == DAY else "hour",
        days=-((report.since - report.until) // DAY),
        icon=Markup(_ICONS[report.level]),
        spec=spec,
        version=__version__,
    )


def create_environment(folder: Path, clean: Callable[[str], str]) -> Environment:
    """Returns an environment for a folder's templates, which cleans and escapes every value."""

    def finalize(value: Any) -> Any:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def read_asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8").strip()


def build_policy(scripts: list[str], styles: list[str]) -> str:
    """Returns a Content-Security-Policy that permits only these scripts and styles."""

    def allow(texts: list[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        hashes = [f"'sha256-{base64.b64encode(each).decode()}'" for each in digests]
        return " ".join(hashes) or "'none'"

    return (
        f"default-src 'none'; script-src {allow(scripts)}; style-src {allow(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _build_data(report: Report, refresh: int | None) -> Markup:
    """Returns the chart data as JSON, without any strings from sources."""
    data = {
        "since": report.since // _SECOND,
        "until": (report.until // report.length + 1) * report.length // _SECOND,
        "step": report.length // _SECOND,
        "totals": report.totals,
        "tables": {table.id: table.series for table in report.tables},
        "refresh": refresh,
    }
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _draw_strip(table: TableReport, periods: int) -> list[tuple[str, float, float]]:
    """Returns the bars of a table's strip: the result, and the start and width in percent."""
    bars = []
    for result, first, count in table.strip:
        if periods <= _SEPARATE_BARS:
            bars += [(result, first + i + 0.08, 0.84) for i in range(count)]
            continue
        width = float(count)
        if result in ("failed", "mixed"):
            width = max(width, periods * _THINNEST)
        bars.append((result, min(float(first), periods - width), width))
    # Drawn last, because failures may be wider than their periods.
    bars.sort(key=lambda bar: bar[0] in ("failed", "mixed"))
    return [
        (result, round(100 * first / periods, 3), round(100 * width / periods, 3))
        for result, first, width in bars
    ]


def _describe_strip(table: TableReport, length: int) -> str:
    unit = "day" if length == DAY else "hour"
    counts: dict[str, int] = {}
    for result, _, count in table.strip:
        counts[result] = counts.get(result, 0) + count
    parts = [
        f"{_NAMES[result]} on {format_count(counts[result], unit)}"
        for result in _NAMES
        if counts.get(result)
    ]
    return ", ".join(parts)


def _to_time(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(micros / _SECOND, dt.timezone.utc)


def _format_number(count: float) -> str:
    """Formats a number for a narrow column.

    >>> _format_number(9999), _format_number(1234567)
    ('9,999', '1.23 M')
    """
    for size, unit in ((1e9, "bn"), (1e6, "M")):
        if count >= size:
            return (
                f"{count / size:.3g} {unit}"
                if count < 1000 * size
                else f"{count / size:,.0f} {unit}"
            )
    return f"{count:,}"


def _format_seconds(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}{_SPACE}{unit}"
    return f"{seconds:.{1 if seconds < 10 else 0}f}{_SPACE}s"


def _format_share(share: float | None) -> str:
    if share is None:
        return "–"
    return f"{100 * share:.{1 if share < 0.1 else 0}f}{_SPACE}%"

"""Renders an audit as one HTML file, with the styles of `loader report`.

Names and keys come from sources, so they are not trusted: the template escapes every value, and the
page has no script.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from loader import __version__
from loader.audit.findings import KINDS, Audit
from loader.report.page import build_policy, create_environment, read_asset

_MAX_DAYS = 62
_STYLE = (
    ".bar { display: block; width: 100%; min-width: 4rem; height: 0.8rem; } "
    ".days { width: 100%; } .days th[scope=row] { white-space: nowrap; } .days td { "
    "vertical-align: middle; } .facts dd { font-size: 1.35rem; }"
)


def render_page(audit: Audit, clean: Callable[[str], str] = str) -> str:
    """Returns the page. `clean` removes secrets and invisible characters from a text."""
    environment = create_environment(Path(__file__).parent, clean)
    days = audit.group_days(_MAX_DAYS)
    styles = [read_asset("page.css"), _STYLE]
    return environment.get_template("page.html").render(
        audit=audit,
        kinds=KINDS,
        days=days,
        most=max((sum(counts.values()) for _, counts in days), default=1),
        at=dt.datetime.now(dt.timezone.utc),
        styles=[Markup(each) for each in styles],
        policy=Markup(build_policy([], styles)),
        version=__version__,
    )

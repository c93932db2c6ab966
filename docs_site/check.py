"""Checks the built site: each link has a target, and no page loads anything from another server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
}
_CSS = re.compile(r"""(?:@import\s+|url\()\s*["']?((?:https?:)?//[^"')]+)""")


class _Page(HTMLParser):
    """Collects the anchors, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values.get("id") or "", values.get("name") or ""}
        for name, value in values.items():
            if value and (tag, name) in _LOADED and values.get("rel") != "canonical":
                self.loaded.append(value)
            elif value and tag == "a" and name == "href":
                self.links.append(value)


def check_site(site: Path) -> list[str]:
    """Returns one sentence for each broken link and each file that another server would send."""
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    return [
        *(
            f"{path.relative_to(site)}: {problem}"
            for path in pages
            for problem in _check(path, pages, site)
        ),
        *(f"{path.relative_to(site)}: loads {url}" for path, url in _find_remote_styles(site)),
    ]


def _check(path: Path, pages: dict[Path, _Page], site: Path) -> Iterator[str]:
    for url in pages[path].loaded + pages[path].links:
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            if url in pages[path].loaded and parts.scheme != "data":
                yield f"loads {url}"
            continue
        folder = site if parts.path.startswith("/") else path.parent  # the page for status 404
        target = (folder / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        if not target.is_file():
            yield f"the link {url} leads nowhere"
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"the link {url} leads to a page without this heading"


def _find_remote_styles(site: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.svg")]):
        for found in _CSS.finditer(path.read_text(encoding="utf-8")):
            yield path, found.group(1)

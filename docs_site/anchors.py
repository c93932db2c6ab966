"""Gives headings the anchors that GitHub gives them, so that links work in both places."""

from __future__ import annotations

import re
from collections.abc import Callable


def choose_slugify() -> Callable[[str, str], str]:
    """Returns the function that makes an anchor. Zensical calls what its configuration names."""
    return slugify


def slugify(heading: str, separator: str) -> str:
    """Returns the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)

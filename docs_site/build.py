"""Builds the documentation site: copies the pages, generates the reference, runs Zensical, checks.

The pages keep their paths in the repository, so that links between them work here and on GitHub.
A file that a page links to is copied, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from docs_site.check import check_site
from docs_site.reference import write_reference

ROOT = Path(__file__).resolve().parents[1]
SOURCES = Path(__file__).parent
BUILD = ROOT / "build" / "docs"
SITE = BUILD / "site"
_PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def copy_pages(pages: Path) -> int:
    """Copies all pages, and the files in the repository that they link to."""
    sources = [path for pattern in _PAGES for path in sorted(ROOT.glob(pattern))]
    linked = {
        (source.parent / target).resolve()
        for source in sources
        for target in _LINK.findall(source.read_text(encoding="utf-8"))
        if ":" not in target
    }
    for source in {*sources, *(path for path in linked if path.is_file())}:
        target = pages / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return len(sources)


def main(zensical: str) -> int:
    """Builds the site with the program `zensical`. Returns the exit code."""
    began = time.monotonic()
    shutil.rmtree(BUILD, ignore_errors=True)
    pages = BUILD / "pages"
    count = copy_pages(pages) + write_reference(pages / "docs" / "reference")
    shutil.copytree(SOURCES / "assets", pages / "assets")
    shutil.copyfile(SOURCES / "zensical.toml", BUILD / "zensical.toml")
    command = [
        str(Path(zensical).absolute()),
        "build",
        "--strict",
        "--config-file",
        "zensical.toml",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}  # docs_site.anchors
    done = subprocess.run(command, cwd=BUILD, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        return done.returncode
    problems = check_site(SITE)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    took = time.monotonic() - began
    print(f"{count} pages, {len(problems)} problems, {took:.0f} s: {SITE / 'index.html'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

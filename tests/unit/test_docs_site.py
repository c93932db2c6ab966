"""The documentation site has complete navigation, a complete reference and no dead links.

`make docs` builds the site and checks its links. These tests check links as GitHub resolves them.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from docs_site.anchors import slugify
from docs_site.build import copy_pages
from docs_site.check import check_site
from docs_site.pictures import FOLDER, PICTURES
from docs_site.reference import write_reference
from loader.cli import main
from loader.cli.setup import render_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    write_reference(folder)
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_the_navigation_has_every_page_once(tmp_path: Path) -> None:
    copy_pages(tmp_path)
    write_reference(tmp_path / "docs" / "reference")
    copied = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")]
    settings = tomllib.loads((ROOT / "docs_site" / "zensical.toml").read_text(encoding="utf-8"))
    assert sorted(_list_pages(settings["project"]["nav"])) == sorted(copied), (
        "list each page in docs_site/zensical.toml"
    )


def _list_pages(entries: list[dict[str, Any]]) -> list[str]:
    listed = []
    for entry in entries:
        for value in entry.values():
            listed += _list_pages(value) if isinstance(value, list) else [value]
    return listed


def test_the_reference_covers_commands_options_and_macros(reference: dict[str, str]) -> None:
    for name, command in main.commands.items():
        assert f"`loader {name}`" in reference["commands"]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else []:
                assert f"`{option}`" in reference["commands"]
    for definition in json.loads(render_schema(pytest.fail))["definitions"].values():
        for key, part in definition.get("properties", {}).items():
            assert f"| `{key}`" in reference["spec"]
            assert " ".join(part["description"].split())[:40] in reference["spec"]
    for name in ("deduped_latest", "as_of", "expire_snapshots"):
        assert f"## `{name}`" in reference["macros"]
    for path in (ROOT / "macros" / "generic_tests").glob("[!_]*.sql"):
        assert f"## `{path.stem}`" in reference["tests"]
    for path in (ROOT / "models").glob("*.sql"):
        assert f"## `{path.stem}`" in reference["models"]
    assert "::: loader.api.Loader\n" in reference["python-api"]


def test_no_cell_of_a_generated_table_breaks_its_row(reference: dict[str, str]) -> None:
    for name, text in reference.items():
        outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for table in re.findall(r"(?:^\|.*\n)+", outside, re.MULTILINE):
            cells = [re.sub(r"`[^`]*`", "", row).count("|") for row in table.splitlines()]
            assert len(set(cells)) == 1, (name, table)


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = [slugify(re.sub(r"\]\([^)]*\)|[`\[*]", "", heading), "-") for heading in headings]
    seen: Counter[str] = Counter()
    for index, anchor in enumerate(anchors):
        if seen[anchor]:
            anchors[index] = f"{anchor}-{seen[anchor]}"
        seen[anchor] += 1
    return {"", *anchors}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_have_targets(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if ":" in link.partition("/")[0]:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target), link


def test_the_pictures_are_up_to_date() -> None:
    drawn = {f"{name}.svg": draw() for name, draw in PICTURES.items()}
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert stored == drawn, "draw them anew: make pictures"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_dead_links_and_external_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="#top"></a><a href="/b.html"></a><a href="https://c.org"></a>'
        '<a href="#gone"></a><a href="c.html"></a><a href="b.html#top"></a>'
        '<script src="https://c.org/x.js"></script><img src="gone.svg">'
    )
    (tmp_path / "b.html").write_text('<link rel="canonical" href="https://c.org/b.html">')
    (tmp_path / "c.css").write_text('@import url("https://c.org/f.css"); a { background: url(x) }')
    assert check_site(tmp_path) == [
        "a.html: loads https://c.org/x.js",
        "a.html: the link gone.svg leads nowhere",
        "a.html: the link #gone leads to a page without this heading",
        "a.html: the link c.html leads nowhere",
        "a.html: the link b.html#top leads to a page without this heading",
        "c.css: loads https://c.org/f.css",
    ]

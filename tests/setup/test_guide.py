"""The examples in the README and the guide work, even those that the guide only mentions.

test_guide_commands.py runs the guide's commands.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from dbt.cli.main import dbtRunner

from loader.spark import setup
from tests.setup.pages import GUIDE, README, ROOT, blocks, commands, named
from tests.sync.project import Project


def test_the_readme_has_the_examples_of_the_guide() -> None:
    """So the test that runs the guide's commands covers the README, too."""
    for language, name in (
        ("yaml", "loader.yml"),
        ("sql", "models/strandline/shop_orders_latest.sql"),
    ):
        assert named(README, language, name) == named(GUIDE, language, name)
    assert blocks(README, "sql")[0] == blocks(GUIDE, "sql")[0]
    shown = commands(README)
    shown = shown[shown.index("loader check") : shown.index("dbt build") + 1]
    assert set(shown) <= set(commands(GUIDE))
    start = (ROOT / "docs" / "start.md").read_text()
    assert set(commands(start)) - {"make demo"} <= set(commands(GUIDE))
    for page in ("README.md", "docs/guide.md", "loader/spark/templates/loader.yml", "loader.yml"):
        for block in blocks((ROOT / page).read_text(), "yaml") or [(ROOT / page).read_text()]:
            assert "lookback:" not in block, f"{page}: no example needs one"


def test_the_package_in_an_existing_project(tmp_path: Path) -> None:
    (tmp_path / "packages.yml").write_text(named(GUIDE, "yaml", "packages.yml"))
    [wiring] = [b for b in blocks(GUIDE, "yaml") if b.startswith("# dbt_project.yml")]
    given = "name: your_project\nversion: '1.0.0'\nprofile: strandline\n"
    (tmp_path / "dbt_project.yml").write_text(given + wiring)
    setup.create(tmp_path, lambda _: None)
    for command in ("deps", "parse"):
        profiles = str(tmp_path / "profiles")
        places = ["--project-dir", str(tmp_path), "--profiles-dir", profiles, "--quiet"]
        done = dbtRunner().invoke([command, *places])
        assert done.success, done.exception


def test_files_instead_of_a_database(project: Project) -> None:
    [source] = [b for b in blocks(GUIDE, "yaml") if "path: file" in b]
    lake = named(GUIDE, "yaml", "loader.yml").partition("---\n")[2].replace("raw", project.schema)
    profiles = lake.replace("profile:", f"profiles_dir: {ROOT / 'profiles'}, profile:")
    (project.folder / "loader.yml").write_text(f"{source}---\n{profiles}")
    landing = project.folder / "landing" / "orders"
    landing.mkdir(parents=True)
    (landing / "monday.csv").write_text(
        textwrap.dedent("""\
        order_id,note
        1,first
        2,second
    """)
    )
    project.run()
    assert project.rows("select order_id, note from raw.orders order by 1") == [
        (1, "first"),
        (2, "second"),
    ]

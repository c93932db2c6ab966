"""Follows README and guide as a newcomer would: from a wheel, on a real PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import yaml
from dbt.cli.main import dbtRunner
from pyiceberg.table import StaticTable

from tests.services import Database
from tests.sync.project import Project

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
README = (ROOT / "README.md").read_text()
TABLES = """
    create table orders (
        order_id int primary key, total numeric(10, 2), updated_at timestamptz default now()
    );
    insert into orders select n, n * 1.5 from generate_series(1, 50) n;
    create table customers (
        customer_id int primary key, name text, updated_at timestamptz default now()
    );
    insert into customers select n, 'c' || n from generate_series(1, 10) n
"""


def blocks(text: str, language: str) -> list[str]:
    """Returns the code blocks of a page, unchanged."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def named(text: str, language: str, name: str) -> str:
    """Returns the block whose first line is a comment with this file name, without that line."""
    [found] = [b for b in blocks(text, language) if b.splitlines()[0].endswith(f" {name}")]
    return found.partition("\n")[2]


def commands(text: str) -> list[str]:
    """Returns the commands in a page's blocks, without comments."""
    lines = [
        line.partition("  #")[0].strip() for b in blocks(text, "bash") for line in b.split("\n")
    ]
    return [line for line in lines if line]


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Path:
    """The `bin` of a clean virtual environment with the wheel, and a PySpark that is not set up.

    The wheel's dependencies come from the suite's own environment, so nothing is downloaded.
    """
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    [packages] = (venv / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    (packages / "suite.pth").write_text("\n".join(site.getsitepackages()))
    given = Path(pyspark.__file__).parent
    # Copies of what finds Spark's folder by its own path, links to the rest.
    shutil.copytree(given / "bin", packages / "pyspark" / "bin")
    for path in given.iterdir():
        if path.is_file():
            shutil.copy(path, packages / "pyspark")
        elif path.name not in ("bin", "jars", "conf"):
            _link(path, packages / "pyspark" / path.name)
    for jar in (given / "jars").iterdir():
        if not jar.name.startswith(("iceberg-", "postgresql", "mariadb")):
            _link(jar.resolve(), packages / "pyspark" / "jars" / jar.name)
    script = f"#!{venv}/bin/python\nfrom dbt.cli.main import cli\ncli()\n"
    (venv / "bin" / "dbt").write_text(script)
    (venv / "bin" / "dbt").chmod(0o755)
    return venv / "bin"


def _link(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(path)


@pytest.fixture
def role(postgres_database: Database) -> Iterator[str]:
    """Creates the guide's role, with its rights; yields its password."""
    postgres_database.execute(TABLES)
    [statements] = blocks(GUIDE, "sql")[:1]
    postgres_database.execute(statements)
    yield re.search(r"password '(.*?)'", statements).group(1)  # type: ignore[union-attr]
    postgres_database.execute("drop owned by loader", "drop role loader")


def test_the_guide_is_followed_to_the_letter(
    environment: Path, role: str, postgres_database: Database, tmp_path: Path
) -> None:
    steps = commands(GUIDE)
    start = [line for line in steps[: steps.index("loader discover")] if "pip install" not in line]
    start = [line for line in start if not line.startswith("python3 -m venv")]
    assert start[0] == "mkdir lakehouse && cd lakehouse"
    # The class archive takes a while, and test_archive.py makes one.
    start = [line.replace("loader setup ", "loader setup --no-archive ") for line in start]
    load, build = steps[steps.index("loader discover") : -1], steps[-1]
    assert build == "dbt build --profiles-dir profiles"
    lakehouse, elsewhere = tmp_path / "lakehouse", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "guide.yml").write_text(named(GUIDE, "yaml", "loader.yml"))
    # dbt runs in another folder: what it writes must not depend on where it was started.
    from_elsewhere = build.replace("profiles-dir ", f"profiles-dir {lakehouse}/")
    script = [*start, "cp ../guide.yml loader.yml", *load, "cd ../elsewhere"]
    script.append(f"{from_elsewhere} --project-dir {lakehouse}")
    host, port, database = re.findall(r"//(.*?):(\d+)/(\w+)", postgres_database.url)[0]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STRANDLINE_", "PYTHONPATH"))}
    ran = subprocess.run(
        ["bash", "-xeuo", "pipefail", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={
            **kept,
            "PATH": f"{environment}:{os.environ['PATH']}",
            "PGHOST": host,
            "PGPORT": port,
            "PGDATABASE": database,
            "PGUSER": "loader",
            "PGPASSWORD": role,
            "NO_COLOR": "1",
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert "iceberg-spark-runtime-3.5_2.12-1.10.2.jar linked" in ran.stdout
    assert f"Spark: {environment.parent}" in ran.stdout
    assert "WARN=0 ERROR=0" in ran.stdout
    assert "warning" not in ran.stdout.lower().replace("warnings", ""), ran.stdout

    written = lakehouse / "models" / "strandline"
    model = (written / "shop_orders_latest.sql").read_text().partition("\n")[2]
    assert model == named(GUIDE, "sql", "models/strandline/shop_orders_latest.sql")
    for name in ("models.yml", "sources.yml"):
        shown = yaml.safe_load(named(GUIDE, "yaml", f"models/strandline/{name}"))
        assert _within(shown, yaml.safe_load((written / name).read_text())), name

    rows = {}
    for table in sorted((lakehouse / "warehouse").glob("*/*/metadata")):
        version = (table / "version-hint.text").read_text()
        read = StaticTable.from_metadata(str(table / f"v{version}.metadata.json"))
        assert read.metadata.location == str(table.parent)
        rows["/".join(table.parts[-3:-1])] = len(read.scan().to_arrow())
    assert rows["raw/orders"] == rows["analytics/shop_orders_latest"] == 50
    assert rows["analytics/shop_customers_latest"] == 10
    assert rows["raw/_cq_syncs"] > 0
    assert rows["analytics/cq_sync_log"] > 0


def _within(part: object, whole: object) -> bool:
    """Returns whether everything in a page's excerpt is in the whole file."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(_within(one, other) for other in whole) for one in part)
    return part == whole


def test_the_readme_shows_what_the_guide_does() -> None:
    """So the README is executed, too."""
    for language, name in (
        ("yaml", "loader.yml"),
        ("sql", "models/strandline/shop_orders_latest.sql"),
    ):
        assert named(README, language, name) == named(GUIDE, language, name)
    assert blocks(README, "sql")[0] == blocks(GUIDE, "sql")[0]
    shown = commands(README)
    shown = shown[
        shown.index("loader check") : shown.index("dbt build --profiles-dir profiles") + 1
    ]
    assert set(shown) <= set(commands(GUIDE))
    for page in ("README.md", "docs/guide.md", "loader/runtime/templates/loader.yml", "loader.yml"):
        for block in blocks((ROOT / page).read_text(), "yaml") or [(ROOT / page).read_text()]:
            assert "lookback:" not in block, f"{page}: no example needs one"


def test_the_package_in_a_project_that_you_have(tmp_path: Path) -> None:
    packages = named(GUIDE, "yaml", "packages.yml").replace("path/to/strandline", str(ROOT))
    (tmp_path / "packages.yml").write_text(packages)
    [wiring] = [b for b in blocks(GUIDE, "yaml") if b.startswith("# dbt_project.yml")]
    given = "name: your_project\nversion: '1.0.0'\nprofile: strandline\n"
    (tmp_path / "dbt_project.yml").write_text(given + wiring)
    shutil.copy(ROOT / "profiles" / "profiles.yml", tmp_path)
    for command in ("deps", "parse"):
        places = ["--project-dir", str(tmp_path), "--profiles-dir", str(tmp_path), "--quiet"]
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

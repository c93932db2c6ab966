"""`loader init` creates a project that dbt can parse, from a checkout and from a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from loader.errors import SpecError
from loader.package import package_folder
from loader.spark import setup
from loader.spark.profile import load_profile


def _create(folder: Path) -> list[str]:
    lines: list[str] = []
    setup.create(folder, lines.append)
    return lines


def _dbt(folder: Path, *command: str, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    script = "import sys; from dbt.cli.main import cli; sys.argv[0] = 'dbt'; cli()"
    return subprocess.run(
        [sys.executable, "-c", script, *command, *more],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "HOME": str(folder)},  # without the user's profiles
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_new_project_parses(tmp_path: Path) -> None:
    folder = tmp_path / "My Shop"
    folder.mkdir()

    reported = _create(folder)
    parsed = _dbt(folder, "parse")

    assert parsed.returncode == 0, parsed.stdout
    # Codegen writes sources and models, and dbt refuses duplicates.
    assert not (folder / "models").exists()
    assert "wrote loader.yml" in reported


def test_a_project_for_a_cluster(tmp_path: Path) -> None:
    """Its profile selects the cluster for the loader and dbt. The printed steps name its jars."""
    reported: list[str] = []
    setup.create(tmp_path, reported.append, target="cluster")
    variables = {"STRANDLINE_SPARK_MASTER": "yarn", "STRANDLINE_WAREHOUSE": "s3://bucket/lake"}
    profile = load_profile("strandline", None, tmp_path, str(tmp_path), env=variables)
    assert (profile.target, profile.conf["spark.master"]) == ("cluster", "yarn")
    given = {**variables, "STRANDLINE_TARGET": "embedded"}
    assert load_profile("strandline", None, tmp_path, str(tmp_path), env=given).target == "embedded"
    assert any("loader setup postgresql aws" in line for line in reported)


def test_dbt_deps_links_the_installed_package(tmp_path: Path) -> None:
    _create(tmp_path)

    done = _dbt(tmp_path, "deps")

    assert done.returncode == 0, done.stdout
    assert (tmp_path / "dbt_packages" / "strandline").resolve() == package_folder()


def test_an_existing_project_gets_the_missing_files(tmp_path: Path) -> None:
    own = {"dbt_project.yml": "name: mine\n", "packages.yml": "packages: []\n"}
    for name, text in own.items():
        (tmp_path / name).write_text(text)

    reported = _create(tmp_path)

    assert {name: (tmp_path / name).read_text() for name in own} == own
    [kept] = [line for line in reported if line.startswith("kept packages.yml: ")]
    assert f"add `- local: {setup.LINK}` to it, and run `dbt deps`" in kept
    assert any(line.startswith("kept dbt_project.yml: add `dispatch: ") for line in reported)
    assert {"wrote loader.yml", "wrote profiles/profiles.yml"} < set(reported)
    assert not (tmp_path / "dbt_packages").exists()  # packages.yml does not name the package
    (tmp_path / "dbt_project.yml").write_text("name: mine\nprofile: strandline\n")
    (tmp_path / "packages.yml").write_text(f"packages: [{{local: {setup.LINK}}}]\n")
    done = _dbt(tmp_path, "deps", more=["--profiles-dir", "profiles"])
    assert done.returncode == 0, done.stdout

    with pytest.raises(SpecError, match=r"already has .*\. Nothing is missing"):
        _create(tmp_path)


def test_an_existing_gitignore_is_kept(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")

    reported = _create(tmp_path)

    assert (tmp_path / ".gitignore").read_text() == "*.log\n"
    assert any(line.startswith("kept .gitignore: add .cq/") for line in reported)


def test_setup_restores_links_and_profile_in_a_clone(tmp_path: Path) -> None:
    _create(tmp_path)
    ignored = (tmp_path / ".gitignore").read_text().split()
    profile = tmp_path / "profiles.yml"
    for path in (tmp_path / setup.LINK, tmp_path / "dbt_packages" / "strandline", profile):
        # only files that git ignores contain paths of this machine
        assert any(str(path.relative_to(tmp_path)).startswith(i.rstrip("/")) for i in ignored)
        path.unlink()
    tracked = [p for p in tmp_path.iterdir() if p.is_file()]
    assert tracked
    assert not [p for p in tracked if str(tmp_path) in p.read_text()]
    (tmp_path / setup.LINK).symlink_to(tmp_path / "gone")

    setup.prepare([], tmp_path, lambda line: None)

    assert (tmp_path / setup.LINK / "dbt_project.yml").is_file()
    assert (tmp_path / "dbt_packages" / "strandline" / "macros").is_dir()
    assert _warehouse(tmp_path) == f"{tmp_path}/warehouse"


def test_setup_writes_no_profile_if_the_user_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    clone.mkdir()
    _create(clone)
    (home / ".dbt").mkdir(parents=True)
    (clone / "profiles.yml").rename(home / ".dbt" / "profiles.yml")
    monkeypatch.setenv("HOME", str(home))
    said: list[str] = []

    setup.prepare([], clone, said.append)
    assert said[-1] == f"profile: strandline, in {home}/.dbt/profiles.yml"
    assert not (clone / "profiles.yml").exists()

    (home / ".dbt" / "profiles.yml").write_text("another: {}")
    setup.prepare([], clone, said.append)
    assert (clone / "profiles.yml").exists()


def _warehouse(folder: Path) -> str:
    profile = load_profile("strandline", "embedded", folder, env={})
    return profile.conf["spark.sql.catalog.lake.warehouse"]


def test_the_warehouse_is_absolute_and_moves_with_the_project(tmp_path: Path) -> None:
    folder = tmp_path / 'Anna\'s "lake" \\ 1'
    folder.mkdir()
    _create(folder)
    reported: list[str] = []
    assert f"'{folder}" not in (folder / "profiles.yml").read_text()
    assert _warehouse(folder) == f"{folder}/warehouse"

    plain, moved = tmp_path / "plain", tmp_path / "moved"
    plain.mkdir()
    _create(plain)
    assert f"'{plain}/warehouse'" in (plain / "profiles.yml").read_text()
    shutil.copytree(plain, moved, symlinks=True)
    (plain / "warehouse").mkdir()
    setup.prepare([], moved, reported.append)
    assert any(f"warehouse: {plain}/warehouse, from profiles.yml" in line for line in reported)
    assert _warehouse(moved) == f"{plain}/warehouse"  # the folder exists, so this may be intended
    (plain / "warehouse").rmdir()
    setup.prepare([], moved, reported.append)
    assert reported[-1] == f"warehouse: {moved}/warehouse, in profiles.yml"
    assert _warehouse(moved) == f"{moved}/warehouse"


def test_setup_leaves_other_projects_alone(tmp_path: Path) -> None:
    (tmp_path / "packages.yml").write_text("packages: []\n")

    setup.prepare([], tmp_path, lambda line: None)

    assert [path.name for path in tmp_path.iterdir()] == ["packages.yml"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("shop", "shop"),
        ("My Shop", "my_shop"),
        ("2024-shop", "project_2024_shop"),
        ("strandline", "strandline_project"),
        ("été", "t"),
        ("--", "project"),
    ],
)
def test_the_projects_name_is_valid_in_dbt(folder: str, name: str) -> None:
    assert setup.project_name(Path("/data") / folder) == name


def test_the_templates_wire_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    _create(folder)

    project = yaml.safe_load((folder / "dbt_project.yml").read_text())
    profiles = yaml.safe_load((folder / "profiles.yml").read_text())
    source, destination = yaml.safe_load_all((folder / "loader.yml").read_text())

    assert project["dispatch"] == [
        {"macro_namespace": "dbt", "search_order": ["shop", "strandline", "dbt"]}
    ]
    assert project["profile"] in profiles
    assert set(profiles[project["profile"]]["outputs"]) == {"embedded", "cluster"}
    assert "target" not in destination["spec"]["spec"]  # otherwise STRANDLINE_TARGET has no effect
    assert source["spec"]["destinations"] == [destination["spec"]["name"]]


def test_the_wheel_contains_the_package_without_the_demo(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(installed)

    assert "loader/dbt_package/dbt_project.yml" in names
    assert "loader/dbt_package/macros/deduped_latest.sql" in names
    assert "loader/dbt_package/macros/generic_tests/unique_key.sql" in names
    assert "loader/dbt_package/docs/recovery.md" in names  # error messages refer to it
    assert "loader/spark/templates/loader.yml" in names
    assert not [name for name in names if "/demo/" in name or name.startswith("tests/")]

    project = tmp_path / "shop"
    project.mkdir()
    script = (
        "from pathlib import Path; from loader.package import package_folder\n"
        "from loader.spark import setup\n"
        "setup.create(Path('.'), lambda line: None); print(package_folder())"
    )
    env = {**os.environ, "PYTHONPATH": str(installed)}
    made = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", script],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.stdout.strip() == str(installed / "loader" / "dbt_package"), made.stderr
    parsed = _dbt(project, "parse")
    assert parsed.returncode == 0, parsed.stdout

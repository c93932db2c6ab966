"""Builds the command that starts Spark's JVM, and writes the file with its settings.

The command starts the same JVM as `spark-submit`, but without shell scripts and a launcher JVM. It
does not contain the settings, because all users of the machine can read command lines. It follows
the rules of Spark's `AbstractCommandBuilder` and `SparkSubmitCommandBuilder`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from loader.errors import SpecError
from loader.spark.class_archive import find_archive
from loader.spark.class_path import (
    ARGUMENTS,
    add_shipped_jars,
    conf_folder,
    find_needed_conf,
    list_jars,
    read_text,
)
from loader.spark.java import Java
from loader.spark.spark_version import SparkHome
from loader.spark.temporary_files import create_local_dir
from loader.spec.redaction import is_secret_key

_SPARK_SUBMIT_CLASS = "org.apache.spark.deploy.SparkSubmit"
_MEMORY = "spark.driver.memory"
_OPTIONS = "spark.driver.extraJavaOptions"
_DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
_CLASS_PATH = "spark.driver.extraClassPath"
_LIBRARY_PATH = "spark.driver.extraLibraryPath"
_QUIET_LOG = Path(__file__).parent / "templates" / "log4j2.properties"
# The option -Dname=value. Quotes may enclose the whole option or its value.
_SYSTEM_PROPERTY = re.compile(
    r"""(?<!\S)(?:(?P<quote>["'])-D(?P<name>[^\s=]+)=(?P<value>.*?)(?P=quote)"""
    r"""|-D(?P<bare>[^\s=]+)=(?P<text>"[^"]*"|'[^']*'|\S*))(?!\S)"""
)
# A line of a properties file. Spark also accepts white space as the separator.
_PROPERTY = re.compile(r"^[ \t]*(?P<key>[^\s#!=:][^\s=:]*)[ \t]*[=: \t][ \t]*(?P<value>.*?)\s*$")

# With its default thresholds, the C2 compiler takes a third of the CPU time, and most runs end
# before its code has saved as much. The thresholds are therefore forty times the defaults, which
# hot loops in large reads still exceed.
_LONG_RUN_OPTIONS = (
    "-XX:Tier4InvocationThreshold=200000",
    "-XX:Tier4MinInvocationThreshold=24000",
    "-XX:Tier4CompileThreshold=600000",
    "-XX:Tier4BackEdgeThreshold=1600000",
)
# By default, code from the C1 compiler profiles branches and types for C2. Profiling takes a tenth
# of a load's CPU time and a third of a dbt build's, and hardly improves the code from C2.
_NO_PERF_DATA_OPTIONS = (
    "-XX:-C1ProfileBranches",
    "-XX:-C1ProfileCheckcasts",
    "-XX:-C1ProfileInlinedCalls",
)
# By default, the heap grows until garbage collection takes less than a thirteenth of the time, so
# large loads would soon use all available memory. A low target for pauses keeps the heap's young
# generation small.
_PARALLEL_GC_OPTIONS = ("-XX:GCTimeRatio=2", "-XX:MaxGCPauseMillis=50")
# The threads of the default collector, G1, occupy two cores. On machines with two cores, the serial
# collector is as fast for large loads, faster for dbt builds, and needs a quarter less memory.
_SERIAL = ("-XX:+UseSerialGC",)
# Hadoop runs `chmod` for each local file. With this option, the subprocess starts twice as fast.
_VFORK_OPTIONS = ("-Djdk.lang.Process.launchMechanism=VFORK",)
# Without this option, a thread may die for lack of memory, and callers would wait for it forever.
_EXIT_ON_OUT_OF_MEMORY = ("-XX:+ExitOnOutOfMemoryError",)


@dataclass(frozen=True)
class JvmCommand:
    """The command that starts the JVM, and the properties to set in the running JVM.

    Attributes:
        secrets: system properties that contain secrets, which are set after the JVM starts.
        own: the settings that the loader adds to the profile's settings.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    own: Mapping[str, str]


def build_command(
    home: SparkHome, java: Java, settings: Mapping[str, str], folder: Path
) -> JvmCommand:
    """Builds the command, and writes the settings to a file that only this user can read.

    Args:
        settings: the settings of the profile and of the loader.
        folder: a private folder for the file. It must exist until the JVM is running.

    Raises:
        SpecError: if the user's options cannot be parsed.
        OSError: if the folder is not writable, or if the user's `spark-env.sh` cannot be run.
    """
    environment = _environment(home)
    given = _read_arguments(environment.get(ARGUMENTS, ""))
    defaults = read_text(given.properties or conf_folder(home, environment) / "spark-defaults.conf")
    settings = {**settings, **given.settings}
    driver = {**_parse_properties(defaults), **settings}
    submitted, secrets = split_options(environment.get("SPARK_SUBMIT_OPTS", ""))
    for key in (_DEFAULT_OPTIONS, _OPTIONS):
        options, secret_options = split_options(driver.get(key, ""))
        if secret_options:
            settings, secrets = {**settings, key: options}, {**secrets, **secret_options}
    own = {**create_local_dir(settings, defaults), **add_shipped_jars(home, driver)}
    settings = {**settings, **own}

    path = folder / "spark.properties"
    with open(path, "x", encoding="utf-8", opener=_open_private) as file:
        # Spark reads only one file, and uses the last value of a key.
        file.write(f"{defaults}\n\n{format_properties(settings)}")

    driver = {**driver, **settings}
    own_options = [
        *_split("SPARK_SUBMIT_OPTS", submitted),
        *_split(_DEFAULT_OPTIONS, driver.get(_DEFAULT_OPTIONS, "")),
        *_split(_OPTIONS, driver.get(_OPTIONS, "")),
    ]
    memory = driver.get(_MEMORY) or environment.get("SPARK_DRIVER_MEMORY") or "1g"
    if driver.get(_LIBRARY_PATH):
        libraries = [driver[_LIBRARY_PATH], environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    host = driver.get("spark.driver.host", "")
    if host and not environment.keys() & {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"}:
        # Otherwise, Spark needlessly resolves the machine's host name.
        environment["SPARK_LOCAL_HOSTNAME"] = host
    before, after = _user_class_path(home, environment, driver)
    jars = [str(jar) for jar in list_jars(home, driver)]
    archive = None
    if not before and not after and not _forbids_archive(own_options, environment):
        archive = find_archive(home, java, jars)
    recorded = archive.class_path if archive else ()
    class_path = [*before, *recorded, *(jar for jar in jars if jar not in recorded), *after]
    arguments = (
        str(java.program),
        "-cp",
        os.pathsep.join(class_path),
        *home.line.options,
        *_tune_options(own_options, environment),
        *(archive.options if archive else ()),
        *_log_options(home, environment, own_options),
        f"-Xmx{memory}",
        *own_options,
        _SPARK_SUBMIT_CLASS,
        "--properties-file",
        str(path),
        *given.others,
    )
    return JvmCommand(arguments, environment, secrets, own)


def split_options(options: str) -> tuple[str, dict[str, str]]:
    """Separates the system properties that contain secrets from Java's other options."""
    secrets = {}

    def keep(match: re.Match[str]) -> str:
        name = match["name"] or match["bare"]
        if not is_secret_key(name):
            return match[0]
        secrets[name] = match["value"] if match["name"] else match["text"].strip("\"'")
        return ""

    return _SYSTEM_PROPERTY.sub(keep, options).strip(), secrets


def format_properties(settings: Mapping[str, str]) -> str:
    """Formats settings as a Java properties file, in ASCII."""
    return "".join(f"{_escape(key, True)}={_escape(settings[key])}\n" for key in settings)


@dataclass(frozen=True)
class _Given:
    """The user's arguments for `spark-submit`, from `PYSPARK_SUBMIT_ARGS`."""

    settings: Mapping[str, str]
    properties: Path | None
    others: Sequence[str]


def _read_arguments(given: str) -> _Given:
    """Parses the arguments that affect the JVM. SparkSubmit parses the others."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    keys_by_option = {
        "--driver-memory": _MEMORY,
        "--driver-java-options": _OPTIONS,
        "--driver-class-path": _CLASS_PATH,
        "--driver-library-path": _LIBRARY_PATH,
    }
    for option, key in keys_by_option.items():
        parser.add_argument(option, dest=key)
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--properties-file", type=Path)
    words = iter(_split(ARGUMENTS, given) or ["pyspark-shell"])
    # A value, such as a Java option, may start with a dash.
    takes_value = {*keys_by_option, "--conf", "-c", "--properties-file"}
    joined = [f"{word}={next(words, '')}" if word in takes_value else word for word in words]
    known, others = parser.parse_known_args(joined)
    pairs = (pair.partition("=") for pair in known.conf)
    settings = {key: value for key, _, value in pairs}
    settings |= {key: vars(known)[key] for key in keys_by_option.values() if vars(known)[key]}
    return _Given(settings, known.properties_file, others)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SpecError(message, where=ARGUMENTS, remedy="Use the syntax of `spark-submit`")


def _split(name: str, options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise SpecError(
            f"cannot be parsed ({error})", where=name, remedy="Close each quote in it"
        ) from error


def _environment(home: SparkHome) -> dict[str, str]:
    """Returns this process's environment, and the variables that `spark-env.sh` exports."""
    environment = {**os.environ, "SPARK_HOME": str(home.folder)}
    script = conf_folder(home, environment) / "spark-env.sh"
    if script.is_file():
        command = ["bash", "-c", 'set -a; . "$1" >&2; env -0', "bash", str(script)]
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        pairs = (pair.partition(b"=") for pair in output.stdout.split(b"\0") if b"=" in pair)
        environment |= {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return environment


def _user_class_path(
    home: SparkHome, environment: Mapping[str, str], driver: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Returns the user's class path entries before and after Spark's jars."""
    conf = find_needed_conf(home, environment)
    before = [driver.get(_CLASS_PATH, ""), str(conf) if conf else ""]
    names = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
    after = [environment.get(name, "") for name in names]
    return [*filter(None, before)], [*filter(None, after)]


def _tune_options(given: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns options that suit short runs, except those that the user sets."""
    all_options = " ".join([*given, *_java_variables(environment)])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = _PARALLEL_GC_OPTIONS if (cores or 1) > 2 else _SERIAL
    options: list[str] = []
    if "-XX:Tier4" not in all_options:
        options += _LONG_RUN_OPTIONS
    if "C1Profile" not in all_options:
        options += _NO_PERF_DATA_OPTIONS
    if not re.search(r"-XX:\S*(?:GC|G1)|HeapOccupancy|Deduplication", all_options):
        options += memory
    if "launchMechanism" not in all_options and os.uname().sysname == "Linux":
        options += _VFORK_OPTIONS
    if "OnOutOfMemoryError" not in all_options:
        options += _EXIT_ON_OUT_OF_MEMORY
    return options


def _forbids_archive(given: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Returns whether the user's options do not allow the loader's class archive.

    They may name a different archive, a file of options, or an agent. With an agent, archived
    classes may crash the JVM.
    """
    all_options = " " + " ".join([*given, *_java_variables(environment)])
    return bool(
        re.search(
            r"-Xshare:|SharedArchiveFile|ArchiveClassesAtExit|-javaagent:|-agentlib:|-agentpath:"
            r"|-Xrun|StartFlightRecording|[\s=\"']@|VMOptionsFile|-XX:Flags=",
            all_options,
        )
    )


def _java_variables(environment: Mapping[str, str]) -> list[str]:
    names = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
    return [environment.get(name, "") for name in names]


def _log_options(
    home: SparkHome, environment: Mapping[str, str], given: Sequence[str]
) -> list[str]:
    """Returns the option that makes logs quiet, unless the user configures log4j."""
    all_options = " ".join([*given, *_java_variables(environment)])
    if "LOG4J_CONFIGURATION_FILE" in environment or "log4j" in all_options:
        return []
    conf = conf_folder(home, environment)
    own = conf / "log4j2.properties"
    if own.is_file():
        return [f"-Dlog4j.configurationFile={own}"]
    if any(file.suffix != ".template" for file in conf.glob("log4j2*")):
        return []  # log4j finds a file in a different format on the class path
    return [f"-Dlog4j.configurationFile={_QUIET_LOG}"]


def _parse_properties(text: str) -> dict[str, str]:
    lines = re.sub(r"\\\r?\n[ \t]*", "", text).splitlines()  # joins continued lines
    matches = (_PROPERTY.match(line) for line in lines)
    return {match["key"]: match["value"] for match in matches if match}


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _escape(text: str, key: bool = False) -> str:
    special = "\\=:#! " if key else "\\"
    pieces = []
    for place, character in enumerate(text):
        if character in special or (character in " \t\f" and not place):
            pieces.append("\\" + {"\t": "t", "\f": "f"}.get(character, character))
        elif " " <= character <= "~":
            pieces.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass").hex()
            pieces += [f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)]
    return "".join(pieces)

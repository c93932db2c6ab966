"""Builds of `deduped_latest`: rebuilds, merges, refusals, crashes and compaction."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loader.property_codec import decode_property, encode_property
from tests.dbt.dbtproject import DbtProject, Result
from tests.dbt.icebergrows import IcebergRows
from tests.dbt.rawtables import RawSchema, Row
from tests.dbt.scenarios import Command, Steps, in_step

COLUMNS = "id int, cursor int, payload string"
DOUBTFUL = {
    "no_key": (
        "{{ config(materialized='deduped_latest') }} select * from {{ source('shop', 'orders') }}"
    ),
    "wrong_key": (
        "{{ config(materialized='deduped_latest', unique_key='order_id') }} "
        "select * from {{ source('shop', 'orders') }}"
    ),
    "wrong_cursor": (
        "{{ config(materialized='deduped_latest', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'updated'}}) }} "
        "select * from {{ source('shop', 'orders') }}"
    ),
    "no_cq_columns": (
        "{{ config(materialized='deduped_latest', unique_key='id') }} "
        "select id, cursor from {{ source('shop', 'orders') }}"
    ),
}


def row(key: int, cursor: int, payload: str | None = "x", **more: Any) -> Row:
    return {"id": key, "cursor": cursor, "payload": payload, **more}


class Shop:
    """A project with one raw table per test and one model of each."""

    def __init__(self, project: DbtProject, raw: RawSchema) -> None:
        self.project, self.raw = project, raw
        tables = ["orders", "grown", "rolled", "crashed", "stale", "recreated", "pruned", "empty"]
        tables += ["small_files", "broken_off", "dead_rows", "reloaded", "kept", "foreign", "small"]
        for table in tables:
            raw.create(table, COLUMNS)
            project.write(
                f"models/{table}.sql",
                "{{ config(materialized='deduped_latest', unique_key='id', "
                "meta={'strandline': {'cursor_field': 'cursor', "
                f"'delete_stale': {str(table == 'stale').lower()}}}}}"
                f"{', full_refresh=false' if table == 'kept' else ''}) }}}}\n"
                f"select * from {{{{ source('shop', '{table}') }}}}",
            )
        for name, sql in DOUBTFUL.items():
            project.write(f"models/{name}.sql", sql)
        project.write(
            "models/history_reloaded.sql",
            "{{ config(materialized='deduped_history', unique_key='id', "
            "meta={'strandline': {'cursor_field': 'cursor'}}) }}"
            " select * from {{ source('shop', 'reloaded') }}",
        )
        project.write(
            "models/sources.yml",
            {
                "sources": [
                    {"name": "shop", "schema": raw.schema, "tables": [{"name": t} for t in tables]}
                ],
                "models": [
                    {
                        "name": "orders",
                        "description": "It's one row per order.",
                        "config": {"persist_docs": {"relation": True, "columns": True}},
                        "columns": [{"name": "id", "description": "The order's number."}],
                    },
                    {"name": "foreign", "data_tests": ["strandline.matches_raw"]},
                ],
            },
        )

    def build(self, model: str) -> str:
        """Builds one model; returns dbt's message."""
        return self.project.run("run", "--select", model)[model].message

    def plan_build(self, model: str, *flags: str) -> Command:
        """Returns :meth:`build` for a scenario to yield."""
        return Command(("run", *flags), (model,), lambda results: results[model].message)

    def plan_messages(self, *models: str) -> Command:
        """Returns a build of several models for a scenario to yield; answered with messages."""

        def read(results: Mapping[str, Result]) -> list[str]:
            return [re.sub(r"\s+", " ", results[model].message) for model in models]

        return Command(("run",), models, read)

    def plan_proof(self, model: str) -> Command:
        """Returns a run of a model's test for a scenario to yield; its answer is the status."""

        def read(results: Mapping[str, Result]) -> str:
            [status] = [one.status for one in results.values() if one.tested == model]
            return status

        return Command(("test",), (model,), read)

    def latest(self, model: str) -> dict[int, str]:
        return {one["id"]: one["payload"] for one in self.project.rows(model)}

    def metadata_files(self, model: str) -> int:
        frame = self.project.spark.sql(
            f"select file from {self.project.schema}.{model}.metadata_log_entries"
        )
        return frame.count()


@pytest.fixture(scope="module")
def shop(project: DbtProject, raw: RawSchema) -> Shop:
    return Shop(project, raw)


@in_step
def test_a_build_without_a_new_batch_writes_nothing(shop: Shop) -> Steps:
    """Without a new batch, a build writes no snapshot or metadata file; docs are persisted once."""
    shop.raw.append("orders", 1, [row(1, 1), row(2, 1)])
    assert (yield shop.plan_build("orders")) == "REBUILD to batch 1"
    assert (yield shop.plan_build("orders")) == "NO NEW BATCH"
    before = shop.project.snapshots("orders"), shop.metadata_files("orders")
    assert (yield shop.plan_build("orders")) == "NO NEW BATCH"
    assert (shop.project.snapshots("orders"), shop.metadata_files("orders")) == before
    described = shop.project.spark.sql(f"describe extended {shop.project.schema}.orders").collect()
    comments = {one[0]: one[2] for one in described}
    assert comments["id"] == "The order's number."
    assert "It's one row per order." in {one[1] for one in described}


@in_step
def test_a_refusal_names_the_remedy(shop: Shop) -> Steps:
    words = {
        "no_key": ["needs a unique_key", "unique_key='id'"],
        "wrong_key": [
            "the unique_key 'order_id' is not one of its columns",
            "id, cursor",
        ],
        "wrong_cursor": ["the cursor_field 'updated' is not one of its columns"],
        "no_cq_columns": ["lacks _cq_batch, _cq_seq", "keep the _cq_ columns"],
    }
    messages = yield shop.plan_messages(*words)
    for message, (model, said) in zip(messages, words.items(), strict=True):
        assert [word for word in (model, *said) if word not in message] == []


@in_step
def test_empty_is_refused_on_a_real_target(shop: Shop) -> Steps:
    shop.raw.append("empty", 1, [row(1, 1)])
    yield shop.plan_build("empty")
    assert "--empty would empty" in (yield shop.plan_build("empty", "--empty"))
    assert shop.latest("empty") == {1: "x"}


@in_step
def test_column_added_in_raw(shop: Shop) -> Steps:
    """A new column is null in old rows; for a new struct column, the table is rebuilt."""
    shop.raw.append("grown", 1, [row(1, 1), row(2, 1)])
    yield shop.plan_build("grown")
    shop.raw.spark.sql(f"alter table {shop.raw.schema}.grown add columns (note string)")
    shop.raw.append("grown", 2, [row(2, 2, note="new")])
    assert (yield shop.plan_build("grown")) == "MERGE to batch 2"
    # too wide for DESCRIBE to print it whole
    fields = ", ".join(f"f{number}: int" for number in range(40))
    shop.raw.spark.sql(f"alter table {shop.raw.schema}.grown add columns (wide struct<{fields}>)")
    shop.raw.append("grown", 3, [row(3, 3, wide={f"f{n}": n for n in range(40)})])
    assert (yield shop.plan_build("grown")) == "REBUILD to batch 3"
    shop.raw.append("grown", 4, [row(4, 4, wide={f"f{n}": -n for n in range(40)})])
    assert (yield shop.plan_build("grown")) == "MERGE to batch 4"
    rows = {one["id"]: one for one in shop.project.rows("grown")}
    assert (rows[1]["note"], rows[1]["wide"]) == (None, None)
    assert (rows[2]["note"], rows[2]["wide"]) == ("new", None)
    assert (rows[3]["wide"]["f39"], rows[4]["wide"]["f39"]) == (39, -39)


@in_step
def test_a_latest_table_that_was_rolled_back_is_rebuilt(shop: Shop) -> Steps:
    """The watermark names a snapshot that is no longer current, so the table is rebuilt."""
    shop.raw.append("rolled", 1, [row(1, 1, "1"), row(2, 1, "1"), row(3, 1, "1")])
    yield shop.plan_build("rolled")
    shop.raw.append("rolled", 2, [row(1, 2, "2"), row(2, 2, _deleted=True)])
    assert (yield shop.plan_build("rolled")) == "MERGE to batch 2"
    first = shop.project.snapshots("rolled")[0]
    shop.project.spark.sql(
        f"call lake.system.rollback_to_snapshot('{shop.project.schema}.rolled', {first})"
    )
    assert shop.latest("rolled") == {1: "1", 2: "1", 3: "1"}
    assert (yield shop.plan_build("rolled")) == "REBUILD to batch 2"
    assert shop.latest("rolled") == {1: "2", 3: "1"}


@in_step
def test_crash_between_merge_and_watermark(shop: Shop) -> Steps:
    """An old watermark may mean a crash or a foreign write, so the table is rebuilt."""
    shop.raw.append("crashed", 1, [row(1, 1, "1"), row(2, 1, "1")])
    yield shop.plan_build("crashed")
    table = f"{shop.project.schema}.crashed"
    spark = shop.project.spark
    before = {one[0]: one[1] for one in spark.sql(f"show tblproperties {table}").collect()}
    shop.raw.append("crashed", 2, [row(1, 2, _deleted=True), row(3, 1, "3")])
    yield shop.plan_build("crashed")
    stored = before["strandline.watermark"]
    spark.sql(f"alter table {table} set tblproperties ('strandline.watermark' = '{stored}')")
    shop.raw.append("crashed", 3, [row(1, 1, "late")])
    assert (yield shop.plan_build("crashed")) == "REBUILD to batch 3"
    assert shop.latest("crashed") == {2: "1", 3: "3"}


@in_step
def test_a_recreated_raw_table_causes_a_rebuild(shop: Shop) -> Steps:
    shop.raw.append("recreated", 1, [row(1, 1)])
    shop.raw.append("recreated", 2, [row(2, 1)])
    yield shop.plan_build("recreated")
    shop.raw.spark.sql(f"drop table {shop.raw.schema}.recreated")
    shop.raw.create("recreated", COLUMNS)
    shop.raw.append("recreated", 1, [row(7, 1)])
    assert (yield shop.plan_build("recreated")) == "REBUILD to batch 1"
    assert shop.latest("recreated") == {7: "x"}


@in_step
def test_a_raw_table_loaded_again_to_the_same_batch_causes_a_rebuild(shop: Shop) -> Steps:
    """A raw table that was dropped and loaded again is recognized by its id, not its batch."""
    both = ("reloaded", "history_reloaded")
    for table in ("reloaded", "kept"):
        load(shop, table, "first", [row(1, 1), row(2, 1)])
    yield shop.plan_messages(*both, "kept")
    assert (yield shop.plan_messages(*both)) == ["NO NEW BATCH"] * 2
    for table in ("reloaded", "kept"):
        shop.raw.spark.sql(f"drop table {shop.raw.schema}.{table}")
        shop.raw.create(table, COLUMNS)
        load(shop, table, "second", [row(7, 1)])
    *built, refusal = yield shop.plan_messages(*both, "kept")
    assert built == ["REBUILD to batch 1"] * 2
    assert shop.latest("reloaded") == shop.latest("history_reloaded") == {7: "x"}
    assert (yield shop.plan_messages(*both)) == ["NO NEW BATCH"] * 2
    # A model that may not be rebuilt is left as it is.
    assert f"{shop.raw.schema}.kept was dropped and loaded again" in refusal
    assert "full_refresh: false" in refusal
    assert shop.latest("kept") == {1: "x", 2: "x"}


def load(shop: Shop, table: str, identity: str, rows: list[Row]) -> None:
    """Appends batch 1 to a raw table and gives it an id, as the loader does."""
    shop.raw.spark.sql(
        f"alter table {shop.raw.schema}.{table} "
        f"set tblproperties ('strandline.table-id' = '{identity}')"
    )
    shop.raw.append(table, 1, rows)


@in_step
def test_compaction_by_another_program_is_no_difference(shop: Shop) -> Steps:
    """Compaction by another program keeps the table valid, even after a batch with only deletes."""
    shop.raw.append("foreign", 1, [row(1, 1), row(2, 1), row(3, 1)])
    yield shop.plan_build("foreign")
    shop.raw.append("foreign", 2, [row(2, 2, _deleted=True)])
    yield shop.plan_build("foreign")
    name = f"{shop.project.schema}.foreign"
    shop.project.spark.sql(
        f"call lake.system.rewrite_data_files(table => '{name}', "
        "options => map('rewrite-all', 'true'))"
    )
    assert (yield shop.plan_proof("foreign")) == "pass"
    # A foreign write is found, even if it removed the rows of the newest batch.
    shop.raw.append("foreign", 3, [row(4, 3)])
    yield shop.plan_build("foreign")
    shop.project.spark.sql(f"delete from {name} where id = 4")
    assert (yield shop.plan_proof("foreign")) == "fail"
    assert (yield shop.plan_build("foreign")) == "REBUILD to batch 3"
    assert (yield shop.plan_proof("foreign")) == "pass"


@in_step
def test_a_full_refresh_hides_deleted_rows(shop: Shop) -> Steps:
    """A full refresh hides missing rows once the ledger lists it as complete, and not before."""
    raw = shop.raw
    raw.append("stale", 1, [row(1, 1), row(2, 1)])
    raw.syncs("stale", [{"batch": 1}])
    yield shop.plan_build("stale")
    raw.append("stale", 2, [row(1, 1, "2")], generation=2)
    raw.syncs(
        "stale", [{"batch": None, "generation": 2, "mode": "full_refresh", "status": "failed"}]
    )
    assert (yield shop.plan_build("stale")) == "MERGE to batch 2"
    assert shop.latest("stale") == {1: "2", 2: "x"}
    raw.syncs(
        "stale", [{"batch": 2, "generation": 2, "mode": "full_refresh", "status": "recovered"}]
    )
    assert (yield shop.plan_build("stale")) == "REBUILD to batch 2"
    assert shop.latest("stale") == {1: "2"}
    raw.append("stale", 3, [row(3, 1, "3")], generation=2)
    raw.syncs("stale", [{"batch": 3, "generation": 2}])
    assert (yield shop.plan_build("stale")) == "MERGE to batch 3"
    assert shop.latest("stale") == {1: "2", 3: "3"}


@in_step
def test_a_small_table_is_rebuilt(shop: Shop) -> Steps:
    """A variable sets the number of raw rows up to which this holds; the suite's projects set 0."""
    flags = ("--vars", "{strandline__rebuild_up_to_rows: 3}")
    shop.raw.append("small", 1, [row(1, 1, "1"), row(2, 1)])
    yield shop.plan_build("small")
    shop.raw.append("small", 2, [row(1, 2, "2")])
    assert (yield shop.plan_build("small", *flags)) == "REBUILD to batch 2"
    assert (yield shop.plan_build("small", *flags)) == "NO NEW BATCH"
    shop.raw.append("small", 3, [row(2, 2, _deleted=True)])
    assert (yield shop.plan_build("small", *flags)) == "MERGE to batch 3"
    assert shop.latest("small") == {1: "2"}


def statements(spark: SparkSession) -> Any:
    """Returns Spark's record of statements and their metrics, once it is up to date."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return spark._jsparkSession.sharedState().statusStore()


def last_execution(spark: SparkSession) -> int:
    """Returns the newest statement's id; ids grow, but the oldest leave the list."""
    found = statements(spark).executionsList()
    return max(int(found.apply(at).executionId()) for at in range(found.size()))


def files_read(spark: SparkSession, table: str, after: int) -> int:
    """Counts the data files of a table that the statements after the given one planned to read."""
    store = statements(spark)
    found = store.executionsList()
    total = 0
    for execution in (found.apply(at) for at in range(found.size())):
        if execution.executionId() <= after:
            continue
        values = store.executionMetrics(execution.executionId())
        try:
            nodes = store.planGraph(execution.executionId()).allNodes()
        except Py4JJavaError:  # Spark keeps 20 statements and has dropped this one by now
            return files_read(spark, table, after)
        for node in (nodes.apply(one) for one in range(nodes.size())):
            if table not in node.name():
                continue
            for metric in (node.metrics().apply(one) for one in range(node.metrics().size())):
                value = values.get(metric.accumulatorId())
                if metric.name() == "number of result data files" and value.isDefined():
                    total += int(value.get().replace(",", ""))
    return total


def test_only_new_files_are_read(shop: Shop) -> None:
    """The watermark is a literal in the SQL, so Iceberg skips the files of old batches.

    A build counts the rows of new batches before it writes them, so it reads each new file twice.
    """
    raw, spark = shop.raw, shop.raw.spark
    for batch in range(1, 9):
        raw.append("pruned", batch, [row(batch, 1)])
    begun = last_execution(spark)
    assert shop.build("pruned") == "REBUILD to batch 8"
    assert files_read(spark, f"{raw.schema}.pruned", begun) == 2 * 8
    raw.append("pruned", 9, [row(1, 2, "9")])
    begun = last_execution(spark)
    assert shop.build("pruned") == "MERGE to batch 9"
    assert files_read(spark, f"{raw.schema}.pruned", begun) == 2 * 1


def confirm(spark: SparkSession, table: str) -> None:
    """Changes the table's watermark to name the current snapshot."""
    listed = spark.sql(f"show tblproperties {table}").collect()
    [stored] = [one[1] for one in listed if one[0] == "strandline.watermark"]
    [[snapshot]] = spark.sql(f"select cast(snapshot_id as string) from {table}.refs").collect()
    text = encode_property(
        json.dumps({**json.loads(decode_property(stored)), "snapshot": snapshot})
    )
    spark.sql(f"alter table {table} set tblproperties ('strandline.watermark' = '{text}')")


@in_step
def test_small_files_are_compacted_once(shop: Shop) -> Steps:
    """Delete files are removed, too; otherwise, they would make every build rewrite the table."""
    raw, spark = shop.raw, shop.project.spark
    table = f"{shop.project.schema}.small_files"

    def newest(*what: str) -> tuple[str, ...]:
        columns = ", ".join(f"summary['total-{one}-files']" for one in what)
        frame = spark.sql(f"select operation, {columns} from {table}.snapshots")
        return tuple(frame.collect()[-1])

    raw.append("small_files", 1, [row(key, 1, "old") for key in range(200)])
    yield shop.plan_build("small_files")
    spark.table(table).repartition(18).writeTo(table).overwrite(f.lit(True))
    spark.sql(f"delete from {table} where id % 2 = 0")
    assert newest("data", "delete")[1:] == ("18", "18")
    confirm(spark, table)
    raw.append("small_files", 2, [row(key, 2, "new") for key in range(200)])
    yield shop.plan_build("small_files")
    _, data, deletes = newest("data", "delete")
    assert int(data) + int(deletes) <= 2
    assert shop.latest("small_files") == dict.fromkeys(range(200), "new")
    raw.append("small_files", 3, [row(1, 3, "newer")])
    yield shop.plan_build("small_files")
    assert newest("data")[0] == "overwrite"
    assert shop.latest("small_files") == {**dict.fromkeys(range(200), "new"), 1: "newer"}


@in_step
def test_a_failed_rewrite_of_files_causes_no_rebuild(shop: Shop) -> Steps:
    """The merge before the failed rewrite remains valid, so the table is not rebuilt."""
    raw, spark = shop.raw, shop.project.spark
    table = f"{shop.project.schema}.broken_off"
    raw.append("broken_off", 1, [row(key, 1, "old") for key in range(200)])
    yield shop.plan_build("broken_off")
    spark.table(table).repartition(18).writeTo(table).overwrite(f.lit(True))
    spark.sql(f"delete from {table} where id % 2 = 0")
    confirm(spark, table)
    # with this property, a merge works but a rewrite fails
    spark.sql(f"alter table {table} set tblproperties ('write.target-file-size-bytes' = '0')")
    raw.append("broken_off", 2, [row(key, 2, "new") for key in range(200)])
    assert "size" in (yield shop.plan_build("broken_off")), "the rewrite did not break off"
    spark.sql(f"alter table {table} unset tblproperties ('write.target-file-size-bytes')")
    assert (yield shop.plan_build("broken_off")) == "NO NEW BATCH"
    assert shop.latest("broken_off") == dict.fromkeys(range(200), "new")
    raw.append("broken_off", 3, [row(1, 3, "newer")])
    assert (yield shop.plan_build("broken_off")) == "MERGE to batch 3"
    assert shop.latest("broken_off") == {**dict.fromkeys(range(200), "new"), 1: "newer"}


@in_step
def test_files_with_many_deleted_rows_are_rewritten(shop: Shop) -> Steps:
    """A merge marks replaced rows as deleted, and readers skip them until files are rewritten.

    The build reads the number of deleted rows from metadata: it claims a million instead of ten.
    """
    raw, spark = shop.raw, shop.project.spark
    table = f"{shop.project.schema}.dead_rows"

    def deleted() -> int:
        summary = f"select summary['total-position-deletes'] from {table}.snapshots"
        return int(spark.sql(summary).collect()[-1][0] or 0)

    raw.append("dead_rows", 1, [row(key, 1, "old") for key in range(20)])
    yield shop.plan_build("dead_rows")
    # in two files, because the merge counts the deleted rows of the file that it changes
    spark.table(table).where("id < 10").coalesce(1).writeTo(table).overwrite(f.lit(True))
    first = spark.table(table)
    more = [first.withColumn("id", f.col("id") + start) for start in (10, 1000)]
    more[0].union(more[1]).coalesce(1).writeTo(table).append()
    spark.sql(f"delete from {table} where id >= 1000")
    IcebergRows(spark, table).count_deleted_as(1_000_001)
    assert deleted() > 1_000_000
    confirm(spark, table)
    raw.append("dead_rows", 2, [row(1, 2, "new")])
    yield shop.plan_build("dead_rows")
    assert deleted() == 0
    assert shop.latest("dead_rows") == {**dict.fromkeys(range(20), "old"), 1: "new"}

"""What an incremental build reads, the 20th time and the 200th: the delta, not the history.

    python benchmarks/builds.py [builds]

The same delta comes again and again (new versions of the same hundred keys among ten thousand),
each followed by a build of a snapshot and of a history, in one process. Files and bytes are Spark's
own scan metrics: of the raw table, and of the table that is merged into.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.dbt.dbtproject import DbtProject  # noqa: E402
from tests.dbt.rawtables import RawSchema  # noqa: E402

KEYS = 10_000
DELTA = 100
LOOKED_AT = (20, 200)
MODEL = """\
{{{{ config(materialized='{materialized}', primary_key='id', cursor_field='cursor') }}}}
select * from {{{{ source('shop', 'orders') }}}}
"""


def main(builds: int) -> int:
    """Prints what was read; 1 where a later build reads more than a tenth more of raw."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-builds-"))
    os.environ["STRANDLINE_WAREHOUSE"] = str(folder / "warehouse")
    from loader.profile import load_profile
    from loader.spark import session

    spark = session(
        load_profile("strandline", "embedded", ROOT, profiles_dir=str(ROOT / "profiles"))
    )
    try:
        return _measured(spark, folder, builds)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _measured(spark: Any, folder: Path, builds: int) -> int:
    raw = RawSchema(spark, "raw")
    raw.create("orders", "id int, cursor int, payload string")
    project = DbtProject(spark, folder / "project", schema="mart", raw_schema="raw")
    models = {"latest": "deduped_latest", "history": "deduped_history"}
    for name, materialized in models.items():
        project.write(f"models/{name}.sql", MODEL.format(materialized=materialized))
    sources = [{"name": "shop", "schema": "raw", "tables": [{"name": "orders"}]}]
    project.write("models/sources.yml", {"sources": sources})
    manifest = project.parse()
    raw.append("orders", 1, [{"id": n, "cursor": 0, "payload": f"row {n}"} for n in range(KEYS)])
    project.run("run", "--select", *models, manifest=manifest)
    read: dict[tuple[int, str, str], dict[str, int]] = {}
    print(f"{'build':>6} {'model':8} {'table':14} {'files':>7} {'bytes':>12} {'rows':>9}", flush=True)
    for build in range(1, builds + 1):
        rows = [{"id": n, "cursor": build, "payload": f"row {n}"} for n in range(DELTA)]
        raw.append("orders", build + 1, rows)
        for name in models:
            after = _newest(spark)
            (result,) = project.run("run", "--select", name, manifest=manifest).values()
            assert result.status == "success", result
            if build in (*LOOKED_AT, builds):
                for table in ("raw.orders", f"mart.{name}"):
                    found = read[(build, name, table)] = _scanned(spark, table, after)
                    numbers = f"{found['files']:>7,} {found['bytes']:>12,} {found['rows']:>9,}"
                    print(f"{build:>6} {name:8} {table:14} {numbers}", flush=True)
    early, late = min(LOOKED_AT), builds
    grown = [
        name
        for name in models
        for what in ("files", "bytes")
        if read[(late, name, "raw.orders")][what] > 1.1 * read[(early, name, "raw.orders")][what]
    ]
    return 1 if grown else 0


def _executions(spark: Any) -> tuple[Any, Iterator[int]]:
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    found = store.executionsList()
    return store, (int(found.apply(at).executionId()) for at in range(found.size()))


def _newest(spark: Any) -> int:
    return max(_executions(spark)[1])


def _scanned(spark: Any, table: str, after: int) -> dict[str, int]:
    """Files, bytes and rows that statements after the given one read of a table."""
    names = {
        "number of result data files": "files",
        "total data file size (bytes)": "bytes",
        "number of output rows": "rows",
    }
    total = dict.fromkeys(names.values(), 0)
    store, executions = _executions(spark)
    for execution in executions:
        if execution <= after:
            continue
        values = store.executionMetrics(execution)
        nodes = store.planGraph(execution).allNodes()
        for node in (nodes.apply(at) for at in range(nodes.size())):
            if not node.name().startswith("BatchScan") or table not in node.name():
                continue
            for metric in (node.metrics().apply(at) for at in range(node.metrics().size())):
                value = values.get(metric.accumulatorId())
                if metric.name() in names and value.isDefined():
                    digits = "".join(c for c in str(value.get()).split("(")[0] if c.isdigit())
                    total[names[metric.name()]] += int(digits or 0)
    return total


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else max(LOOKED_AT)))
